"""Progress of long work as lines for people."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from backlogctl_delivery.visible import escape_text

Say = Callable[[str], None]
"""Takes one line for people."""

TICK_SECONDS = 10.0
_END_SECONDS = 5.0


def print_line(line: str) -> None:
    sys.stderr.write(f"{escape_text(line)}\n")


class Ticker:
    """Calls `tick` each ten seconds, from a thread, until it is stopped.

    What `tick` raises is dropped: telling how far work is must not fail it.
    """

    def __init__(
        self,
        tick: Callable[[], None],
        *,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._tick, self._wait = tick, wait
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to tick; the first tick comes after ten seconds."""
        if self._thread is None:
            self._stopped.clear()
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread; a tick that hangs is not waited for long."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)
            self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._wait(self._stopped, TICK_SECONDS):
            with suppress(Exception):
                self._tick()
