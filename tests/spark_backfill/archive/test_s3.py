"""An archive in an object store that speaks S3, and one that executors of a cluster write."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from backlogctl.config import SparkSection
from backlogctl.errors import ConfigurationError
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.archive.place import ArchivePlace, normalize_location
from backlogctl.spark_backfill.archive.reading import read_archive
from backlogctl.spark_backfill.archive.verification import read_archive_manifest, verify_archive
from backlogctl.spark_backfill.spark.cluster import SparkFailure, needs_s3
from backlogctl.spark_backfill.spark.session import open_session
from tests.conftest import MakeTopic
from tests.spark_backfill.archive import archiving
from tests.spark_backfill.standalone import StandaloneSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BUCKET = "archives"
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The URL of a server that speaks S3, with an empty bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(Bucket=BUCKET)
    yield url
    server.stop()


def run(*words: str, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark_backfill.archive.s3_story", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **KEYS, **environment},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.spark
def test_written_verified_read_and_purged(
    kafka: EmbeddedKafka, topic: MakeTopic, endpoint: str
) -> None:
    name = topic(partitions=1, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 15)
    found = run(kafka.bootstrap, name, endpoint, f"s3a://{BUCKET}/offloads/r 1")
    assert found["equal"]
    assert found["count"] == 15
    assert found["files"] == 3
    assert found["same"]
    assert found["bad"] == found["expected"]
    assert found["purged"] == 3
    assert found["left"] == {}


@pytest.mark.spark
def test_a_bucket_that_is_not_there_is_named(
    kafka: EmbeddedKafka, topic: MakeTopic, endpoint: str
) -> None:
    name = topic(partitions=1, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 2)
    found = run(kafka.bootstrap, name, endpoint, "s3a://another/r-1")
    assert found["code"] == "staging"
    assert found["subject"].startswith("s3a://another/r-1")
    assert "bucket does not exist" in found["message"]


def test_a_running_spark_without_the_jars_says_so(spark: SparkSession) -> None:
    assert needs_s3("s3a://b/x")
    assert not needs_s3("/archives/s3a:")
    with pytest.raises(SparkFailure, match="without what reaches an object store"):
        ArchivePlace(spark, "s3a://bucket/r-1")
    with pytest.raises(SparkFailure, match="without what reaches an object store"):
        open_session(SparkSection(master="local[2]"), "again", s3=True)


def test_old_names_of_the_scheme_are_corrected() -> None:
    with pytest.raises(ConfigurationError, match="write s3a://bucket/x"):
        normalize_location("s3://bucket/x")
    assert normalize_location("s3a://bucket/x/") == "s3a://bucket/x"
    assert normalize_location("/a b/../c/") == "file:/c"
    assert normalize_location("file:///a%20b") == "file:/a%20b"


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
