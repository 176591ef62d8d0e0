"""Evidence of the consumer's own table: rows it names were handled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_backfill.evidence.base import CONSUMED
from spark_backfill.failures import translating
from spark_backfill.messages.candidates import SourceAccess
from spark_backfill.sources.columns import Projection
from spark_backfill.sources.ranges import MIN_ROWS, list_ranges


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
        return self.access.spark.read.schema("key binary").parquet(str(self.work))
