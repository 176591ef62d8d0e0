"""Candidate rows: read once, in parallel ranges, within time bounds, and frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from sqlalchemy.engine import Engine

from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.messages.rules import MessageRules, build_messages
from backlogctl.spark_backfill.messages.windows import (
    Bounds,
    find_number_time,
    is_indexable,
    join_conditions,
)
from backlogctl.spark_backfill.sources.columns import EVERYTHING, MIN_ROWS, Projection, list_ranges
from backlogctl.spark_backfill.sources.databases import ColumnKind, JdbcAccess
from backlogctl.spark_backfill.sources.reflection import SourceTable

if TYPE_CHECKING:
    from backlogctl.config import StreamSource


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """One table and its two ways in: SQLAlchemy for names and counts, JDBC for rows.

    `wanted`: which of its rows are the stream's, as SQL; empty for all.
    """

    spark: SparkSession
    engine: Engine = field(repr=False)
    jdbc: JdbcAccess
    table: SourceTable
    timezone: str
    connections: int
    wanted: str = ""

    @property
    def subject(self) -> str:
        """For error messages."""
        return f"table {self.table.label} of {self.table.database}"


def find_newest(access: SourceAccess, source: StreamSource, rows: int) -> datetime | None:
    """The time from which on the stream has about so many rows.

    None where Spark reads the whole table anyway, or it has fewer.
    """
    table = access.table
    column = table.column(source.time_column)
    if not is_indexable(table, column.name):
        return None
    q = table.engine.quote_name(column.name)
    at = table.engine.find_instant(column, q, access.timezone)
    # What no time can be read of is neither old nor new.
    where = join_conditions(access.wanted, table.engine.has_number(q))
    statement = (
        f"SELECT {at} FROM {table.quoted} WHERE {where} ORDER BY {q} DESC LIMIT 1 OFFSET {rows:d}"
    )
    doing = f"look for the {rows} newest rows"
    with translating(doing, subject=access.subject), access.engine.connect() as connection:
        found = connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
        newest = found.scalar_one_or_none()
    if column.kind is ColumnKind.INTEGER:
        return find_number_time(newest, source)
    if newest is None:
        return None
    return table.engine.read_instant(column, newest, access.timezone)


def count_rows(access: SourceAccess, where: str) -> int:
    """The stream's rows that `where` takes, counted by the database."""
    projection = Projection(access.table, (), (), access.timezone)
    with translating("count rows", subject=access.subject), access.engine.connect() as connection:
        statement = projection.count(join_conditions(access.wanted, where))
        found = connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
        return int(found.scalar_one())


def read_rows(
    access: SourceAccess,
    rules: MessageRules,
    where: str,
    *,
    rows: int,
    min_rows: int = MIN_ROWS,
) -> DataFrame:
    """The stream's rows under their own names, read in parallel ranges of the primary key."""
    key = rules.source.primary_key
    where = join_conditions(access.wanted, where)
    predicates: tuple[str, ...] = (EVERYTHING,)
    if rows >= 2 * min_rows:
        with (
            translating("cut the primary key into ranges", subject=access.subject),
            access.engine.connect() as connection,
        ):
            predicates = list_ranges(
                connection, access.table, key, where, rows, access.connections, min_rows=min_rows
            )
    projection = Projection(access.table, rules.columns, tuple(key), access.timezone)
    with translating("read", subject=access.subject, secrets=access.jdbc.secrets):
        raw = access.spark.read.jdbc(
            access.jdbc.url,
            f"({projection.select(where)}) backlog_rows",
            predicates=list(predicates),
            properties={**access.jdbc.properties, "customSchema": projection.schema()},
        )
        return projection.finish(raw)


def build_candidates(rows: DataFrame, rules: MessageRules, bounds: Bounds) -> DataFrame:
    """Messages of the rows within the bounds, one a primary key (fault 36).

    Adds `copies`: how many more rows had this primary key.
    """
    messages = build_messages(rows, rules)
    for at, is_lower in zip(bounds.to_text(), (True, False), strict=True):
        if at is not None:
            messages = messages.where(f"time IS NULL OR time {'>=' if is_lower else '<='} '{at}'")
    return messages


def drop_duplicates(messages: DataFrame, rules: MessageRules, *, unique: bool) -> DataFrame:
    """One message a primary key, the newest; which one does not depend on the order of reading.

    Rows that share a primary key with a NULL in it cannot be distinguished: quarantined.
    """
    if unique:
        return messages.selectExpr("*", "0L AS copies")
    names = rules.key_names()
    same = f"PARTITION BY {', '.join(names)}"
    listed = ("header_list",) if rules.lists_headers else ()
    rest = ", ".join(("value", "key", "identity", "header_values", *listed))
    has_null = " OR ".join(f"{name} IS NULL" for name in names)
    return messages.sparkSession.sql(
        f"""
        WITH counted AS (
            SELECT *, count(*) OVER ({same}) AS __rows,
                row_number() OVER ({same} ORDER BY time DESC NULLS LAST, {rest}) AS __row
            FROM {{messages}}
        ), judged AS (
            SELECT *, ({has_null}) AND __rows > 1 AS __vague FROM counted
        )
        SELECT * EXCEPT (reason, __rows, __row, __vague),
            CASE WHEN __vague THEN 'its primary key holds a NULL and is not unique' ELSE reason END
                AS reason,
            CASE WHEN __vague THEN 0L ELSE __rows - 1 END AS copies
        FROM judged WHERE __row = 1 OR __vague
        """,
        messages=messages,
    )
