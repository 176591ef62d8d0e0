"""What every Python program is told, as `name=value` words, and the record that it writes."""

from __future__ import annotations

import os
import signal
import sys
import threading

WORDS = dict(word.split("=", 1) for word in sys.argv[1:])
ENDING = threading.Event()
_RECORD = os.open(WORDS["record"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_PAUSE = int(WORDS["delay_ms"]) / 1000

signal.signal(signal.SIGTERM, lambda *_: ENDING.set())


def note(*words: object) -> None:
    """A line; it is in the file when this returns."""
    os.write(_RECORD, (" ".join(map(str, words)) + "\n").encode())


def handle(partition: int | None, offset: int | None) -> None:
    """A message was handled: a line, then the pause, which ends where the program is to end."""
    note(partition, offset)
    if _PAUSE:
        ENDING.wait(_PAUSE)


def settings() -> dict[str, str]:
    """What the words `set.NAME` are."""
    return {name[4:]: value for name, value in WORDS.items() if name.startswith("set.")}
