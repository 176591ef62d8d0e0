"""What Spark, its workers and databases raise, as one error of ours."""

from __future__ import annotations

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg.errors import AdminShutdown
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from sqlalchemy.exc import OperationalError

from backlogctl.errors import (
    KafkaFailure,
    SourceError,
    StagingError,
)
from backlogctl.manifests import MANIFEST_NAME
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.failures import planning_into, translating
from backlogctl.spark_backfill.rebuild import stage_rebuild
from tests.conftest import MakeTopic
from tests.spark_backfill import world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# As a real run said it, shortened.
SHUFFLE = """An error occurred while calling o64.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 0.0 failed
1 times, most recent failure: Lost task 1.0 in stage 0.0: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\tat org.apache.spark.storage.DiskBlockObjectWriter.write(DiskBlockObjectWriter.scala:337)
\tat org.apache.spark.shuffle.sort.BypassMergeSortShuffleWriter.write(B.java:174)
"""
PARQUET = """An error occurred while calling o64.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 1.0 in stage 0.0:
org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\tat org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(R.java:257)
"""
PYTHON = f"""An exception was thrown from the Python worker.
OSError: [Errno 28] No space left on device: 'chunk'
{SHUFFLE.replace("No space left on device", "the worker failed")}
"""
DATABASE = """: org.apache.spark.SparkException: Lost task 1.0: org.postgresql.util.PSQLException:
ERROR: could not extend file "base/1/2": No space left on device
Caused by: java.sql.SQLException: the same
"""


def fail(error: Exception) -> None:
    with (
        planning_into("/staging/r-1"),
        translating("read the messages that survive", subject="topic orders", kind=KafkaFailure),
    ):
        raise error


@pytest.mark.parametrize("text", [PARQUET, PYTHON])
def test_a_full_disk_is_no_failure_of_kafka(text: str) -> None:
    with pytest.raises(StagingError) as caught:
        fail(Py4JError(text))
    told = str(caught.value)
    assert "could not read the messages that survive: no space left in /staging/r-1" in told
    assert "nothing was planned and nothing was changed; free space there, or point" in told
    assert "`staging.dir`" in told
    assert not caught.value.retryable


def test_a_full_local_directory_of_spark_is_named() -> None:
    with pytest.raises(StagingError) as caught:
        fail(Py4JError(SHUFFLE))
    assert "no space left in " in caught.value.message
    assert "local directory" in caught.value.message
    assert "`spark.local.dir` under `spark.conf`" in caught.value.hint


def test_a_cause_further_down_is_found() -> None:
    error = Py4JError("the write failed")
    error.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(StagingError, match="no space left in /staging/r-1"):
        fail(error)
    with pytest.raises(KafkaFailure, match="offsets are out of range"):
        fail(Py4JError("offsets are out of range"))


def test_what_nobody_translates_is_told_too_and_other_errors_stay() -> None:
    with (
        pytest.raises(StagingError, match="could not make the plan: no space left in /s/r"),
        planning_into("/s/r"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(FileNotFoundError), planning_into("/s/r"):
        raise FileNotFoundError("x")


def test_a_full_disk_of_the_database_is_the_sources() -> None:
    with pytest.raises(SourceError), translating("read", subject="table orders"):
        raise Py4JError(DATABASE)


def test_of_a_database_that_ended_the_connection_it_is_said_what_to_do() -> None:
    with pytest.raises(SourceError) as caught, translating("read", subject="table orders"):
        raise OperationalError("SELECT 1", {}, AdminShutdown("terminating connection"))
    assert caught.value.hint == "check that the database runs and answers, then do it again"
    assert caught.value.retryable


def test_without_a_plan_no_directory_is_guessed() -> None:
    with pytest.raises(StagingError) as caught, translating("read", subject="x"):
        raise Py4JError(PARQUET)
    assert "no space left in the directory that it writes to" in caught.value.message
    assert "planned" not in caught.value.hint


@pytest.mark.parametrize("rows_fit", [False, True])
def test_a_plan_on_a_full_disk_names_it_and_the_next_one_is_whole(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    shop: str,
    tmp_path: Path,
    small_disk: Path,
    rows_fit: bool,
) -> None:
    rows = [world.make_order(number) for number in range(1, 2001)]
    world.fill_table(shop, world.ORDERS, rows)
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, 500)
    stream = world.make_stream(lost.topic)
    request = world.make_request(kafka.bootstrap, stream, shop, lost.gaps, small_disk)
    block = small_disk / "block"
    told: list[str] = []

    def say(line: str) -> None:
        told.append(line)
        if line.startswith("reading survivors" if rows_fit else "reading candidates"):
            with block.open("wb", buffering=0) as file:
                try:
                    while file.write(b"x" * 4096):
                        pass
                except OSError:
                    pass

    with pytest.raises(StagingError) as caught:
        stage_rebuild(spark, request, progress=say)
    assert f"no space left in {request.directory}" in caught.value.message
    assert "nothing was planned" in caught.value.hint
    assert not (request.directory / MANIFEST_NAME).exists()
    block.unlink()
    # Another one beside the remains, with enough space: nothing of them is trusted.
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    outcome = stage_rebuild(spark, replace(request, recovery_id="r-2"))
    assert outcome.counts.rebuilt == outcome.counts.expected == 500
