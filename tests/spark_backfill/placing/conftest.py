"""A loss for each test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.spark_backfill.placing.losing import PARTITIONS, Losing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def losing(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> Losing:
    """In SQLite."""
    return Losing(spark, kafka.bootstrap, topic(partitions=PARTITIONS), shop, tmp_path)
