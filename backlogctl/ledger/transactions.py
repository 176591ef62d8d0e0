"""What is known of transactions: ranges without data, and those that operators aborted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime

from sqlalchemy import ColumnElement, Index, delete, insert, select, update

from backlogctl.errors import UsageError
from backlogctl.ledger.schema import Manager, among, read_value, table_of, take_id


@dataclass(frozen=True, slots=True)
class EmptyRange:
    """Offsets `[start, end)` that were read, as the stream's group reads, and held no data: control
    records, or what was aborted. Of each partition the last one is kept."""

    stream: str
    topic_id: str
    partition: int
    start: int
    end: int
    noted_at: datetime


empties = table_of("backlog_empty_ranges", EmptyRange, key=("stream", "topic_id", "partition"))


class Empties(Manager):
    """Ranges without data: what expires of them was no message."""

    def note(
        self, stream: str, topic_id: str, found: Mapping[int, tuple[int, int]], at: datetime
    ) -> None:
        """Keeps `[start, end)` by partition in place of what was known of it."""
        if not found:
            return
        rows = [EmptyRange(stream, topic_id, number, *one, at) for number, one in found.items()]
        with self._database.write() as connection:
            where = _belongs(stream, topic_id), empties.c.partition.in_(found)
            connection.execute(delete(empties).where(*where))
            connection.execute(insert(empties), [asdict(row) for row in rows])

    def list(
        self, stream: str | Collection[str]
    ) -> dict[tuple[str, str], dict[int, tuple[int, int]]]:
        """By stream and topic id, and by partition, the last range; of one stream or of some."""
        query = among(select(empties), empties.c.stream, stream)
        found: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}
        for one in self._list(query, EmptyRange):
            found.setdefault((one.stream, one.topic_id), {})[one.partition] = one.start, one.end
        return found


def _belongs(stream: str, topic_id: str) -> ColumnElement[bool]:
    return (empties.c.stream == stream) & (empties.c.topic_id == topic_id)


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An operator's abort of a transaction that was open.

    Attributes:
        start: the offset of its first message on the partition.
        transactional_id: None where no coordinator knew it.
        discarded: how many messages it had written there; None where they were not counted.
        held: offsets that lay behind it, its own included.
        how: what was done; "" where it was not, or that is unknown: a crash.
        failure: why it was not.
    """

    id: str
    stream: str
    cluster: str
    topic: str
    partition: int
    start: int
    producer_id: int
    producer_epoch: int
    transactional_id: str | None
    discarded: int | None
    held: int
    actor: str
    at: datetime
    how: str = ""
    failure: str = ""


aborts = table_of(
    "backlog_aborted_transactions",
    AbortedTransaction,
    Index("backlog_aborted_transactions_by_stream", "stream", "at"),
    key=("id",),
)


class Aborts(Manager):
    """Operators' aborts; each is on record before Kafka is asked for it."""

    def begin(self, asked: AbortedTransaction) -> AbortedTransaction:
        """Puts on record that one is about to be aborted; `id` and `at` are the ledger's."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            made = replace(asked, id=take_id(connection, "t", now), at=now)
            row = {each.name: getattr(made, each.name) for each in fields(made)}
            connection.execute(insert(aborts).values(**row))
        return made

    def end(self, abort_id: str, *, how: str = "", failure: str = "") -> AbortedTransaction:
        """What came of it.

        Raises:
            UsageError: there is no such abort.
        """
        with self._database.write() as connection:
            query = select(aborts).where(aborts.c.id == abort_id)
            found = read_value(connection, query, AbortedTransaction)
            if found is None:
                raise UsageError("there is no such abort", subject=f"abort {abort_id}")
            change = update(aborts).where(aborts.c.id == abort_id)
            connection.execute(change.values(how=how, failure=failure))
        return replace(found, how=how, failure=failure)

    def list(self, stream: str) -> tuple[AbortedTransaction, ...]:
        """Those of a stream, newest first."""
        query = select(aborts).where(aborts.c.stream == stream)
        return self._list(
            query.order_by(aborts.c.at.desc(), aborts.c.id.desc()), AbortedTransaction
        )
