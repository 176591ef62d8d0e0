"""Ctrl-C and SIGTERM while a recovery runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """The first Ctrl-C or SIGTERM stops between two waves, a second one at once."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While the work goes on. Spark puts a handler of its own there: install after it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._note) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
