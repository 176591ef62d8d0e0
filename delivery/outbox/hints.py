"""Rows of which a commit has told, until they are claimed, or left to the scanner.

A hint may come before its commit, of a transaction that is undone after all, or of a key whose
older rows another sender has: so it is looked at more than once, and then forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from delivery.outbox.messages import Hint

_DELAYS = (0.01, 0.05, 0.25, 1.0, 4.0)
_MOST = 50_000
_NEVER = float("inf")


class Hints:
    """Hints, each with when it is looked at next. One thread only."""

    def __init__(self) -> None:
        self._tries: dict[int, int] = {}
        self._hints: dict[int, tuple[Hint, float]] = {}

    @property
    def next_at(self) -> float:
        """When the next one is to be looked at, by the monotonic clock; infinite without any."""
        return min((at for _, at in self._hints.values()), default=_NEVER)

    def add(self, hints: Iterable[Hint]) -> None:
        """Takes hints in, as many as there is room for."""
        now = time.monotonic()
        for hint in hints:
            if len(self._hints) < _MOST:
                self._hints[hint.id] = (hint, now)
                self._tries[hint.id] = 0

    def take_due(self, now: float, most: int) -> list[Hint]:
        """Those to be looked at now; each comes again later, until it is dropped."""
        due: list[Hint] = []
        for id_, (hint, at) in list(self._hints.items()):
            if len(due) >= most:
                break
            if at > now:
                continue
            due.append(hint)
            tries = self._tries[id_]
            if tries == len(_DELAYS):
                self.drop([id_])
            else:
                self._hints[id_] = (hint, now + _DELAYS[tries])
                self._tries[id_] = tries + 1
        return due

    def drop(self, ids: Iterable[int]) -> None:
        """Forgets hints: their rows were claimed."""
        for id_ in ids:
            self._hints.pop(id_, None)
            self._tries.pop(id_, None)
