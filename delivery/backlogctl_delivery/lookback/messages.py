"""What stands on the look-back topic: one JSON object a record, the business id as its key.

    {"event": "prepared", "biz_type": "payment", "biz_id": "42", "service": "payments",
     "topic": "payments", "key": "NDI=", "value": "e30=", "headers": [["type", "UGFpZA=="]]}
    {"event": "committed", "biz_type": "payment", "biz_id": "42"}

Bytes are base64; a null stays null. Unknown fields are ignored, so that they may be added.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from backlogctl_delivery.errors import BacklogError
from backlogctl_delivery.stamps import check_header_name, make_message_id


class Event(StrEnum):
    """What a record of the look-back topic says."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class Decision(StrEnum):
    """How the business transaction ended. Once it is known it never changes."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class State(StrEnum):
    """How a message stands."""

    PREPARED = "prepared"  # waits for the decision
    COMMITTED = "committed"  # decided, and its prepared message has not come yet
    FORWARDING = "forwarding"  # committed, and in the outbox: shown, never stored
    FORWARDED = "forwarded"  # stored as soon as the outbox has it
    ROLLED_BACK = "rolled_back"
    PARKED = "parked"  # nothing is done until somebody resumes it


ENDED = (State.FORWARDED, State.ROLLED_BACK)


class Outcome(StrEnum):
    """What came of asking a service."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    UNKNOWN = "unknown"  # the service said so
    FAILED = "failed"  # no answer, or none that can be read: as good as unknown
    REFUSED = "refused"  # it was not asked: not listed, or its address may not be asked

    @property
    def decision(self) -> Decision | None:
        """What it settles; None where it settles nothing."""
        return Decision(self) if self in (Outcome.COMMITTED, Outcome.ROLLED_BACK) else None


class Incident(StrEnum):
    """What does not fit: written down, and nothing else is done about it."""

    COMMIT_AFTER_ROLL_BACK = "commit_after_roll_back"
    COMMIT_AFTER_PARKING = "commit_after_parking"
    ROLL_BACK_AFTER_COMMIT = "roll_back_after_commit"
    ROLL_BACK_AFTER_PARKING = "roll_back_after_parking"
    OTHER_MESSAGE = "other_message"  # prepared again, as another message
    UNREADABLE = "unreadable"  # a record that is none of ours


def make_id(topic: str, biz_type: str, biz_id: str) -> str:
    """The id of a message, here and in the header `backlog-event-id`.

    Args:
        topic: the look-back topic: two installations have ids of their own.
    """
    return make_message_id(topic, (biz_type, biz_id), "look-back")


@dataclass(frozen=True, slots=True)
class MessageStatus:
    """How a message stands, as far as that decides anything."""

    state: State
    decision: Decision | None
    has_message: bool  # False: a decision overtook the prepared message


@dataclass(frozen=True, slots=True)
class Transition:
    """What an event leads to; nothing where all is None.

    `takes_message`: the prepared message is stored.
    """

    state: State | None = None
    decision: Decision | None = None
    takes_message: bool = False
    incident: Incident | None = None


_NOTHING = Transition()


def decide_step(standing: MessageStatus | None, event: Event, is_same: bool = True) -> Transition:
    """What an event leads to.

    Args:
        standing: None where nothing is known of the message.
        is_same: whether a message prepared again is the one that is stored.
    """
    if event is Event.PREPARED:
        return _prepare(standing, is_same)
    decision = Decision(event)
    if standing is None:
        # It overtook its prepare, or that one is lost: kept until it comes.
        kept = State.COMMITTED if decision is Decision.COMMITTED else State.ROLLED_BACK
        return Transition(kept, decision)
    if standing.decision is not None:
        return (
            _NOTHING if standing.decision is decision else Transition(incident=_conflict(decision))
        )
    if standing.state is State.PARKED:
        late = Incident.COMMIT_AFTER_PARKING
        if decision is Decision.ROLLED_BACK:
            late = Incident.ROLL_BACK_AFTER_PARKING
        return Transition(incident=late)
    return settle(decision)


def settle(decision: Decision) -> Transition:
    """What a decision makes of a message that waited for it."""
    ended = State.FORWARDED if decision is Decision.COMMITTED else State.ROLLED_BACK
    return Transition(ended, decision)


def _prepare(standing: MessageStatus | None, is_same: bool) -> Transition:
    if standing is None:
        return Transition(State.PREPARED, takes_message=True)
    if standing.has_message:
        return _NOTHING if is_same else Transition(incident=Incident.OTHER_MESSAGE)
    if standing.decision is Decision.COMMITTED:
        # Parked or not: all that is needed to send it is here now.
        return Transition(State.FORWARDED, Decision.COMMITTED, takes_message=True)
    return _NOTHING


def _conflict(late: Decision) -> Incident:
    if late is Decision.COMMITTED:
        return Incident.COMMIT_AFTER_ROLL_BACK
    return Incident.ROLL_BACK_AFTER_COMMIT


LONGEST_NAME = 255
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_DECISIONS = (Event.COMMITTED, Event.ROLLED_BACK)
Headers = tuple[tuple[str, bytes | None], ...]


class NotReadable(BacklogError):
    """A record of the look-back topic is none of ours."""

    code = "not_readable"


@dataclass(frozen=True, slots=True)
class Decided:
    """The application says how a business transaction ended.

    Raises:
        ValueError: a name cannot be taken, or the event is no decision.
    """

    event: Event
    biz_type: str
    biz_id: str

    def __post_init__(self) -> None:
        if self.event not in _DECISIONS:
            raise ValueError(f"event: is none of {', '.join(_DECISIONS)}")
        _check_names(self, "biz_type", "biz_id")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message that is forwarded if its transaction commits, and the service that knows.

    Raises:
        ValueError: a name is empty, too long or none that Kafka takes.
    """

    biz_type: str
    biz_id: str
    service: str
    topic: str
    key: bytes | None = field(default=None, repr=False)
    value: bytes | None = field(default=None, repr=False)
    headers: Headers = field(default=(), repr=False)
    event: Event = field(default=Event.PREPARED, init=False)

    def __post_init__(self) -> None:
        _check_names(self, "biz_type", "biz_id", "service", "topic")
        if not _TOPIC.fullmatch(self.topic) or self.topic in (".", ".."):
            raise ValueError("topic: is not a Kafka topic name")
        for name, _ in self.headers:
            check_header_name(name)
        payload = (self.key, self.value, *(value for _, value in self.headers))
        if not all(part is None or isinstance(part, bytes) for part in payload):
            raise ValueError("key, value and headers: are bytes, text or None")


def write_envelope(envelope: Prepared | Decided) -> bytes:
    """The value of its record."""
    document: dict[str, Any] = {
        "event": envelope.event,
        "biz_type": envelope.biz_type,
        "biz_id": envelope.biz_id,
    }
    if isinstance(envelope, Prepared):
        document |= {
            "service": envelope.service,
            "topic": envelope.topic,
            "key": encode_bytes(envelope.key),
            "value": encode_bytes(envelope.value),
            "headers": [[name, encode_bytes(value)] for name, value in envelope.headers],
        }
    return json.dumps(document, ensure_ascii=False).encode()


def read_envelope(value: bytes | None) -> Prepared | Decided:
    """Reads a record's value.

    Raises:
        NotReadable: it is not one that `write_envelope` could have written; says no value.
    """
    if value is None:
        raise NotReadable("the record has no value")
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        raise NotReadable("the record is not JSON") from None
    if not isinstance(document, dict):
        raise NotReadable("the record is no JSON object")
    names: list[Any] = [document.get(n) for n in ("biz_type", "biz_id", "service", "topic")]
    biz_type, biz_id, service, topic = names
    try:
        if document.get("event") != Event.PREPARED:
            event = document.get("event")
            if event not in list(_DECISIONS):
                raise ValueError("event: is none that look-back knows")
            return Decided(Event(event), biz_type, biz_id)
        return Prepared(
            biz_type,
            biz_id,
            service,
            topic,
            key=_decode("key", document.get("key")),
            value=_decode("value", document.get("value")),
            headers=_read_headers(document.get("headers", [])),
        )
    except ValueError as error:
        raise NotReadable(str(error)) from None


def read_message_headers(stored: Sequence[Sequence[str | None]] | None) -> Headers:
    """Headers as the table has them."""
    return tuple(
        (str(name), None if value is None else base64.b64decode(value))
        for name, value in stored or ()
    )


def encode_bytes(value: bytes | None) -> str | None:
    """As JSON holds it: base64."""
    return None if value is None else base64.b64encode(value).decode()


def _check_names(envelope: Prepared | Decided, *names: str) -> None:
    for name in names:
        given = getattr(envelope, name)
        if not isinstance(given, str) or not given.strip() or len(given) > LONGEST_NAME:
            raise ValueError(f"{name}: is no text of 1 to {LONGEST_NAME} characters")
        # No database takes a NUL or half a character.
        if re.search(r"[\0\ud800-\udfff]", given):
            raise ValueError(f"{name}: has a NUL or half a character")


def _decode(name: str, value: object) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{name}: is no base64")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise ValueError(f"{name}: is no base64") from None


def _read_headers(given: object) -> Headers:
    if not isinstance(given, list):
        raise ValueError("headers: is no list")
    headers: list[tuple[str, bytes | None]] = []
    for pair in given:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError("headers: one is no pair of a name and a value")
        headers.append((pair[0], _decode("headers", pair[1])))
    return tuple(headers)
