"""What earlier recoveries put back already, without what of that is lost again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_backfill.evidence.injected import InjectedEvidence
from spark_backfill.originals.still_there import StillThere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_backfill.redrive.request import RedriveRequest


def find_put_back(spark: SparkSession, request: RedriveRequest) -> DataFrame:
    """Column `key`: ids of messages that are in the target, or were read from it.

    Raises:
        Refused: an id list is missing.
    """
    evidence = InjectedEvidence(
        spark,
        request.staging_root,
        request.prior,
        request.lost,
        StillThere(spark, request.client_properties, request.target, request.starts, request.prior),
    )
    evidence.freeze()
    return evidence.collect_keys()
