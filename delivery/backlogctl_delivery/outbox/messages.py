"""What an application hands in, checked and written as a row's values; and read back."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backlogctl_delivery.errors import UsageError
from backlogctl_delivery.outbox.database import LONGEST_TOPIC, State
from backlogctl_delivery.stamps import EVENT_ID, OF_ONE_MESSAGE, check_header_name

HeadersIn = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]
Headers = list[tuple[str, bytes | None]]

_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_MESSAGE_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Message:
    """A row as it is sent. Key, value and headers are in no repr.

    Attributes:
        token: of the claim that it was taken by: only with it the row is marked.
    """

    id: int
    token: str
    message_id: str
    topic: str
    ordering_key: int | None
    attempts: int
    max_attempts: int
    interval_ms: int
    key: bytes | None = field(repr=False)
    value: bytes | None = field(repr=False)
    headers: Headers = field(repr=False)

    @property
    def stamped(self) -> Headers:
        """Its headers, and the id by which a consumer drops a repeat.

        Raises:
            ValueError: a header's name is none that the client takes; somebody else wrote the row.
        """
        for name, _ in self.headers:
            check_header_name(name)
        return [*self.headers, (EVENT_ID, self.message_id.encode())]


def make_row(
    topic: str,
    key: str | bytes | None,
    value: str | bytes | None,
    headers: HeadersIn | None,
    message_id: str | None,
    *,
    max_attempts: int,
    wait_ms: int,
) -> dict[str, Any]:
    """The values of a new row for `additions`: times are from now on, by the database's clock.

    Args:
        wait_ms: so long the scanner leaves it to the sender of the application's own process.

    Raises:
        UsageError: something cannot be sent as it is. Holds no payload.
    """
    if len(topic) > LONGEST_TOPIC or not _TOPIC.fullmatch(topic):
        raise UsageError(
            "this is no name of a topic", subject="Outbox.add", hint="A-Z a-z 0-9 . _ -, up to 249"
        )
    if message_id is not None and not _MESSAGE_ID.fullmatch(message_id):
        raise UsageError(
            "a message id has 32 hexadecimal digits",
            subject=f"Outbox.add to {topic}",
            hint="leave it out, or take uuid.uuid4().hex",
        )
    key_bytes = _encode(topic, "key", key)
    return {
        "message_id": message_id or uuid.uuid4().hex,
        "topic": topic,
        "message_key": key_bytes,
        "value": _encode(topic, "value", value),
        "headers": write_headers(topic, headers),
        "ordering_key": None if key_bytes is None else find_ordering_key(topic, key_bytes),
        "state": str(State.PENDING),
        "due_at": wait_ms,
        "attempts": 0,
        "max_attempts": max_attempts,
        "interval_ms": 0,
        "created_at": 0,
    }


def find_ordering_key(topic: str, key: bytes) -> int:
    """64 bits of a hash of topic and key. Two keys that share them only wait for each other."""
    digest = hashlib.blake2b(key, digest_size=8, key=hashlib.sha256(topic.encode()).digest())
    return int.from_bytes(digest.digest(), "big", signed=True)


def write_headers(topic: str, headers: HeadersIn | None) -> str | None:
    """As the table keeps them; None where there are none.

    What is of one message only is left out: copied from the message that is being handled, it would
    give this one the id and the number of that one, or call it put back as well.

    Raises:
        UsageError: one has no text as its name, or no bytes or text as its value.
    """
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    kept: list[list[str | None]] = []
    for name, value in pairs:
        if not isinstance(name, str) or not _is_header_name(name):
            raise UsageError(
                f"a header may not be named {name!r}",
                subject=f"Outbox.add to {topic}",
                hint="take any text but a NUL or half a character",
            )
        encoded = _encode(topic, f"header {name}", value)
        if name in OF_ONE_MESSAGE:
            continue
        kept.append([name, None if encoded is None else base64.b64encode(encoded).decode()])
    return json.dumps(kept) if kept else None


def _is_header_name(name: str) -> bool:
    try:
        check_header_name(name)
    except ValueError:
        return False
    return True


def read_headers(text: str | None) -> Headers:
    """What `write_headers` wrote."""
    return [
        (name, None if value is None else base64.b64decode(value))
        for name, value in (json.loads(text) if text else ())
    ]


def _encode(topic: str, what: str, given: str | bytes | None) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise UsageError(
        f"its {what} is of type {type(given).__name__}, not bytes, text or None",
        subject=f"Outbox.add to {topic}",
        hint="serialize it first, such as by json.dumps(...)",
    )


_DELAYS = (0.01, 0.05, 0.25, 1.0, 4.0)
_MOST = 50_000
_NEVER = float("inf")


class Hints:
    """Ids of rows of which a commit has told, until they are claimed, or left to the scanner.

    A hint may come before its commit, of a transaction that is undone after all, or of a key whose
    older rows another sender has: so it is looked at more than once, and then dropped. One thread
    only.
    """

    def __init__(self) -> None:
        self._tries: dict[int, int] = {}
        self._due: dict[int, float] = {}

    @property
    def next_at(self) -> float:
        """When the next one is to be looked at, by the monotonic clock; infinite without any."""
        return min(self._due.values(), default=_NEVER)

    def add(self, hints: Iterable[int]) -> None:
        """Takes hints in, as many as there is room for."""
        now = time.monotonic()
        for id_ in hints:
            if len(self._due) < _MOST:
                self._due[id_] = now
                self._tries[id_] = 0

    def take_due(self, now: float, most: int) -> list[int]:
        """Those to be looked at now; each comes again later, until it is dropped."""
        due: list[int] = []
        for id_, at in list(self._due.items()):
            if len(due) >= most:
                break
            if at > now:
                continue
            due.append(id_)
            tries = self._tries[id_]
            if tries == len(_DELAYS):
                self.drop([id_])
            else:
                self._due[id_] = now + _DELAYS[tries]
                self._tries[id_] = tries + 1
        return due

    def drop(self, ids: Iterable[int]) -> None:
        """Forgets hints: their rows were claimed."""
        for id_ in ids:
            self._due.pop(id_, None)
            self._tries.pop(id_, None)
