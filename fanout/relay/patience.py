"""How long failures without progress in between are tolerated."""

from __future__ import annotations

from backlog.clock import Deadline


class Patience:
    """Begins with the first failure after progress, so that idle hours do not use it up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._limit: Deadline | None = None

    def note_progress(self) -> None:
        """Something went on: the next failure is a first one."""
        self._limit = None

    def is_over(self) -> bool:
        """Called at a failure: whether they have gone on for too long."""
        if self._limit is None:
            self._limit = Deadline(self._seconds)
        return self._limit.expired
