"""Whether the process lives (/healthz), and whether what it serves is fresh (/readyz)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from backlog.clock import utc_now
from backlog.errors import BacklogError
from monitoring.board import Board, Seen

# A sample may be missed twice before what is shown counts as old.
INTERVALS = 3


class ThreadLike(Protocol):
    """A thread that samples."""

    @property
    def name(self) -> str: ...
    def is_alive(self) -> bool: ...


class LedgerLike(Protocol):
    """A ledger that can be asked for the time."""

    def now(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Health:
    """An answer; `code` is 200 or 503."""

    code: int
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Doctor:
    """Answers for one process.

    Attributes:
        clusters: those that samples are awaited of.
        threads: those that sample; the list may grow.
    """

    board: Board
    ledger: LedgerLike
    interval: timedelta
    clusters: Collection[str]
    threads: Sequence[ThreadLike] = field(default_factory=list)

    def check_life(self) -> Health:
        """Whether every sampler's thread lives."""
        dead = [thread.name for thread in self.threads if not thread.is_alive()]
        up = (utc_now() - self.board.started_at).total_seconds()
        body = {"status": "dead" if dead else "ok", "dead": dead, "up_seconds": round(up, 1)}
        return _make(not dead, body)

    def check_readiness(self) -> Health:
        """Whether every cluster was looked at, the newest sample is young, the ledger answers.

        One cluster of several that is away does not take the others' figures from anybody: it is
        named, and `backlog_sample_age_seconds` tells its age.
        """
        seen, now = self.board.seen, utc_now()
        ages = {cluster: _find_age(seen, cluster, now) for cluster in sorted(self.clusters)}
        limit = self.interval.total_seconds() * INTERVALS + max(
            (done.seconds for done in seen.clusters.values()), default=0.0
        )
        # One that failed was looked at too: it must not hold back the others for ever.
        failed = {cluster for cluster, _ in seen.failing}
        waiting = [name for name, age in ages.items() if age is None and name not in failed]
        known = [age for age in ages.values() if age is not None]
        reasons = [f"cluster {name} was not looked at yet" for name in waiting]
        if self.clusters and not known:
            reasons.append("there is no sample yet")
        elif known and min(known) > limit:
            reasons.append(f"the newest sample is {min(known):.0f} s old, more than {limit:.0f} s")
        if not self._ledger_answers():
            reasons.append("the ledger does not answer")
        body = {
            "status": "not ready" if reasons else "ok",
            "reasons": reasons,
            "age_seconds": {n: None if a is None else round(a, 1) for n, a in ages.items()},
            "failing": [" ".join(filter(None, key)) for key in sorted(seen.failing)],
        }
        return _make(not reasons, body)

    def _ledger_answers(self) -> bool:
        try:
            self.ledger.now()
        except BacklogError:
            return False
        return True


def _make(good: bool, body: dict[str, Any]) -> Health:
    return Health(200 if good else 503, body)


def _find_age(seen: Seen, cluster: str, now: datetime) -> float | None:
    times = [status.taken_at for status in seen.streams.values() if status.cluster == cluster]
    if cluster in seen.clusters:
        times.append(seen.clusters[cluster].taken_at)
    return None if not times else max(0.0, (now - max(times)).total_seconds())
