"""The burn-down: samples of an expansion, for the live view and the report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import insert, select
from sqlalchemy.engine import RowMapping

from backlog.ledger.database import Database
from backlog.ledger.models import burndown


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


class Burndown:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, sample: BurndownSample) -> None:
        with self._database.write() as connection:
            connection.execute(insert(burndown).values(**asdict(sample)))

    def list(self, recovery_id: str, since: datetime | None = None) -> tuple[BurndownSample, ...]:
        """Samples of a recovery, oldest first; `since` is included."""
        query = select(burndown).where(burndown.c.recovery_id == recovery_id)
        if since is not None:
            query = query.where(burndown.c.at >= since)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(burndown.c.at, burndown.c.id)).mappings()
            return tuple(_to_sample(row) for row in rows)

    def latest(self, recovery_id: str) -> BurndownSample | None:
        query = select(burndown).where(burndown.c.recovery_id == recovery_id)
        query = query.order_by(burndown.c.at.desc(), burndown.c.id.desc()).limit(1)
        with self._database.read() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else _to_sample(row)


def _to_sample(row: RowMapping) -> BurndownSample:
    return BurndownSample(**{name: value for name, value in row.items() if name != "id"})
