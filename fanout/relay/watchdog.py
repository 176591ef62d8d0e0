"""Ends the relay's process where a call of the client does not come back.

`send_offsets_to_transaction` was seen to hang for minutes, far beyond its own timeout, after the
group's coordinator had moved to another broker (librdkafka 2.16.0, three brokers, one of them
killed). A relay may be killed at any moment: the next one aborts what is open, and goes on from the
last commit.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LATE_SECONDS = 15.0  # beyond a call's own timeout
HUNG = 71  # exit code
_LOOK_SECONDS = 1.0


class Watchdog:
    """Watches calls of any number of threads."""

    def __init__(
        self, late: float = LATE_SECONDS, *, end: Callable[[int], object] = os._exit
    ) -> None:
        self._late = late
        self._end = end
        self._due: dict[int, tuple[float, str]] = {}
        self._started = False
        self._lock = threading.Lock()

    @contextmanager
    def watching(self, doing: str, seconds: float) -> Iterator[None]:
        """A call that has a timeout of so many seconds."""
        self._start()
        thread = threading.get_ident()
        self._due[thread] = (time.monotonic() + seconds + self._late, doing)
        try:
            yield
        finally:
            self._due.pop(thread, None)

    def _start(self) -> None:
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(min(_LOOK_SECONDS, self._late))
            now = time.monotonic()
            for due, doing in list(self._due.values()):
                if now > due:
                    sys.stderr.write(f"the client did not come back from: {doing}\n")
                    sys.stderr.flush()
                    self._end(HUNG)


WATCHDOG = Watchdog()
