"""Evidence of earlier recoveries: message ids of chunks that are committed in the Kafka ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from backlog.errors import Refused
from spark_backfill.evidence.base import INJECTED
from spark_backfill.failures import translating
from spark_backfill.request import PriorChunk


@dataclass(frozen=True, slots=True)
class InjectedEvidence:
    """Reads the id lists (`ids/`) beside the manifests, not the payloads."""

    label: ClassVar[str] = INJECTED
    matches: ClassVar[str] = "message_id"
    spark: SparkSession
    staging_root: Path
    prior: Sequence[PriorChunk]

    def list_files(self) -> tuple[Path, ...]:
        return tuple(
            self.staging_root
            / chunk.recovery_id
            / f"ids/slot={chunk.slot:05d}/chunk={chunk.number:06d}.parquet"
            for chunk in sorted(self.prior, key=lambda c: (c.recovery_id, c.slot, c.number))
        )

    def freeze(self) -> None:
        """Checks that every list is there; they never change.

        Raises:
            Refused: a list is missing, so its messages could be sent twice.
        """
        missing = [path for path in self.list_files() if not path.is_file()]
        if missing:
            raise Refused(
                f"{len(missing)} id lists of injected chunks are missing, so their messages "
                f"could be sent twice; the first is {missing[0]}",
                subject=f"staging directory {self.staging_root}",
                hint="restore the `ids` folders of earlier recoveries, or point `staging.dir` "
                "at the directory that has them",
            )

    def collect_keys(self) -> DataFrame:
        """Message ids of all committed chunks."""
        if not self.prior:
            return self.spark.createDataFrame([], "key string")
        paths = [str(path) for path in self.list_files()]
        with translating("read id lists", subject=str(self.staging_root), kind=Refused):
            # Without this Spark makes a column of the directory's name.
            frame = self.spark.read.option("recursiveFileLookup", "true").parquet(*paths)
            ids = frame.select(F.col("message_id").alias("key"))
            return ids.where(F.col("key").isNotNull()).distinct()
