"""Samples: the timeline that turns offsets into times, and the witness of vanished commits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.engine import RowMapping

from backlog.ledger.database import Database
from backlog.ledger.models import commit_marks, samples
from backlog.ledger.thinning import begin_of_all, find_cell
from backlog.values import PartitionSample, Sample


@dataclass(frozen=True, slots=True)
class CommitMark:
    """What a group is known to have committed on a partition; outlives the thinned samples.

    `max_committed` is the highest offset ever seen within the log, `last_committed` the newest one
    seen, at `seen_at`; a sample without a committed offset does not change them.
    """

    stream: str
    group: str
    topic_id: str
    partition: int
    max_committed: int
    last_committed: int
    seen_at: datetime


class Samples:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, sample: Sample) -> None:
        """Stores a sample and moves the stream's commit marks, in one transaction."""
        content = {
            "rows": [
                [p.partition, p.low, p.committed, p.lso, p.high, p.committed_epoch]
                for p in sample.partitions
            ],
            "group_state": sample.group_state,
            "took": sample.took,
        }
        with self._database.write() as connection:
            self._database.lock_name(connection, f"samples:{sample.stream}")
            connection.execute(
                insert(samples).values(
                    stream=sample.stream,
                    cluster=sample.cluster,
                    topic=sample.topic,
                    group_id=sample.group,
                    topic_id=sample.topic_id,
                    taken_at=sample.taken_at,
                    partitions=content,
                )
            )
            _move_marks(connection, sample)

    def latest(self, stream: str) -> Sample | None:
        query = (
            select(samples)
            .where(samples.c.stream == stream)
            .order_by(samples.c.taken_at.desc(), samples.c.id.desc())
            .limit(1)
        )
        with self._database.read() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else _to_sample(row)

    def history(self, stream: str, since: datetime | None = None) -> tuple[Sample, ...]:
        """Samples of a stream, oldest first; `since` is included."""
        query = select(samples).where(samples.c.stream == stream)
        if since is not None:
            query = query.where(samples.c.taken_at >= since)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(samples.c.taken_at, samples.c.id)).mappings()
            return tuple(_to_sample(row) for row in rows)

    def committed_marks(self, stream: str) -> tuple[CommitMark, ...]:
        """What was ever seen committed, by group, topic id and partition."""
        keys = (commit_marks.c.group_id, commit_marks.c.topic_id, commit_marks.c.partition)
        query = select(commit_marks).where(commit_marks.c.stream == stream).order_by(*keys)
        with self._database.read() as connection:
            return tuple(_to_mark(row) for row in connection.execute(query).mappings())

    def thin(self, now: datetime, horizon: timedelta) -> int:
        """Deletes samples with age; doing it twice deletes nothing more.

        Kept: all younger than 1 h; the first of each 5 minutes up to `horizon`; the first of each
        hour up to 35 days, or `horizon` where that is longer; and always the newest of each
        stream. Commit marks are not touched.

        Returns:
            How many were deleted.
        """
        query = select(samples.c.id, samples.c.stream, samples.c.taken_at).where(
            samples.c.taken_at < begin_of_all(now, horizon)
        )
        order = (samples.c.stream, samples.c.taken_at, samples.c.id)
        with self._database.write() as connection:
            newest = {
                row.stream: row.taken_at
                for row in connection.execute(
                    select(samples.c.stream, samples.c.taken_at).order_by(*order)
                )
            }
            seen: set[tuple[str, timedelta, int]] = set()
            doomed = []
            for row in connection.execute(query.order_by(*order)):
                if row.taken_at == newest[row.stream]:
                    continue
                cell = find_cell(row.taken_at, now, horizon)
                if cell is None or (row.stream, *cell) in seen:
                    doomed.append(row.id)
                else:
                    seen.add((row.stream, *cell))
            for begin in range(0, len(doomed), 500):
                connection.execute(
                    delete(samples).where(samples.c.id.in_(doomed[begin : begin + 500]))
                )
        return len(doomed)


def _move_marks(connection: Connection, sample: Sample) -> None:
    where = (
        (commit_marks.c.stream == sample.stream)
        & (commit_marks.c.group_id == sample.group)
        & (commit_marks.c.topic_id == sample.topic_id)
    )
    known = {
        row["partition"]: _to_mark(row)
        for row in connection.execute(select(commit_marks).where(where)).mappings()
    }
    for each in sample.partitions:
        if each.committed is None:
            continue
        mark = known.get(each.partition)
        if mark is None:
            connection.execute(
                insert(commit_marks).values(
                    stream=sample.stream,
                    group_id=sample.group,
                    topic_id=sample.topic_id,
                    partition=each.partition,
                    max_committed=min(each.committed, each.high),
                    last_committed=each.committed,
                    seen_at=sample.taken_at,
                )
            )
            continue
        newer = sample.taken_at >= mark.seen_at
        # One beyond the end was never read up to, and would hide later losses.
        reached = each.committed if each.committed <= each.high else mark.max_committed
        connection.execute(
            update(commit_marks)
            .where(where & (commit_marks.c.partition == each.partition))
            .values(
                max_committed=max(mark.max_committed, reached),
                last_committed=each.committed if newer else mark.last_committed,
                seen_at=max(mark.seen_at, sample.taken_at),
            )
        )


def _to_mark(row: RowMapping) -> CommitMark:
    return CommitMark(
        stream=row["stream"],
        group=row["group_id"],
        topic_id=row["topic_id"],
        partition=row["partition"],
        max_committed=row["max_committed"],
        last_committed=row["last_committed"],
        seen_at=row["seen_at"],
    )


def _to_sample(row: RowMapping) -> Sample:
    return Sample(
        stream=row["stream"],
        cluster=row["cluster"],
        topic=row["topic"],
        group=row["group_id"],
        topic_id=row["topic_id"],
        taken_at=row["taken_at"],
        partitions=tuple(PartitionSample(*each) for each in row["partitions"]["rows"]),
        group_state=row["partitions"]["group_state"],
        took=row["partitions"]["took"],
    )
