"""What a message says, as one short text: its key, value and headers, without the stamps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_STAMPS = "backlog-"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a message is."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True)
class Content:
    """A message's bytes: NULL, empty, and headers in their order and as often as they are there."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(
        cls,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] | None,
    ) -> Content:
        """Without what a recovery stamped on it."""
        own = tuple((name, at) for name, at in headers or () if not name.startswith(_STAMPS))
        return cls(key, value, own)

    @classmethod
    def of_message(cls, message: Any) -> Content:
        """That of a message which was read."""
        return cls.of(message.key(), message.value(), message.headers())

    @property
    def hash(self) -> str:
        """Another one for each other byte."""
        return hashlib.sha256(repr((self.key, self.value, self.headers)).encode()).hexdigest()
