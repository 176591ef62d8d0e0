"""Bookmarks: which message a committed offset pointed at, for the time when it is gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import groupby

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Index,
    Text,
    delete,
    exists,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite

from backlogctl.ledger.samples import begin_of_all, find_cell
from backlogctl.ledger.schema import Manager, gaps, table_of
from backlogctl.values import Bookmark
from backlogctl_delivery.database import UtcTime

BATCH = 500


bookmarks = table_of(
    "backlog_bookmarks",
    Bookmark,
    Column("stream", Text, nullable=False),
    Column("group_id", Text, nullable=False, key="group"),
    Column("topic_id", Text, nullable=False),
    Column("noted_at", UtcTime, nullable=False),
    Index(
        *("backlog_bookmarks_one_per_commit", "stream", "group", "topic_id"),
        *("partition", "committed"),
        unique=True,
    ),
)


class Bookmarks(Manager):
    def add(
        self,
        stream: str,
        group: str,
        topic_id: str,
        noted: Iterable[Bookmark],
        noted_at: datetime,
    ) -> None:
        """Notes bookmarks; a commit that has one keeps it."""
        place = {"stream": stream, "group": group, "topic_id": topic_id, "noted_at": noted_at}
        rows = [{**asdict(each), **place} for each in noted]
        if not rows:
            return
        insert = sqlite.insert if self._database.is_sqlite else postgresql.insert
        with self._database.write() as connection:
            connection.execute(insert(bookmarks).on_conflict_do_nothing(), rows)

    def list(self, stream: str, group: str, topic_id: str) -> tuple[Bookmark, ...]:
        """Bookmarks by partition and committed offset."""
        query = select(bookmarks).where(*_belongs(stream, group, topic_id))
        return self._list(query.order_by(bookmarks.c.partition, bookmarks.c.committed), Bookmark)

    def find_noted(
        self, stream: str, group: str, topic_id: str, commits: Mapping[int, int]
    ) -> frozenset[int]:
        """The partitions of which the committed offset has a bookmark."""
        place = tuple_(bookmarks.c.partition, bookmarks.c.committed)
        query = select(bookmarks.c.partition).where(*_belongs(stream, group, topic_id))
        noted: set[int] = set()
        wanted = sorted(commits.items())
        with self._database.read() as connection:
            for begin in range(0, len(wanted), BATCH):
                batch = query.where(place.in_(wanted[begin : begin + BATCH]))
                noted.update(connection.execute(batch).scalars())
        return frozenset(noted)

    def thin(self, now: datetime, horizon: timedelta) -> int:
        """Deletes bookmarks with age; doing it twice deletes nothing more.

        Kept of each partition: all younger than 1 h; the first and the last of each cell of time
        that samples have; the newest; and those at the start or the end of a recorded gap, however
        old they are.

        Returns:
            How many were deleted.
        """
        with self._database.read() as connection:
            doomed = _find_doomed(connection, now, horizon)
        # Asked when they are deleted: a gap may have been recorded meanwhile.
        at_gap = exists().where(
            *(
                gaps.c[name] == bookmarks.c[name]
                for name in ("stream", "group", "topic_id", "partition")
            ),
            or_(
                gaps.c.start == bookmarks.c.committed,
                gaps.c.end == bookmarks.c.committed,
            ),
        )
        deleted = 0
        for begin in range(0, len(doomed), BATCH):
            batch = bookmarks.c.id.in_(doomed[begin : begin + BATCH])
            with self._database.write() as connection:
                deleted += connection.execute(delete(bookmarks).where(batch, ~at_gap)).rowcount
        return deleted


def _belongs(stream: str, group: str, topic_id: str) -> tuple[ColumnElement[bool], ...]:
    return (
        bookmarks.c.stream == stream,
        bookmarks.c.group == group,
        bookmarks.c.topic_id == topic_id,
    )


def _find_doomed(connection: Connection, now: datetime, horizon: timedelta) -> list[int]:
    columns = bookmarks.c
    place = (columns.stream, columns.group, columns.topic_id, columns.partition)
    query = (
        select(columns.id, columns.noted_at, *place)
        .where(columns.noted_at < begin_of_all(now, horizon))
        .order_by(*place, columns.noted_at, columns.id)
        .execution_options(yield_per=5000)
    )
    doomed: list[int] = []
    for _, of_place in groupby(connection.execute(query), key=lambda row: tuple(row[2:])):
        known = list(of_place)
        for cell, rows in groupby(known, key=lambda row: find_cell(row[1], now, horizon)):
            ids = [row[0] for row in rows]
            doomed += ids if cell is None else ids[1:-1]
        if doomed and doomed[-1] == known[-1][0]:
            doomed.pop()  # too old, and perhaps the newest
    return doomed
