"""A rate that the relays of all processes of this machine keep together."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

_DUE = struct.Struct("d")


class SharedPace:
    """`path` is a file that they share: in it, when what was sent is paid for at this rate, by the
    monotonic clock, which all processes of a machine have in common."""

    def __init__(self, path: Path, bytes_per_second: float) -> None:
        self._path, self._rate = path, bytes_per_second

    def take(self, size: int) -> float:
        """Seconds until somebody may begin to send so many bytes; 0.0: it is ours to send them."""
        return self._move(size, is_asked=True)

    def add(self, size: int) -> None:
        """Bytes that were sent beyond what was taken; negative: so many less."""
        self._move(size, is_asked=False)

    def _move(self, size: int, *, is_asked: bool) -> float:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            held, now = os.pread(file, _DUE.size, 0), time.monotonic()
            due = _DUE.unpack(held)[0] if held else now
            if is_asked and due > now:
                return float(due - now)
            begun = max(due, now) if is_asked else due
            os.pwrite(file, _DUE.pack(begun + size / self._rate), 0)
            return 0.0
        finally:
            os.close(file)
