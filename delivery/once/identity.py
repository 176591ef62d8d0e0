"""The id by which a message is known when it comes again: a header, or what a function says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from backlog.errors import UsageError
from backlog.stamps import EVENT_ID, MESSAGE_ID, find_value
from backlog.visible import escape_name
from delivery.once.errors import NoMessageId

LONGEST = 255  # characters

# Headers of which the first that is there counts, or a function of the message as the client gave
# it.
Identity = str | tuple[str, ...] | Callable[[Any], str | None]
# What its sender calls a message, which a copy that is put back keeps; of other messages only what
# a recovery put back has an id.
HEADERS = (EVENT_ID, MESSAGE_ID)
WithoutId = Literal["refuse", "unmarked"]


def read_message_id(message: Any, identity: Identity, without_id: WithoutId) -> str | None:
    """The id of a message of either client; a text is an id itself.

    Returns:
        1 to 255 characters that can be seen, the same on every reading; None where there is none
        and `without_id` is `unmarked`.

    Raises:
        NoMessageId: there is none, or one that is too long or cannot be told from others.
        UsageError: the message is an error that stands in a message's place.
    """
    if isinstance(message, str):
        return _check(message, "message", identity)
    subject = _name_place(message)
    found = _find(message, identity, subject)
    if found is None:
        if without_id == "unmarked":
            return None
        raise NoMessageId(f"it has no {_name(identity)}", subject=subject, hint=_HINT)
    return _check(found, subject, identity)


def read_payload(message: Any) -> bytes | None:
    """The value's bytes; None where only an id was given, or the value is no bytes."""
    if isinstance(message, str):
        return None
    value = message.value() if callable(message.value) else message.value
    return value if isinstance(value, bytes) else None


_HINT = (
    "say `identity`: another header, or a function of the message; or `without_id='unmarked'`, "
    "with which the work is done each time it comes"
)


def _find(message: Any, identity: Identity, subject: str) -> str | None:
    if hasattr(message, "error") and message.error() is not None:
        raise UsageError(
            "it is an error in a message's place", subject=subject, hint="look at error() before"
        )
    if callable(identity):
        return identity(message)
    headers = message.headers() if callable(message.headers) else message.headers
    names = (identity,) if isinstance(identity, str) else identity
    raw = next((raw for name in names if (raw := find_value(headers, name)) is not None), None)
    if raw is None:
        return None
    try:
        # With replacements two ids could become one, and a message be taken for another.
        return raw.decode()
    except UnicodeDecodeError as error:
        raise NoMessageId(
            f"its {_name(identity)} is not UTF-8", subject=subject, hint=_HINT
        ) from error


def _check(found: str, subject: str, identity: Identity) -> str:
    # Databases cut, pad or fold others, each in its own way.
    if 0 < len(found) <= LONGEST and found.isprintable() and found == found.strip():
        return found
    raise NoMessageId(
        f"its {_name(identity)} cannot be kept: {escape_name(found[:40])!r}, {len(found)} "
        f"characters; 1 to {LONGEST} that can be seen are, without spaces around",
        subject=subject,
        hint=_HINT,
    )


def _name(identity: Identity) -> str:
    if callable(identity):
        return "id"
    names = (identity,) if isinstance(identity, str) else identity
    return f"header {' or '.join(map(escape_name, names))}"


def _name_place(message: Any) -> str:
    parts = (getattr(message, name, None) for name in ("topic", "partition", "offset"))
    topic, partition, offset = (part() if callable(part) else part for part in parts)
    return f"message {escape_name(str(topic))}[{partition}] at offset {offset}"
