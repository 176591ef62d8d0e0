"""What ends an archive early: retention that is faster, and a disk that is full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlogctl.kafka.clients import make_producer
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.archive import writing
from backlogctl.spark_backfill.archive.job import ArchiveProgress
from backlogctl.spark_backfill.archive.place import ArchiveFull, ArchiveLagging
from backlogctl.spark_backfill.archive.reading import read_archive
from backlogctl.spark_backfill.archive.writing import find_moved_log_starts, write_archive
from tests.conftest import MakeTopic
from tests.kafka_tools import move_log_start
from tests.spark_backfill.archive import archiving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_messages_that_retention_deletes_between_batches_are_named(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=2, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 100, 2)
    properties = {"bootstrap.servers": kafka.bootstrap}
    job = archiving.make_job(
        kafka.bootstrap, name, tmp_path / "a", partitions=2, bytes_per_message=1, file_bytes=10
    )

    def delete(progress: ArchiveProgress) -> None:
        move_log_start(properties, name, {0: 20, 1: 45})

    with pytest.raises(ArchiveLagging) as caught:
        write_archive(spark, job, on_progress=delete)
    assert caught.value.moved == {1: (30, 45)}, "of partition 0 it had that already"
    assert "[1] needed from 30, starts at 45" in str(caught.value)
    assert len(archiving.list_data(tmp_path / "a")) == 6


def test_messages_that_retention_deletes_in_a_batch_are_named(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic(partitions=1, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 30)
    job = archiving.make_job(kafka.bootstrap, name, tmp_path / "a")

    def delete_after(*words: Any) -> dict[int, tuple[int, int]]:
        found = find_moved_log_starts(*words)
        move_log_start({"bootstrap.servers": kafka.bootstrap}, name, {0: 10})
        return found

    monkeypatch.setattr(writing, "find_moved_log_starts", delete_after)
    with pytest.raises(ArchiveLagging) as caught:
        write_archive(spark, job)
    assert caught.value.moved == {0: (0, 10)}
    assert archiving.list_data(tmp_path / "a") == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with few bytes."""
    place = tmp_path / "small"
    place.mkdir()
    mount: list[Any] = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", place]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_fault_12_a_full_disk_stops_it_and_with_more_space_it_goes_on(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path, small_disk: Path
) -> None:
    name = topic(partitions=1)
    producer = make_producer({"bootstrap.servers": kafka.bootstrap})
    for _ in range(200):
        producer.produce(name, os.urandom(5_000), partition=0)
    assert producer.flush(30) == 0
    place = small_disk / "offloads" / "r-1"
    # Six files of 50 kB fit, and then four of six more.
    job = archiving.make_job(
        kafka.bootstrap, name, place, bytes_per_message=5_000, file_bytes=50_000
    )
    with pytest.raises(ArchiveFull) as caught:
        write_archive(spark, job)
    assert caught.value.retryable
    assert caught.value.subject == f"file:{place}"
    assert "it goes on from what is archived" in caught.value.hint
    assert len(archiving.list_data(place)) == 6, "partial files are deleted"
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    manifest = write_archive(spark, job)
    assert (manifest.count, len(manifest.files)) == (200, 20)
    expected = archiving.consume(kafka.bootstrap, name, job.ranges)
    assert archiving.collect(read_archive(spark, job.location, manifest)) == expected
