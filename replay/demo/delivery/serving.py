"""What processes of the shop share: what they note, how fast they go, when they end."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self


class Begun:
    """A file with the id of each transaction that is about to begin; it outlives who is killed."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, made: str) -> None:
        """One id."""
        os.write(self._file, f"{made}\n".encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)


class Pace:
    """So many a second, and no more to make up for what was slow."""

    def __init__(self, rate: float) -> None:
        self._gap, self._due = 1 / rate, time.monotonic()

    def pause(self) -> float:
        """Seconds until the next one is due."""
        now = time.monotonic()
        self._due = max(self._due + self._gap, now)
        return self._due - now


def until_sigterm() -> threading.Event:
    """Is set by SIGTERM or Ctrl-C."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping
