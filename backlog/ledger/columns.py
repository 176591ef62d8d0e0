"""Column types that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, String, Text, TypeDecorator
from sqlalchemy.types import TypeEngine

from backlog.clock import format_time, read_time


def encode_json(value: Any) -> str:
    """Canonical JSON: sorted keys, no blanks, ASCII. Hashes are made over this text.

    Raises:
        TypeError, ValueError: for what JSON does not have (NaN, bytes, ...).
    """
    if isinstance(value, Mapping):
        value = dict(value)
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


class UtcTime(TypeDecorator[datetime]):
    """An aware time in UTC to the microsecond; on SQLite a text that sorts as the times do."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Text of fixed width on SQLite, TIMESTAMP WITH TIME ZONE elsewhere."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(String(27))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Refuses naive times: nobody can say later which zone they meant."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return format_time(value) if dialect.name == "sqlite" else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Always aware, always UTC."""
        if value is None:
            return None
        return read_time(value) if isinstance(value, str) else value.astimezone(UTC)


class JsonText(TypeDecorator[Any]):
    """JSON as canonical text.

    Text and not JSONB: JSONB rewrites numbers and refuses NUL escapes, and then what is read back
    does not hash to what was written.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else encode_json(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)
