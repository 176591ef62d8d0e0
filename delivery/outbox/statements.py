"""The statements of claims and marks, as each database takes them best."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
from sqlalchemy.types import TypeEngine

from delivery.outbox.messages import Message, read_headers
from delivery.outbox.tables import clock_ms, messages

_c = messages.c
# As many ids stand in one statement.
_MOST_IDS = 500


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A message that Kafka has, and where; None where Kafka did not say.

    `at`: when it said so, by the monotonic clock: the mark may follow much later.
    """

    message: Message
    partition: int | None
    offset: int | None
    at: float = field(default_factory=time.monotonic)


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
    """These rows, each with its place in Kafka, and when that had it by the database's clock."""
    ids = [item.message.id for item in told]
    now = time.monotonic()
    values: dict[str, tuple[TypeEngine[int], list[int | None]]] = {
        "sent_partition": (Integer(), [item.partition for item in told]),
        "sent_offset": (BigInteger(), [item.offset for item in told]),
        "age": (BigInteger(), [int(1_000 * (now - item.at)) for item in told]),
    }
    found: dict[str, ColumnElement[Any]]
    if connection.dialect.name == "postgresql":
        arrays = [literal(given, ARRAY(kind)) for kind, given in values.values()]
        columns = [column(name, kind) for name, (kind, _) in values.items()]
        place = (
            func.unnest(literal(ids, ARRAY(BigInteger)), *arrays)
            .table_valued(column("id", BigInteger), *columns, name="place")
            .render_derived()
        )
        found, is_told = {name: place.c[name] for name in values}, _c.id == place.c.id
    else:
        found = {
            name: case(dict(zip(ids, given, strict=True)), value=_c.id)
            for name, (_, given) in values.items()
        }
        is_told = _c.id.in_(ids)
    age = found.pop("age")
    return update(messages).where(is_told).values(**found, sent_at=clock_ms() - age)


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
