"""A run that is stopped, killed or ended early goes on: nothing twice, nothing left out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.archive_manifest import ARCHIVE_MANIFEST
from backlogctl.errors import Paused, PlanStale, Refused, StagingError
from backlogctl.kafka.clients import make_producer
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.archive import writing
from backlogctl.spark_backfill.archive.job import (
    ArchiveProgress,
    Piece,
    find_rest,
    list_overlaps,
    split_ranges,
    sum_ranges,
)
from backlogctl.spark_backfill.archive.place import ArchiveFull, ArchiveLagging, ArchivePlace
from backlogctl.spark_backfill.archive.reading import read_archive
from backlogctl.spark_backfill.archive.verification import read_archive_manifest
from backlogctl.spark_backfill.archive.writing import find_moved_log_starts, write_archive
from backlogctl.values import OffsetRange
from tests.conftest import MakeTopic
from tests.kit.kafka import move_log_start
from tests.spark_backfill.archive import archiving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SMALL = {"bytes_per_message": 1, "file_bytes": 10}
FIRST_BATCH = 6  # three pieces for each of two cores


def stop_after(batches: int) -> object:
    """A `look` that pauses."""
    calls: list[None] = []

    def look() -> None:
        if len(calls) == batches:
            raise Paused("an operator asked for it")
        calls.append(None)

    return look


def test_a_pause_between_batches_and_on_again(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=2, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 65, 2)
    place = tmp_path / "archive"
    job = archiving.make_job(kafka.bootstrap, name, place, partitions=2, **SMALL)
    with pytest.raises(Paused):
        write_archive(spark, job, look=stop_after(1))  # type: ignore[arg-type]
    first = {path: path.stat().st_mtime_ns for path in archiving.list_data(place)}
    assert len(first) == FIRST_BATCH
    assert not (place / ARCHIVE_MANIFEST).exists()
    # What a killed writer leaves: a whole file that no record names, half of one, a task's folder.
    whole = next(iter(first))
    remains = [
        whole.with_name(f"part-of-{whole.name}"),
        place / "partition=1/half.parquet",
        place / "_temporary/0/task/partition=0/x.parquet",
    ]
    for path in remains:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(whole.read_bytes()[: -1 if path.name == "half.parquet" else None])
    told: list[ArchiveProgress] = []
    manifest = write_archive(spark, job, on_progress=told.append)
    assert told[0].messages > 60, "what was done counts as done"
    assert told[-1].offsets == 130
    assert not any(path.exists() for path in remains)
    after = {path: path.stat().st_mtime_ns for path in archiving.list_data(place)}
    assert first.items() <= after.items(), "finished pieces are not read again"
    assert len(after) == len(manifest.files) == 14
    expected = archiving.consume(kafka.bootstrap, name, job.ranges)
    assert archiving.collect(read_archive(spark, job.location, manifest)) == expected
    assert write_archive(spark, job) == manifest, "a finished archive is what it was"


def test_fault_01_a_writer_that_is_killed_in_a_batch_goes_on(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=3, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 80, 3)
    place = tmp_path / "archive"
    words = [kafka.bootstrap, name, str(place)]
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.spark_backfill.archive.killed", *words],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    line = child.stdout.readline()
    # Somewhere in the second batch.
    time.sleep(0.4)
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    child.stdout.close()
    done = json.loads(line)["messages"]
    assert 0 < done < 240
    job = archiving.make_job(kafka.bootstrap, name, place, partitions=3, **SMALL)
    told: list[ArchiveProgress] = []
    manifest = write_archive(spark, job, on_progress=told.append)
    assert told[0].messages >= done
    assert manifest.count == 240
    expected = archiving.consume(kafka.bootstrap, name, job.ranges)
    assert archiving.collect(read_archive(spark, job.location, manifest)) == expected
    data = {str(path.relative_to(place)) for path in archiving.list_data(place)}
    assert data == {file.path for file in manifest.files}


def test_a_record_of_a_part_is_not_enough_where_its_file_is_gone(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=1, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 80)
    place = tmp_path / "archive"
    job = archiving.make_job(kafka.bootstrap, name, place, **SMALL)
    with pytest.raises(Paused):
        write_archive(spark, job, look=stop_after(1))  # type: ignore[arg-type]
    gone = archiving.list_data(place)[0]
    gone.unlink()
    with pytest.raises(StagingError, match=f"{gone.name} is missing or changed") as caught:
        write_archive(spark, job)
    assert "a cancel throws it away" in caught.value.hint
    assert not (place / ARCHIVE_MANIFEST).exists()


def test_a_place_is_one_archives_alone(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=1, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 10)
    job = archiving.make_job(kafka.bootstrap, name, tmp_path / "archive")
    # A writer was killed before its very first file had its name.
    (tmp_path / "archive" / "_parts").mkdir(parents=True)
    (tmp_path / "archive" / "_parts" / ".job.json.1f").write_text("{")
    write_archive(spark, job)
    for changes in (
        {"recovery_id": "r-20261124-0002"},
        {"plan_hash": "0" * 64},
        {"ranges": (OffsetRange(0, 0, 5),)},
    ):
        other = archiving.make_job(kafka.bootstrap, name, tmp_path / "archive", **changes)
        with pytest.raises(Refused, match="holds the archive of another recovery"):
            write_archive(spark, other)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("mine")
    with pytest.raises(Refused, match="not empty, and what is there is no archive"):
        write_archive(spark, archiving.make_job(kafka.bootstrap, name, tmp_path / "mine"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_fault_02_two_writers_that_finish_write_the_same_manifest(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sleeps right before it writes the manifest; the other comes to the end meanwhile."""
    name = topic(partitions=1, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 30)
    place = tmp_path / "archive"
    job = archiving.make_job(kafka.bootstrap, name, place)
    real = ArchivePlace.write_text
    recorded: list[str] = []

    def sleep(self: ArchivePlace, path: str, text: str) -> None:
        if path == ARCHIVE_MANIFEST and not recorded:
            recorded.append("")
            time.sleep(0.01)  # so that the other one's clock says something else
            recorded[0] = write_archive(spark, replace(job, made_by="another")).sha256()
        real(self, path, text)

    monkeypatch.setattr(ArchivePlace, "write_text", sleep)
    manifest = write_archive(spark, job)
    assert [manifest.sha256()] == [read_archive_manifest(spark, job.location).sha256()] == recorded
    assert manifest.made_by == job.made_by


def test_a_manifest_that_is_there_is_not_written_again(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic(partitions=1, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 30)
    place = tmp_path / "archive"
    job = archiving.make_job(kafka.bootstrap, name, place)
    written: list[int] = []

    def sleep(point: str) -> None:
        if point == "p5.4.manifest.before" and not written:
            written.append(0)
            write_archive(spark, job)
            written[0] = (place / ARCHIVE_MANIFEST).stat().st_mtime_ns

    monkeypatch.setattr(writing, "reach", sleep)
    assert write_archive(spark, job) == read_archive_manifest(spark, job.location)
    assert [(place / ARCHIVE_MANIFEST).stat().st_mtime_ns] == written


def test_fault_15_a_topic_that_was_made_again_is_refused(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=1, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 10)
    job = archiving.make_job(
        kafka.bootstrap, name, tmp_path / "archive", topic_id="AAAAAAAAAAAAAAAAAAAAAA"
    )
    with pytest.raises(PlanStale, match="recreated"):
        write_archive(spark, job)
    assert not (tmp_path / "archive").exists()


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


SPANS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 400)), max_size=6)


def lay_out(spans: list[tuple[int, int, int]]) -> list[OffsetRange]:
    """Ranges that do not overlap: (partition, offsets left out, offsets taken)."""
    at: dict[int, int] = {}
    ranges = []
    for partition, gap, count in spans:
        start = at.get(partition, 0) + gap
        at[partition] = start + count
        ranges.append(OffsetRange(partition, start, start + count))
    return ranges


def offsets(ranges: list[OffsetRange]) -> list[tuple[int, int]]:
    return sorted((r.partition, at) for r in ranges for at in range(r.start, r.end))


@given(SPANS, st.one_of(st.none(), st.floats(0.5, 1000)), st.integers(1, 5000), st.data())
def test_what_is_cut_and_what_is_left_are_the_ranges(
    spans: list[tuple[int, int, int]], size: float | None, file_bytes: int, data: st.DataObject
) -> None:
    ranges = lay_out(spans)
    pieces = split_ranges(ranges, size, file_bytes)
    assert offsets(pieces) == offsets(ranges)
    assert all(piece.count for piece in pieces)
    if size is not None:
        most = max(1, round(file_bytes / size))
        assert all(piece.count <= most for piece in pieces)
    chosen = data.draw(st.sets(st.sampled_from(pieces))) if pieces else set()
    done = [Piece(p.partition, p.start, p.end, count=p.count) for p in chosen]
    rest = find_rest(ranges, done)
    assert offsets([*rest, *chosen]) == offsets(ranges)
    assert list_overlaps(done) == []
    whole = [Piece(p.partition, p.start, p.end, count=p.count) for p in pieces]
    assert sum(item.count for item in sum_ranges(ranges, whole)) == len(offsets(ranges))


def test_neighbours_are_of_different_partitions() -> None:
    ranges = [OffsetRange(0, 0, 30), OffsetRange(1, 0, 20), OffsetRange(2, 5, 5)]
    cut = split_ranges(ranges, 1.0, 10)
    assert [piece.partition for piece in cut] == [0, 1, 0, 1, 0]
    assert [piece.start for piece in cut if piece.partition == 0] == [0, 10, 20]


def test_an_offset_that_is_in_two_pieces_is_found() -> None:
    first, second, third = Piece(0, 0, 10), Piece(0, 9, 20), Piece(1, 5, 8)
    assert list_overlaps([third, second, first]) == [(first, second)]


def test_times_that_are_no_times_are_unknown() -> None:
    ranges = [OffsetRange(0, 0, 2)]
    (told,) = sum_ranges(ranges, [Piece(0, 0, 2, 2, -1, 2**62)])
    assert (told.first_time, told.last_time) == (None, None)
