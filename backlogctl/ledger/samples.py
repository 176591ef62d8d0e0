"""Samples: the timeline that turns offsets into times, and the witness of vanished commits."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from itertools import groupby

from sqlalchemy import (
    Connection,
    Index,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from backlogctl.ledger.schema import Manager, among, read_values, table_of
from backlogctl.values import PartitionSample, Sample
from backlogctl_delivery.database import UtcTime

# How the past is thinned with age: all of the last hour, then by cells of time.

# The oldest must still reach back over the usual retentions, or no loss could be dated.
KEEP_ALL = timedelta(hours=1)
FINE_STEP = timedelta(minutes=5)
COARSE_STEP = timedelta(hours=1)
KEEP_COARSE = timedelta(days=35)
_BATCH = 500


def begin_of_all(now: datetime, horizon: timedelta) -> datetime:
    """From here on everything is kept."""
    return now - min(KEEP_ALL, horizon)


def find_cell(at: datetime, now: datetime, horizon: timedelta) -> tuple[timedelta, int] | None:
    """The cell of a time: 5 minutes up to `horizon`, then an hour.

    None where it is more than 35 days ago, or `horizon` where that is longer.
    """
    age = now - at
    if age > max(horizon, KEEP_COARSE):
        return None
    step = FINE_STEP if age <= horizon else COARSE_STEP
    return step, int(at.timestamp() // step.total_seconds())


def list_thinned(
    rows: Iterable[tuple[int, datetime, Hashable]], now: datetime, horizon: timedelta
) -> list[int]:
    """Ids of the rows (id, time, key; oldest first) other than the first of each key and cell."""
    filled: set[Hashable] = set()
    thinned = []
    for row_id, at, key in rows:
        cell = find_cell(at, now, horizon)
        if cell is None or (key, cell) in filled:
            thinned.append(row_id)
        filled.add((key, cell))
    return thinned


def delete_rows(connection: Connection, table: Table, ids: Sequence[int]) -> None:
    for begin in range(0, len(ids), _BATCH):
        batch = table.c.id.in_(ids[begin : begin + _BATCH])
        connection.execute(delete(table).where(batch))


@dataclass(frozen=True, slots=True)
class CommitMark:
    """What a group is known to have committed on a partition; outlives the thinned samples.

    `max_committed` is the highest offset ever seen within the log, `last_committed` the newest one
    seen, at `seen_at`; a sample without a committed offset does not change them. `outside`: the
    group is read from without joining.
    """

    stream: str
    group: str
    topic_id: str
    partition: int
    max_committed: int
    last_committed: int
    seen_at: datetime
    outside: bool = False


@dataclass(frozen=True, slots=True)
class KeptPast:
    """What a watch made of a group's past up to the sample of that time, and of its rhythm: JSON
    for the modules that wrote it. `form`: what it means to them."""

    stream: str
    cluster: str
    topic: str
    group: str
    taken_at: datetime
    form: str
    past: str
    rhythm: str


samples = table_of(
    "backlog_samples", Sample, Index("backlog_samples_by_time", "stream", "taken_at")
)
_MARK_KEY = ("stream", "group", "topic_id", "partition")
_MarkKey = tuple[str, str, str, int]
commit_marks = table_of("backlog_commit_marks", CommitMark, key=_MARK_KEY)
kept_pasts = table_of("backlog_kept_pasts", KeptPast, key=("stream",))


class Samples(Manager):
    def add(self, sample: Sample, *, outside: bool = False) -> None:
        """Stores a sample and moves the stream's commit marks, in one transaction.

        Args:
            outside: the group is read from without joining; kept for ever.
        """
        self.add_all([(sample, outside)])

    def add_all(self, taken: Sequence[tuple[Sample, bool]]) -> None:
        """`add` of many samples with their `outside`, all or none."""
        if not taken:
            return
        ordered = sorted(taken, key=lambda one: (one[0].stream, one[0].taken_at))
        names = dict.fromkeys(sample.stream for sample, _ in ordered)
        columns = [each.name for each in fields(Sample)]
        rows = [{name: getattr(sample, name) for name in columns} for sample, _ in ordered]
        with self._database.write() as connection:
            for name in names:
                self._database.lock_name(connection, f"samples:{name}")
            connection.execute(insert(samples), rows)
            _move_marks(connection, ordered, tuple(names))

    def latest(self, stream: str) -> Sample | None:
        query = (
            select(samples)
            .where(samples.c.stream == stream)
            .order_by(samples.c.taken_at.desc(), samples.c.id.desc())
        )
        return self._first(query, Sample)

    def history(
        self, stream: str, since: datetime | None = None, before: datetime | None = None
    ) -> tuple[Sample, ...]:
        """Samples of a stream, oldest first; `since` is included."""
        query = select(samples).where(samples.c.stream == stream)
        if since is not None:
            query = query.where(samples.c.taken_at >= since)
        if before is not None:
            query = query.where(samples.c.taken_at < before)
        return self._list(query.order_by(samples.c.taken_at, samples.c.id), Sample)

    def histories(
        self, streams: Collection[str], since: datetime
    ) -> Mapping[str, tuple[Sample, ...]]:
        """By stream the samples of many, oldest first; `since` is included."""
        order = (samples.c.stream, samples.c.taken_at, samples.c.id)
        query = select(samples).where(samples.c.taken_at >= since).order_by(*order)
        found = self._list(among(query, samples.c.stream, streams), Sample)
        return {name: tuple(some) for name, some in groupby(found, lambda one: one.stream)}

    def firsts(self, streams: Collection[str]) -> tuple[Sample, ...]:
        """The oldest that is kept of each stream."""
        # The index alone tells it.
        times = select(samples.c.stream, func.min(samples.c.taken_at).label("taken_at"))
        oldest = among(times, samples.c.stream, streams).group_by(samples.c.stream).subquery()
        same = [samples.c[name] == oldest.c[name] for name in ("stream", "taken_at")]
        return self._list(select(samples).join(oldest, and_(*same)), Sample)

    def committed_marks(self, streams: str | Collection[str]) -> tuple[CommitMark, ...]:
        """What was ever seen committed, by stream, group, topic id and partition."""
        query = among(select(commit_marks), commit_marks.c.stream, streams)
        return self._list(query.order_by(*commit_marks.primary_key), CommitMark)

    def keep_pasts(self, pasts: Sequence[KeptPast]) -> None:
        """Each in the place of an older one."""
        if not pasts:
            return
        new = (sqlite if self._database.is_sqlite else postgresql).insert(kept_pasts)
        newer = new.on_conflict_do_update(
            index_elements=[kept_pasts.c.stream],
            set_={one.key: new.excluded[one.key] for one in kept_pasts.c},
            where=new.excluded.taken_at > kept_pasts.c.taken_at,
        )
        with self._database.write() as connection:
            self._database.lock_name(connection, "kept pasts")
            connection.execute(newer, [asdict(one) for one in pasts])

    def kept_pasts(self, streams: Collection[str]) -> tuple[KeptPast, ...]:
        """Those that there are."""
        return self._list(among(select(kept_pasts), kept_pasts.c.stream, streams), KeptPast)

    def thin(self, now: datetime, horizon: timedelta) -> int:
        """Deletes samples with age; doing it twice deletes nothing more.

        Kept: all younger than 1 h; the first of each 5 minutes up to `horizon`; the first of each
        hour up to 35 days, or `horizon` where that is longer; and always the newest of each
        stream. Commit marks are not touched.

        Returns:
            How many were deleted.
        """
        old = samples.c.taken_at < begin_of_all(now, horizon)
        query = select(samples.c.id, samples.c.taken_at, samples.c.stream).where(old)
        query = query.order_by(samples.c.taken_at, samples.c.id)
        last = func.max(samples.c.taken_at, type_=UtcTime())
        with self._database.write() as connection:
            groups = select(samples.c.stream, last).group_by(samples.c.stream)
            newest = {row[0]: row[1] for row in connection.execute(groups)}
            rows = [row for row in connection.execute(query) if row.taken_at != newest[row.stream]]
            thinned = list_thinned(map(tuple, rows), now, horizon)
            delete_rows(connection, samples, thinned)
        return len(thinned)


def _move_marks(
    connection: Connection, taken: Sequence[tuple[Sample, bool]], streams: Sequence[str]
) -> None:
    known: dict[_MarkKey, CommitMark] = {}
    for begin in range(0, len(streams), _BATCH):
        query = select(commit_marks).where(commit_marks.c.stream.in_(streams[begin:][:_BATCH]))
        known |= {_key_of(mark): mark for mark in read_values(connection, query, CommitMark)}
    moved: dict[_MarkKey, CommitMark] = {}
    for sample, outside in taken:
        for part in sample.partitions:
            if part.committed is None or part.at_start:
                continue
            key = (sample.stream, sample.group, sample.topic_id, part.partition)
            mark = moved.get(key) or known.get(key)
            moved[key] = _move_mark(mark, key, sample, part, part.committed, outside)
    new = [asdict(mark) for key, mark in moved.items() if key not in known]
    if new:
        connection.execute(insert(commit_marks), new)
    changed = [asdict(mark) for key, mark in moved.items() if key in known]
    if changed:
        keys = {name: f"key_{name}" for name in _MARK_KEY}
        where = and_(*(commit_marks.c[name] == bindparam(key) for name, key in keys.items()))
        rows = [{keys.get(name, name): value for name, value in row.items()} for row in changed]
        connection.execute(update(commit_marks).where(where), rows)


def _key_of(mark: CommitMark) -> _MarkKey:
    return mark.stream, mark.group, mark.topic_id, mark.partition


def _move_mark(
    mark: CommitMark | None,
    key: _MarkKey,
    sample: Sample,
    part: PartitionSample,
    committed: int,
    outside: bool,
) -> CommitMark:
    # One beyond the end was never read up to, and would hide later losses.
    if mark is None:
        return CommitMark(*key, min(committed, part.high), committed, sample.taken_at, outside)
    reached = committed if committed <= part.high else mark.max_committed
    return replace(
        mark,
        max_committed=max(mark.max_committed, reached),
        last_committed=committed if sample.taken_at >= mark.seen_at else mark.last_committed,
        seen_at=max(mark.seen_at, sample.taken_at),
        outside=mark.outside or outside,
    )
