"""Evidence of the consumer's own table: rows it names were handled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.spark_backfill.evidence.injected import CONSUMED
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.messages.candidates import SourceAccess
from backlogctl.spark_backfill.messages.windows import check_wanted, filter_wanted
from backlogctl.spark_backfill.sources.columns import MIN_ROWS, Projection, list_ranges
from backlogctl.spark_backfill.sources.reflection import (
    check_columns,
    make_access,
    open_engine,
    reflect_table,
)
from backlogctl.spark_backfill.spark.frames import read_frozen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlogctl.config import Consumed, Source, StreamSource


@dataclass(frozen=True, slots=True)
class ConsumedEvidence:
    """Reads one column of the table, as text, into a frozen copy under `work`."""

    label: ClassVar[str] = CONSUMED
    matches: ClassVar[str] = "identity"
    access: SourceAccess
    column: str
    work: Path

    def freeze(self) -> None:
        """Copies the column.

        Raises:
            SourceError: the table could not be read.
        """
        if (self.work / "_SUCCESS").exists():
            return
        access = self.access
        item = access.table.column(self.column)
        projection = Projection(access.table, (item,), (self.column,), access.timezone)
        with (
            translating("read consumed rows", subject=access.subject, secrets=access.jdbc.secrets),
        ):
            with access.engine.connect() as connection:
                counted = connection.exec_driver_sql(projection.count())
                rows = int(counted.scalar_one())
                predicates = list_ranges(
                    connection,
                    access.table,
                    (self.column,),
                    "",
                    rows,
                    access.connections if rows >= 2 * MIN_ROWS else 1,
                )
            raw = access.spark.read.jdbc(
                access.jdbc.url,
                f"({projection.select()}) backlog_rows",
                predicates=list(predicates),
                properties={**access.jdbc.properties, "customSchema": projection.schema()},
            )
            value = F.col("`" + self.column.replace("`", "``") + "`")
            frame = projection.finish(raw)
            if dict(frame.dtypes)[self.column] != "binary":
                value = value.cast("string").cast("binary")
            keys = frame.select(value.alias("key")).where(F.col("key").isNotNull()).distinct()
            keys.write.mode("overwrite").parquet(str(self.work))

    def collect_keys(self) -> DataFrame:
        """Identities that were handled."""
        return read_frozen(self.access.spark, "key binary", str(self.work))


# Opens the tables that are read: the source's, and the consumer's own.


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
