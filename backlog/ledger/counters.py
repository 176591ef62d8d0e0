"""Ids such as `g-20261121-0001`, counted by the database."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, text

_TAKE = text(
    "INSERT INTO backlog_counters (name, value) VALUES (:name, 1)"
    " ON CONFLICT (name) DO UPDATE SET value = backlog_counters.value + 1 RETURNING value"
)


def take_id(connection: Connection, letter: str, at: datetime) -> str:
    """The next id of a UTC day: `<letter>-YYYYMMDD-NNNN`; never given twice, gaps are possible."""
    prefix = f"{letter}-{at.astimezone(UTC):%Y%m%d}"
    number = connection.execute(_TAKE, {"name": prefix}).scalar_one()
    return f"{prefix}-{int(number):04d}"
