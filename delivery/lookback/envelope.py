"""What stands on the look-back topic: one JSON object a record, the business id as its key.

    {"event": "prepared", "biz_type": "payment", "biz_id": "42", "service": "payments",
     "topic": "payments", "key": "NDI=", "value": "e30=", "headers": [["type", "UGFpZA=="]]}
    {"event": "committed", "biz_type": "payment", "biz_id": "42"}

Bytes are base64; a null stays null. Unknown fields are ignored, so that they may be added.
"""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)

from backlog.config.base import check_group, check_topic
from backlog.errors import BacklogError
from backlog.stamps import check_header_name
from delivery.lookback.states import Event

LONGEST_NAME = 255
# No database takes a NUL or half a character.
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(check_group)]


# The client cuts a header's name at a NUL, and dies of half a character.
HeaderName = Annotated[str, AfterValidator(check_header_name)]


def _decode(value: object) -> object:
    # pydantic's own would skip what is no base64.
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


Bytes = Annotated[
    bytes,
    BeforeValidator(_decode),
    PlainSerializer(lambda value: base64.b64encode(value).decode(), when_used="json-unless-none"),
]
Headers = tuple[tuple[str, bytes | None], ...]


class NotReadable(BacklogError):
    """A record of the look-back topic is none of ours."""

    code = "not_readable"


class Envelope(BaseModel):
    """Which business transaction a record is about."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    event: Event
    biz_type: Name
    biz_id: Name


class Decided(Envelope):
    """The application says how it ended."""

    event: Literal[Event.COMMITTED, Event.ROLLED_BACK]


class Prepared(Envelope):
    """A message that is forwarded if its transaction commits, and the service that knows."""

    event: Literal[Event.PREPARED] = Event.PREPARED
    service: Name
    topic: Annotated[str, AfterValidator(check_topic)]
    key: Bytes | None = None
    value: Bytes | None = None
    headers: tuple[tuple[HeaderName, Bytes | None], ...] = ()


def make_prepared(
    biz_type: str,
    biz_id: str,
    service: str,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> Prepared:
    """Raises:
    ValueError: a name is empty, too long or none that Kafka takes.
    """
    return Prepared.model_validate(
        {
            "biz_type": biz_type,
            "biz_id": biz_id,
            "service": service,
            "topic": topic,
            "key": key,
            "value": value,
            "headers": headers,
        }
    )


def write_envelope(envelope: Envelope) -> bytes:
    """The value of its record."""
    return envelope.model_dump_json().encode()


def read_envelope(value: bytes | None) -> Prepared | Decided:
    """Reads a record's value.

    Raises:
        NotReadable: it is not one that `write_envelope` could have written; says no value.
    """
    if value is None:
        raise NotReadable("it has no value")
    try:
        event = Envelope.model_validate_json(value).event
        made = Prepared if event is Event.PREPARED else Decided
        return made.model_validate_json(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise NotReadable(f"{place}: {first['msg']}" if place else first["msg"]) from None
