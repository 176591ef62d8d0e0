"""Opens the tables that are read: the source's, and the consumer's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_backfill.evidence.consumed import ConsumedEvidence
from spark_backfill.messages.candidates import SourceAccess
from spark_backfill.messages.filters import check_wanted, filter_wanted
from spark_backfill.sources.jdbc import make_access
from spark_backfill.sources.reflection import check_columns, open_engine, reflect_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog.config import Consumed, Source, StreamSource


@contextmanager
def open_table(
    spark: SparkSession, sources: Mapping[str, Source], database: str, name: str
) -> Iterator[SourceAccess]:
    """Gives its connections back in the end.

    Raises:
        ConfigurationError: there is no such table.
        SourceError: it could not be read.
    """
    source = sources[database]
    engine = open_engine(source, database)
    try:
        table, jdbc = reflect_table(engine, database, name), make_access(source, database)
        limit = source.limits.connections
        yield SourceAccess(spark, engine, jdbc, table, source.timezone, limit)
    finally:
        engine.dispose()


@contextmanager
def open_source(
    spark: SparkSession, sources: Mapping[str, Source], stream: str, source: StreamSource
) -> Iterator[SourceAccess]:
    """The table that a stream is rebuilt from; only the stream's rows are counted and read.

    Raises:
        ConfigurationError: there is no such table, or `where` names what it does not have.
        SourceError: it could not be read.
    """
    with open_table(spark, sources, source.database, source.table) as access:
        check_wanted(access.table, source.where, f"streams.{stream}.source.where")
        yield replace(access, wanted=filter_wanted(access.table, source.where))


@contextmanager
def open_consumed(
    spark: SparkSession,
    sources: Mapping[str, Source],
    consumed: Consumed,
    stream: str,
    work: Path,
) -> Iterator[ConsumedEvidence]:
    """The consumer's table of this stream; its copy goes to `work`.

    Raises:
        ConfigurationError: there is no such table or column.
        SourceError: it could not be read.
    """
    with open_table(spark, sources, consumed.database, consumed.table) as access:
        at = f"streams.{stream}.source.consumed.column"
        check_columns(access.table, [consumed.column], at)
        yield ConsumedEvidence(access, consumed.column, work)
