"""Something that is away for a while: told once, and asked less and less often."""

from __future__ import annotations

import logging
import time

from backlog.visible import escape_text

_FIRST_SECONDS, _LONGEST_SECONDS = 0.5, 30.0
# What comes and goes is not told each time.
_SPARING_SECONDS = 600.0


class Outage:
    """One thing's outages.

    Args:
        what: as the warning names it.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log, self._what = log, what
        self._interval = 0.0
        self._next = 0.0
        self._told_at = float("-inf")
        self._was_told = False
        self.is_on = False

    def is_time(self) -> bool:
        """Whether it may be asked (again)."""
        return time.monotonic() >= self._next

    def note(self, reason: str) -> None:
        """It failed; reports that come together count as one."""
        now = time.monotonic()
        if not self.is_on and now - self._told_at >= _SPARING_SECONDS:
            self._log.warning("%s: %s", self._what, escape_text(reason))
            self._told_at, self._was_told = now, True
        self.is_on = True
        if now >= self._next:
            self.ask()

    def ask(self) -> None:
        """It is about to be asked again: the next time is later."""
        self._interval = min(_LONGEST_SECONDS, self._interval * 2 or _FIRST_SECONDS)
        self._next = time.monotonic() + self._interval

    def end(self) -> None:
        """It works."""
        if self.is_on and self._was_told:
            self._log.warning("%s: works again", self._what)
        self.is_on = self._was_told = False
        self._interval = self._next = 0.0
