"""The burn-down: samples of an expansion, for the live view and the report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Index, insert, select

from backlog.ledger.database import Manager
from backlog.ledger.models import table_of


@dataclass(frozen=True, slots=True)
class BurndownSample:
    """What is left at one moment, in messages.

    `relayed` and `handled` are totals since the expansion began; `consumers` those that run, None
    where the launcher cannot tell.
    """

    recovery_id: str
    at: datetime
    step: str
    source_lag: int
    temporary_lag: int
    relayed: int
    handled: int
    consumers: int | None = None


burndown = table_of(
    "backlog_burndown", BurndownSample, Index("backlog_burndown_by_time", "recovery_id", "at")
)


class Burndown(Manager):
    def add(self, sample: BurndownSample) -> None:
        with self._database.write() as connection:
            connection.execute(insert(burndown).values(**asdict(sample)))

    def list(self, recovery_id: str, since: datetime | None = None) -> tuple[BurndownSample, ...]:
        """Samples of a recovery, oldest first; `since` is included."""
        query = select(burndown).where(burndown.c.recovery_id == recovery_id)
        if since is not None:
            query = query.where(burndown.c.at >= since)
        return self._list(query.order_by(burndown.c.at, burndown.c.id), BurndownSample)

    def latest(self, recovery_id: str) -> BurndownSample | None:
        query = select(burndown).where(burndown.c.recovery_id == recovery_id)
        return self._first(
            query.order_by(burndown.c.at.desc(), burndown.c.id.desc()), BurndownSample
        )
