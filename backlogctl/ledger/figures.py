"""Figures of the whole ledger, counted by the database and without the plans, which are large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import BigInteger, Text, and_, cast, exists, func, or_, select, type_coerce

from backlogctl.ledger.events import get_recovery
from backlogctl.ledger.schema import Manager, events, gaps, recoveries, recovery_gaps
from backlogctl.values import FINAL, Cause, GapState, RecoveryState
from backlogctl_delivery.database import UtcTime


@dataclass(frozen=True, slots=True)
class GapFigure:
    """Gaps of one kind; `offsets` are those of the gaps whose range is known, None of none.

    Messages that never had an offset count by their sequences.
    """

    cluster: str
    stream: str
    group: str
    topic: str
    state: GapState
    cause: Cause
    count: int
    offsets: int | None


@dataclass(frozen=True, slots=True)
class RecoveryFigure:
    """A recovery without its plan; `since` is when it came into its state.

    `has_gaps` says whether it was planned for gaps, so that it puts messages back.
    """

    id: str
    kind: str
    stream: str
    state: RecoveryState
    since: datetime
    injected: int
    lease_until: datetime | None
    stops_consumers: bool
    has_gaps: bool


class Figures(Manager):
    def gaps(self) -> tuple[GapFigure, ...]:
        """Every gap of the ledger, by stream, state and cause."""
        names = ("cluster", "stream", "group", "topic", "state", "cause")
        keys = [gaps.c[name] for name in names]
        offsets = func.sum(
            func.coalesce(
                gaps.c.end - gaps.c.start, gaps.c.last_sequence - gaps.c.first_sequence + 1
            )
        )
        query = (
            select(*keys, func.count().label("count"), cast(offsets, BigInteger).label("offsets"))
            .group_by(*keys)
            .order_by(*keys)
        )
        return self._list(query, GapFigure)

    def planned_counts(self, recovery_id: str) -> Mapping[str, int]:
        """How many messages a stored plan has of each sort, by name; empty where it does not say.

        Raises:
            UsageError: there is no such recovery.
        """
        with self._database.read() as connection:
            plan = get_recovery(connection, recovery_id).plan
        return dict((plan.get("outcome") or {}).get("counts") or {})

    def recoveries(self) -> tuple[RecoveryFigure, ...]:
        """Those that are not at an end, and the last of each stream; oldest first."""
        newest = select(recoveries.c.stream, func.max(recoveries.c.created_at).label("at"))
        last = newest.group_by(recoveries.c.stream).subquery()
        is_last = and_(last.c.stream == recoveries.c.stream, last.c.at == recoveries.c.created_at)
        names = ("id", "kind", "stream", "state", "injected", "lease_until", "stops_consumers")
        columns = [recoveries.c[name] for name in (*names, "created_at")]
        since = func.coalesce(
            func.max(events.c.at, type_=UtcTime()), recoveries.c.created_at, type_=UtcTime()
        )
        has_gaps = exists().where(recovery_gaps.c.recovery_id == recoveries.c.id)
        changed = and_(
            events.c.recovery_id == recoveries.c.id,
            events.c.action == type_coerce(recoveries.c.state, Text),
        )
        query = (
            select(*columns, since.label("since"), has_gaps.label("has_gaps"))
            .select_from(recoveries.outerjoin(last, is_last).outerjoin(events, changed))
            .where(or_(recoveries.c.state.not_in(FINAL), last.c.at.is_not(None)))
            .group_by(*columns)
            .order_by(recoveries.c.created_at, recoveries.c.id)
        )
        return self._list(query, RecoveryFigure)
