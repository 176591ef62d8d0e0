"""Upper bound on the offsets a group can have consumed between two samples, from its highest rate.

Why these numbers: docs/decisions/0014-a-live-group-that-retention-overtakes.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

ZERO = timedelta(0)
# Over shorter times a rate shows the rhythm of commits, not of reading.
COMMIT_RHYTHM = timedelta(seconds=5)
# A group that works off a backlog may be so much faster than it ever was.
SPEED_UP = 25
# What one poll hands out by default, and a fetch that waits behind it.
BURST = 1000
# A backlog that was worked off sooner may be only what lies between a message and its commit; and
# shorter evidence may be of a group that was just starting.
LEAST_EVIDENCE = timedelta(seconds=20)
# With fewer commits behind its first one, a backlog may be what one commit has not said yet.
LEAST_COMMITS = 2


@dataclass(frozen=True, slots=True)
class Move:
    """One partition between two samples; `low` and `stable`, the last stable offset, are the later
    one's."""

    partition: int
    before: int
    after: int
    low: int
    stable: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing above the earlier commit had expired: it read all of it."""
        return self.low <= self.before <= self.after

    @property
    def has_moved(self) -> bool:
        return self.before < self.after


@dataclass(frozen=True, slots=True)
class Backlog:
    """What there was to read on one partition when a commit was seen, `end`, and for how long the
    commits have stayed below that.

    Whoever waits for messages commits behind the end too, by the rhythm of its commits, but it has
    passed what was there a commit earlier.
    """

    end: int
    lasted: timedelta = ZERO
    commits: int = 0

    @property
    def proves_work(self) -> bool:
        """Whether the reader had work all the time: only then its speed says what it can."""
        return self.lasted >= LEAST_EVIDENCE and self.commits >= LEAST_COMMITS


@dataclass(frozen=True, slots=True)
class ConsumptionBound:
    """The highest pace of all partitions together, offsets a second; `proven`: the partitions
    whose reader was seen, for long enough, with more to read than it managed. A slow reader of one
    says nothing of the readers of others."""

    best: float = 0.0
    proven: frozenset[int] = frozenset()
    moved: int = 0  # since `best` was last compared, over `span`
    span: timedelta = ZERO
    backlogs: Mapping[int, Backlog] = field(default_factory=dict)

    @property
    def pace(self) -> float:
        return max(self.best, self.moved / max(self.span, COMMIT_RHYTHM).total_seconds())

    def add(self, moves: Iterable[Move], took: timedelta) -> ConsumptionBound:
        whole = [move for move in moves if move.is_whole]
        if took <= ZERO:
            return self
        if not whole:
            return replace(self, backlogs={})
        backlogs = {
            move.partition: backlog
            for move in whole
            if (backlog := _follow_backlog(self.backlogs.get(move.partition), move, took))
        }
        # A reader that stands still, with whatever to read, shows no pace.
        proven = self.proven | {
            move.partition
            for move in whole
            if move.has_moved and backlogs[move.partition].proves_work
        }
        moved = self.moved + sum(move.after - move.before for move in whole)
        span = self.span + took
        added = ConsumptionBound(self.best, proven, moved, span, backlogs)
        return (
            added
            if span < COMMIT_RHYTHM
            else ConsumptionBound(added.pace, proven, backlogs=backlogs)
        )

    def limit(self, partition: int, since: datetime | None, until: datetime) -> int | None:
        """How many offsets of a partition can have been read at most; None where the samples do not
        show it.

        Args:
            since: a time at which it had read no further than its commit.
        """
        if since is None or partition not in self.proven:
            return None
        seconds = max(until - since, COMMIT_RHYTHM).total_seconds()
        return int(self.pace * SPEED_UP * seconds) + BURST


def _follow_backlog(known: Backlog | None, move: Move, took: timedelta) -> Backlog | None:
    """The backlog after a move; it begins with a commit, and anew with one that passes its end."""
    if not move.has_moved:
        return known and replace(known, lasted=known.lasted + took)
    if known is None or move.after >= known.end:
        return Backlog(move.stable)
    return replace(known, lasted=known.lasted + took, commits=known.commits + 1)
