"""What the commits of one consumer say of its speed.

A consumer that commits every five seconds (`auto.commit.interval.ms`, Kafka's default) shows
its work in steps: what it handled by its first commit began at some unknown time, and before
its last one, when nothing more was there, it may have been idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

ENOUGH_SECONDS = 5.0
ENOUGH_COMMITS = 5
ENOUGH_OF_THE_PLAN = 1.0  # seconds of work at the planned rate, seen in that many commits
LATEST_SECONDS = 15.0
# An interval of 5 s, a group that waits 3 s for more members (`group.initial.rebalance.delay.ms`),
# and two to fetch and to be seen: as long may one commit of a fast consumer take.
COMMIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Speed:
    """Messages, seconds, and whether it is known, or at least this."""

    handled: int
    seconds: float
    known: bool = True

    @property
    def rate(self) -> float:
        return self.handled / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> dict[str, float | bool]:
        return {
            "handled": self.handled,
            "seconds": round(self.seconds, 2),
            "messages_per_second": round(self.rate, 1),
            "at_least": not self.known,
        }


@dataclass(frozen=True, slots=True)
class Trial:
    """A consumer that drains a share; times are of the monotonic clock, in seconds.

    Attributes:
        share: offsets that were there for it.
        joined: when its group had a member; until that is seen, when it was started.
        commits: when the lag was seen to fall, and what was left then.
    """

    share: int
    joined: float
    commits: tuple[tuple[float, int], ...] = ()

    @property
    def left(self) -> int:
        """Of the share."""
        return self.commits[-1][1] if self.commits else self.share

    @property
    def last_at(self) -> float:
        """When the last commit was seen, or when it joined."""
        return self.commits[-1][0] if self.commits else self.joined

    def note(self, now: float, left: int) -> Trial:
        """The trial after a look."""
        return self if left >= self.left else replace(self, commits=(*self.commits, (now, left)))

    def is_enough(self, now: float, planned: float) -> bool:
        """Whether its speed is known, or will not be; `planned` is messages a second."""
        if not self.commits:
            return False
        (first_at, first_left), (last_at, last_left) = self.commits[0], self.commits[-1]
        if len(self.commits) > 1 and last_at - first_at >= ENOUGH_SECONDS:
            return True
        many = len(self.commits) >= ENOUGH_COMMITS
        if many and first_left - last_left >= ENOUGH_OF_THE_PLAN * planned:
            return True
        return now - first_at >= LATEST_SECONDS

    def measure(self, now: float, *, drained: bool) -> Speed:
        """Its speed between two commits between which it had work all the time.

        Where there are no two such, from when it joined: it may have been faster, unless it took
        so long that no interval of commits explains it.

        Args:
            drained: nothing is left for it to read.
        """
        total = self.share - self.left
        if not drained and now - self.last_at > COMMIT_SECONDS:
            return Speed(total, now - self.joined)  # it stands still
        busy = self.commits[:-1] if drained else self.commits
        if len(busy) > 1:
            (first_at, first_left), (last_at, last_left) = busy[0], busy[-1]
            return Speed(first_left - last_left, last_at - first_at)
        times = [self.joined, *(at for at, _ in self.commits)]
        longest = max((b - a for a, b in pairwise(times)), default=0.0)
        return Speed(total, self.last_at - self.joined, known=longest > COMMIT_SECONDS)
