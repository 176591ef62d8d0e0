"""Message ids, attempts to handle a message, their errors and outcomes: for SQL and Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, get_args

from backlogctl_delivery.errors import BacklogError, Refused, UsageError
from backlogctl_delivery.stamps import EVENT_ID, MESSAGE_ID, find_value
from backlogctl_delivery.visible import escape_name


class NoMessageId(Refused):
    """The message has no id, or none that can be kept: its repeats could not be told."""

    code = "no_message_id"


class PayloadConflict(Refused):
    """The id is that of another message: the payloads differ."""

    code = "payload_conflict"


class InProgress(BacklogError):
    """Another worker has the message's attempt and has not ended it."""

    code = "in_progress"
    retryable = True


class LeaseLost(BacklogError):
    """The work took longer than the lease and another worker took it over: it is done twice."""

    code = "lease_lost"


class MarksAway(BacklogError):
    """Redis did not answer, or takes no writes."""

    code = "marks_away"
    retryable = True


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
    message_id = _find(message, identity, subject)
    if message_id is None:
        if without_id == "unmarked":
            return None
        raise NoMessageId(f"it has no {_name(identity)}", subject=subject, hint=_HINT)
    return _check(message_id, subject, identity)


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


def _check(given: str, subject: str, identity: Identity) -> str:
    # Databases cut, pad or fold others, each in its own way.
    if 0 < len(given) <= LONGEST and given.isprintable() and given == given.strip():
        return given
    raise NoMessageId(
        f"its {_name(identity)} cannot be kept: {escape_name(given[:40])!r}, {len(given)} "
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


class Attempt:
    """What `handle_once` gives. Do the work only where `is_first`, or where the attempt is true.

    Attributes:
        message_id: None where the message has none and that is allowed.
        was_begun: an earlier one began and did not end: its work may be there already, in part
            or in full. Never with SQL, where an attempt that did not end left nothing.
        is_marked: False where no mark is kept, so that a repeat will not be known.
    """

    __slots__ = ("_is_first", "_was_asked", "is_marked", "message_id", "was_begun")

    def __init__(
        self,
        message_id: str | None,
        *,
        is_first: bool,
        was_begun: bool = False,
        is_marked: bool = True,
    ) -> None:
        self.message_id, self.was_begun, self.is_marked = message_id, was_begun, is_marked
        self._is_first, self._was_asked = is_first, False

    @property
    def is_first(self) -> bool:
        """Whether nobody has done the work yet."""
        self._was_asked = True
        return self._is_first

    def __bool__(self) -> bool:
        return self.is_first

    def check_asked(self) -> None:
        """A block that never asks would do the work each time.
        Raises UsageError: nobody asked `is_first`.
        """
        if not self._was_asked:
            raise UsageError(
                "nobody asked whether its work is still to be done",
                subject=f"message {escape_name(self.message_id or 'without an id')}",
                hint="do the work under `if attempt.is_first:`; nothing was marked",
            )


Outcome = Literal[
    "first",  # its work was done, and is marked
    "repeat",  # it had been handled
    "without_id",  # it has no id, and its work was done without a mark, as `without_id` allows
    "unmarked",  # Redis was away, and its work was done without a mark, as `when_away` allows
    "failed",  # the block raised, or the database did
    "refused",  # it has no id that can be kept
    "in_progress",  # another worker still had its attempt
    "conflict",  # its id came before, with another payload
    "lease_lost",  # its work was done twice
    "away",  # Redis was away, and nothing goes on
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_RAISED: Mapping[type[BaseException], Outcome] = {
    NoMessageId: "refused",
    InProgress: "in_progress",
    PayloadConflict: "conflict",
    LeaseLost: "lease_lost",
    MarksAway: "away",
}


class Counts:
    """What came of the messages of one consumer, since it started; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)

    def add(self, outcome: Outcome) -> None:
        with self._lock:
            self._numbers[outcome] += 1

    def read(self) -> Mapping[Outcome, int]:
        """All of them, also those that are 0."""
        with self._lock:
            return dict(self._numbers)

    @contextmanager
    def around(self, block: AbstractContextManager[Attempt]) -> Iterator[Attempt]:
        """The block as it is, counted once, when it ends."""
        outcome: Outcome = "failed"
        is_working = False
        try:
            with block as attempt:
                is_working = True
                yield attempt
                is_working = False
            outcome = _name_end(attempt)
        except BaseException as error:
            # The work may raise the same, about another message.
            if not is_working:
                outcome = _RAISED.get(type(error), "failed")
            raise
        finally:
            self.add(outcome)


def _name_end(attempt: Attempt) -> Outcome:
    if not attempt._is_first:
        return "repeat"
    if attempt.is_marked:
        return "first"
    return "without_id" if attempt.message_id is None else "unmarked"
