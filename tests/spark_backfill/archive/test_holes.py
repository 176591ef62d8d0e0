"""Offsets without a message: they are counted as holes, and never taken for losses."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import Refused
from backlogctl.kafka.clients import make_producer
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.archive.reading import read_archive
from backlogctl.spark_backfill.archive.verification import verify_archive
from backlogctl.spark_backfill.archive.writing import write_archive
from backlogctl.values import OffsetRange
from tests.conftest import MakeTopic
from tests.kafka_tools import move_log_start
from tests.spark_backfill.archive import archiving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_fault_20_aborted_messages_and_control_records_are_holes(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=1)
    outcomes = [True, False, False, True, False, True, False]
    archiving.publish_transactions(kafka.bootstrap, name, outcomes)
    # Pieces of five: some hold nothing but aborted messages, and the last one a control record.
    job = archiving.make_job(
        kafka.bootstrap, name, tmp_path / "a", bytes_per_message=1, file_bytes=5
    )
    assert job.ranges == (OffsetRange(0, 0, 42),), "five messages and a control record each"
    manifest = write_archive(spark, job)
    assert manifest.count == 15
    assert manifest.ranges[0].holes == 27
    assert len(manifest.files) < 9, "a piece of holes alone makes no file"
    expected = archiving.consume(kafka.bootstrap, name, job.ranges)
    assert len(expected) == 15
    assert archiving.collect(read_archive(spark, job.location, manifest)) == expected
    assert verify_archive(spark, job.location, manifest).is_good
    assert write_archive(spark, job) == manifest


def test_a_range_of_holes_alone_makes_an_archive_without_files(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    archiving.publish_transactions(kafka.bootstrap, name, [False, False])
    job = archiving.make_job(kafka.bootstrap, name, tmp_path / "a", partitions=2)
    manifest = write_archive(spark, job)
    assert (manifest.count, manifest.files) == (0, ())
    # A partition without an offset has no range.
    assert [(r.partition, r.start, r.end, r.first_time) for r in manifest.ranges] == [
        (0, 0, 12, None)
    ]
    assert read_archive(spark, job.location, manifest).collect() == []
    assert verify_archive(spark, job.location, manifest).is_good


def test_fault_19_what_compaction_removed_is_a_hole(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100",
    }
    name = topic(partitions=1, config=config)
    producer = make_producer({"bootstrap.servers": kafka.bootstrap}, {"linger.ms": 0})
    limit = Deadline(90)
    ranges: tuple[OffsetRange, ...] = ()
    while not limit.expired:
        for number in range(30):
            producer.produce(name, f"v{number}".encode(), b"same", partition=0)
        assert producer.flush(30) == 0
        ranges = archiving.make_job(kafka.bootstrap, name, tmp_path / "a").ranges
        seen = len(archiving.consume(kafka.bootstrap, name, ranges))
        if seen < ranges[0].count:
            break
        time.sleep(0.5)
    # No more comes, so that no segment is closed and cleaned while it is archived.
    job = archiving.make_job(kafka.bootstrap, name, tmp_path / "a", ranges=ranges)
    manifest = write_archive(spark, job)
    assert 0 < manifest.count < ranges[0].count
    assert manifest.ranges[0].holes == ranges[0].count - manifest.count
    assert verify_archive(spark, job.location, manifest).is_good


def test_an_open_transaction_above_the_range_does_not_matter_and_within_it_is_refused(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=1)
    archiving.publish_transactions(kafka.bootstrap, name, [True])
    producer = make_producer(
        {"bootstrap.servers": kafka.bootstrap}, {"transactional.id": f"open-{name}"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"open", b"k", partition=0)
    assert producer.flush(30) == 0
    job = archiving.make_job(kafka.bootstrap, name, tmp_path / "a")
    assert job.ranges == (OffsetRange(0, 0, 6),)
    assert write_archive(spark, job).count == 5
    beyond = archiving.make_job(
        kafka.bootstrap, name, tmp_path / "b", ranges=(OffsetRange(0, 0, 7),)
    )
    with pytest.raises(Refused, match=r"\[0\] to 7, readable to 6"):
        write_archive(spark, beyond)
    producer.abort_transaction(30)


def test_some_ranges_of_an_archive_are_read_and_no_more(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=2, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 50, 2)
    move_log_start({"bootstrap.servers": kafka.bootstrap}, name, {0: 7})
    job = archiving.make_job(
        kafka.bootstrap, name, tmp_path / "a", partitions=2, bytes_per_message=1, file_bytes=10
    )
    manifest = write_archive(spark, job)
    assert manifest.count == 93
    wanted = [OffsetRange(0, 12, 15), OffsetRange(1, 49, 60), OffsetRange(1, 0, 1)]
    some = read_archive(spark, job.location, manifest, wanted)
    assert archiving.collect(some) == archiving.consume(kafka.bootstrap, name, wanted)
    assert len(some.inputFiles()) == 3
    assert some.schema["partition"].dataType.simpleString() == "int"
    many = [OffsetRange(1, at, at + 1) for at in range(50)] + [OffsetRange(1, 0, 50)] * 2
    assert read_archive(spark, job.location, manifest, many).count() == 50
    assert read_archive(spark, job.location, manifest, []).count() == 0
