"""Who did something, as the operating system says it, not only as they call themselves."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of an operating system (`os`) or of a scheduler (its name)."""

    kind: str
    user: str
    host: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.user}@{self.host}"

    def to_json(self) -> dict[str, str]:
        """Plain data for plans and events."""
        return asdict(self)

    def is_same_person(self, other: Identity) -> bool:
        """Whether both are one account; a name counts the same on every host."""
        return (self.kind, self.user) == (other.kind, other.user)


_ACTING: ContextVar[Identity | None] = ContextVar("acting", default=None)


@contextmanager
def acting_as(identity: Identity) -> Iterator[None]:
    """While a scheduler works for somebody: what is done is on record as theirs."""
    token = _ACTING.set(identity)
    try:
        yield
    finally:
        _ACTING.reset(token)


def find_identity() -> Identity:
    """Who this process works for: the account it runs as, unless a scheduler said another.

    The account is from its uid, which the environment cannot change.
    """
    if acting := _ACTING.get():
        return acting
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid-{uid}"
    return Identity("os", user, socket.gethostname())
