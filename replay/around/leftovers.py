"""Each piece of the layout is given back as far as possible; what could not be is told last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from backlog.errors import BacklogError, LeaseHeld
from replay.recovery.brakes import CancelRequested, PausedBecause

CONSUMERS_STAY = "the recovery's consumers could not be ended"
CONSUMERS_MISSING = "the group's own consumers could not be started"


@dataclass(slots=True)
class Leftovers:
    """What could not be given back in this run, and why."""

    _failed: dict[str, BacklogError] = field(default_factory=dict)

    def __contains__(self, what: str) -> bool:
        return what in self._failed

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """A failure in it does not keep what comes next from being given back.

        Raises:
            LeaseHeld: another runner does it.
            CancelRequested, PausedBecause: somebody asked; that is no failure, and the next run, or
                the cancellation, does it again.
        """
        try:
            yield
        except (LeaseHeld, CancelRequested, PausedBecause):
            raise
        except BacklogError as error:
            self._failed[what] = error

    def refuse(self, hint: str) -> None:
        """Tells all of it.

        Raises:
            BacklogError: something could not be given back.
        """
        if not self._failed:
            return
        first, *_ = self._failed.values()
        told = "; ".join(f"{what}: {error.message}" for what, error in self._failed.items())
        raise BacklogError(told, subject=first.subject, hint=hint) from first
