"""The statements of claims and marks, as each database takes them best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Update,
    any_,
    bindparam,
    case,
    column,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from delivery.outbox.messages import Message, read_headers
from delivery.outbox.tables import messages

_c = messages.c
# As many ids stand in one statement.
_MOST_IDS = 500


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A message that Kafka has, and where; None where Kafka did not say."""

    message: Message
    partition: int | None
    offset: int | None


READ = select(
    _c.id,
    _c.token,
    _c.message_id,
    _c.topic,
    _c.lane,
    _c.attempts,
    _c.max_attempts,
    _c.interval_ms,
    _c.message_key,
    _c.value,
    _c.headers,
)


def read_row(row: Any) -> Message:
    """A row of `READ`."""
    return Message(
        id=row.id,
        token=row.token,
        message_id=row.message_id,
        topic=row.topic,
        lane=row.lane,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        interval_ms=row.interval_ms,
        key=row.message_key,
        value=row.value,
        headers=read_headers(row.headers),
    )


def make_failing(due: ColumnElement[int] | int) -> Update:
    """A failed attempt: given back for a later one, or parked."""
    return (
        update(messages)
        .where(_c.id == bindparam("row"), _c.token == bindparam("held"))
        .values(
            state=bindparam("new_state"),
            due_at=due,
            token=None,
            interval_ms=bindparam("gap"),
            attempts=_c.attempts + bindparam("more"),
            last_error=bindparam("why"),
        )
    )


def make_sent(connection: Connection, told: Sequence[Acknowledged]) -> Update:
    """These rows, each with its place in Kafka."""
    ids = [item.message.id for item in told]
    if connection.dialect.name == "postgresql":
        arrays = (
            literal(ids, ARRAY(BigInteger)),
            literal([item.partition for item in told], ARRAY(Integer)),
            literal([item.offset for item in told], ARRAY(BigInteger)),
        )
        columns = (
            column("id", BigInteger),
            column("partition", Integer),
            column("offset", BigInteger),
        )
        place = func.unnest(*arrays).table_valued(*columns, name="place").render_derived()
        return (
            update(messages)
            .where(_c.id == place.c.id)
            .values(sent_partition=place.c.partition, sent_offset=place.c.offset)
        )
    return (
        update(messages)
        .where(_c.id.in_(ids))
        .values(
            sent_partition=case({item.message.id: item.partition for item in told}, value=_c.id),
            sent_offset=case({item.message.id: item.offset for item in told}, value=_c.id),
        )
    )


def is_one_of(
    connection: Connection, column: ColumnElement[Any], values: Sequence[int]
) -> ColumnElement[bool]:
    """`column IN (...)`; in PostgreSQL as one array, since to write 500 parameters takes longer
    than the database needs for them."""
    if connection.dialect.name == "postgresql":
        return column == any_(literal(list(values), ARRAY(BigInteger)))
    return column.in_(values)


def cut(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[at : at + _MOST_IDS] for at in range(0, len(ids), _MOST_IDS))
