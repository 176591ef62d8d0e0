"""An archive that executors of a standalone cluster write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.archive.reading import read_archive
from backlogctl.spark_backfill.archive.verification import read_archive_manifest, verify_archive
from tests.conftest import MakeTopic
from tests.spark_backfill.archive import archiving
from tests.spark_backfill.standalone import StandaloneSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_executors_elsewhere_write_the_same(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=3, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 40, 3)
    place = tmp_path / "shared" / "archive"
    (tmp_path / "cluster").mkdir()
    with StandaloneSpark(tmp_path / "cluster") as cluster:
        section = json.dumps({"master": cluster.master, "conf": cluster.conf()})
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.spark_backfill.archive.killed"),
                *(kafka.bootstrap, name, str(place), section),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    expected_sha = json.loads(done.stdout.splitlines()[-1])["sha256"]
    manifest = read_archive_manifest(spark, str(place), expected_sha)
    assert manifest.count == 120
    assert verify_archive(spark, str(place), manifest).is_good
    ranges = archiving.make_job(kafka.bootstrap, name, place, partitions=3).ranges
    expected = archiving.consume(kafka.bootstrap, name, ranges)
    assert archiving.collect(read_archive(spark, str(place), manifest)) == expected
    assert all(path.stat().st_mode & 0o077 == 0 for path in place.rglob("*"))
