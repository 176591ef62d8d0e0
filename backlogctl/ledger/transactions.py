"""What is known of transactions: ranges without data, and those that operators aborted."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import datetime

from sqlalchemy import Index, insert, select, update

from backlogctl.errors import UsageError
from backlogctl.ledger.schema import Manager, read_value, table_of, take_id


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
