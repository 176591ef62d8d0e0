"""Which rows may be claimed: the first of each key, found at the cost of what is found.

A key's first row that is not sent is its head. Any number of rows may wait behind one: they are
stepped over along the index by `ordering_key` and `id`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    and_,
    any_,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY

from backlogctl_delivery.outbox.database import LONGEST_LEASE_MS, State, clock_ms, messages

_c = messages.c
_later = messages.alias("later")
_IN_ORDER = (_later.c.ordering_key, _later.c.id)
# By so much two readings of one clock may differ.
_SKEW_MS = 1_000
# Looked up once for a statement: then PostgreSQL reads of the index only what is due.
IS_DUE = _c.due_at <= select(clock_ms()).scalar_subquery()
# Rows that may be claimed whenever their attempt comes: new ones, or of a lease that has ended.
IS_FREE = or_(_c.state == State.PENDING, IS_DUE)
_soon = clock_ms() + _SKEW_MS
# More than a moment later than the database's clock can have said: when it was written; and when it
# is due, of a row that failed, or is leased.
IS_AHEAD = or_(
    and_(_c.state == State.PENDING, _c.interval_ms == 0, _c.created_at > _soon),
    and_(_c.state == State.PENDING, _c.interval_ms > 0, _c.due_at > _soon + _c.interval_ms),
    and_(_c.state == State.IN_PROGRESS, _c.due_at > _soon + LONGEST_LEASE_MS),
)


def is_one_of(
    connection: Connection, column: ColumnElement[Any], values: Sequence[int] | Select[int]
) -> ColumnElement[bool]:
    """`column IN (...)`; in PostgreSQL as one array, since to write 500 parameters takes longer
    than the database needs for them."""
    if isinstance(values, Select):
        # Found first, as a list is.
        return column == any_(func.array(values.scalar_subquery()))
    if connection.dialect.name == "postgresql":
        return column == any_(literal(list(values), ARRAY(BigInteger)))
    return column.in_(values)


def _find_first(connection: Connection, rows: FromClause) -> ColumnElement[int]:
    """The head of a row's key; NULL without one."""
    is_of_key = _later.c.ordering_key == rows.c.ordering_key
    if not _is_mysql(connection):
        # PostgreSQL would look for `=` along the primary key, through all that is sent.
        is_of_key = _later.c.ordering_key >= rows.c.ordering_key
    of_key = select(_later.c.id).where(is_of_key, *_has_index(connection, _later.c))
    return of_key.order_by(*_IN_ORDER).limit(1).correlate(rows).scalar_subquery()


def select_first(connection: Connection, rows: Select[int, int | None]) -> Select[int]:
    """Those of these rows that are heads."""
    given = rows.subquery("looked_at")
    first = _find_first(connection, given)
    return select(given.c.id).where(func.coalesce(first, given.c.id) == given.c.id)


def select_heads(connection: Connection, ids: Sequence[int]) -> Select[int]:
    """The heads of the keys of these rows."""
    first = func.coalesce(_find_first(connection, messages), _c.id)
    of_them = is_one_of(connection, _c.id, ids), _c.due_at.is_not(None)
    return select(first).where(*of_them).distinct()


def select_by_key(
    connection: Connection, after: int | None, most: int
) -> Select[int, int | None, bool]:
    """So many rows in the order of their keys, from the key after this one on."""
    rows = select(_c.id, _c.ordering_key, IS_DUE.label("is_due")).order_by(_c.ordering_key, _c.id)
    start = _c.ordering_key.is_not(None) if after is None else _c.ordering_key > after
    return rows.where(start, *_has_index(connection, _c)).limit(most)


def select_runs(
    connection: Connection, heads: Sequence[int], depth: int
) -> Select[int, int | None, bool]:
    """Of the keys of these heads so many rows, and whether each is free."""
    begun = select(_c.id, _c.ordering_key, literal(1).label("place"))
    run = begun.where(is_one_of(connection, _c.id, heads)).cte("run", recursive=True)
    later, at = _later.c, run.c
    # From row to row along the index, which PostgreSQL takes for a tuple, and InnoDB does not.
    is_next: ColumnElement[bool] = tuple_(*_IN_ORDER) > tuple_(at.ordering_key, at.id)
    if _is_mysql(connection):
        is_next = and_(later.ordering_key == at.ordering_key, later.id > at.id)
    following = select(later.id).where(is_next, *_has_index(connection, later))
    next_id = following.order_by(*_IN_ORDER).limit(1).correlate(run).scalar_subquery()
    step = (
        select(_c.id, _c.ordering_key, at.place + 1)
        .select_from(run.join(messages, _c.id == next_id))
        .where(at.place < depth, _c.ordering_key == at.ordering_key)
    )
    rows = run.union_all(step)
    return (
        select(_c.id, _c.ordering_key, IS_FREE.label("free"))
        .select_from(rows.join(messages, rows.c.id == _c.id))
        .order_by(_c.ordering_key, _c.id)
    )


def _is_mysql(connection: Connection) -> bool:
    return connection.dialect.name in ("mysql", "mariadb")


def _has_index(connection: Connection, columns: Any) -> Sequence[ColumnElement[bool]]:
    """What a partial index says of its rows; without one it would be another to choose."""
    return () if _is_mysql(connection) else (columns.due_at.is_not(None),)
