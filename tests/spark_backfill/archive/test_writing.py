"""An archive holds what a reader gets, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.archive.job import ArchiveProgress
from backlogctl.spark_backfill.archive.reading import read_archive
from backlogctl.spark_backfill.archive.verification import read_archive_manifest, verify_archive
from backlogctl.spark_backfill.archive.writing import write_archive
from tests.conftest import MakeTopic
from tests.spark_backfill.archive import archiving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_messages_of_every_shape_come_back_equal(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path, codec: str
) -> None:
    name = topic(partitions=3, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 40, 3, **{"compression.type": codec})
    job = archiving.make_job(kafka.bootstrap, name, tmp_path / "archive", partitions=3)
    told: list[ArchiveProgress] = []
    manifest = write_archive(spark, job, on_progress=told.append)
    expected = archiving.consume(kafka.bootstrap, name, job.ranges)
    assert len(expected) == manifest.count == 120
    assert archiving.collect(read_archive(spark, job.location, manifest)) == expected
    assert [item.holes for item in manifest.ranges] == [0, 0, 0]
    assert told[-1].messages == 120
    assert told[-1].offsets == told[-1].offsets_total == 120
    assert told[-1].bytes == manifest.bytes
    assert read_archive_manifest(spark, job.location, manifest.sha256()) == manifest
    assert verify_archive(spark, job.location, manifest).is_good
