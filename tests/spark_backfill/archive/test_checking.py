"""An archive is what a reader gets: written, read back, damaged, with holes, and large."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backlogctl.archive_manifest import ARCHIVE_MANIFEST, ArchiveManifest
from backlogctl.clock import Deadline
from backlogctl.errors import Refused, StagingError
from backlogctl.kafka.clients import make_producer
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.archive import batches
from backlogctl.spark_backfill.archive.batches import Reader, open_writer
from backlogctl.spark_backfill.archive.job import ArchiveProgress
from backlogctl.spark_backfill.archive.place import ArchivePlace
from backlogctl.spark_backfill.archive.reading import read_archive, summarize
from backlogctl.spark_backfill.archive.verification import (
    ForeignArchive,
    Purged,
    purge_archive,
    read_archive_manifest,
    verify_archive,
)
from backlogctl.spark_backfill.archive.writing import write_archive
from backlogctl.values import OffsetRange
from tests.conftest import MakeTopic
from tests.kit.kafka import move_log_start
from tests.spark_backfill.archive import archiving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Change = Callable[[pa.Table], pa.Table]


def empty_for_null(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("value")
    return table.set_column(at, table.schema.field(at), table["value"].fill_null(b""))


def another_time(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("timestamp")
    return table.set_column(at, table.schema.field(at), pa.compute.add(table["timestamp"], 1))


CHANGES: dict[str, tuple[Change, str]] = {
    "one is missing": (lambda t: t.slice(1), "read from the topic, the file holds 29"),
    "one is there twice": (
        lambda t: pa.concat_tables([t, t.slice(29)]),
        "read from the topic, the file holds 31",
    ),
    "empty for null": (empty_for_null, "the file's messages are others"),
    "another time": (another_time, "the file's messages are others"),
    "another order": (
        lambda t: t.take([0, 2, 1, *range(3, 30)]),
        "the file's offsets do not ascend",
    ),
}


def test_a_file_that_is_not_what_was_read_does_not_count(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, holes = (topic(partitions=1, config=archiving.KEEP) for _ in range(2))
    archiving.publish(kafka.bootstrap, plain, 30)
    archiving.publish_transactions(kafka.bootstrap, holes, [True] * 6)
    cases = [*((name, plain) for name in CHANGES), ("another order", holes)]
    for number, (name, made) in enumerate(cases):
        change, told = CHANGES[name]
        place = tmp_path / str(number)
        job = archiving.make_job(kafka.bootstrap, made, place)
        spoil(monkeypatch, place, change)
        with pytest.raises(StagingError, match="what was read back is not what was arch") as caught:
            write_archive(spark, job)
        assert told in caught.value.message, name
        assert caught.value.retryable
        assert archiving.list_data(place) == [], "it is deleted"
        monkeypatch.undo()
    manifest = write_archive(spark, job)
    expected = archiving.consume(kafka.bootstrap, holes, job.ranges)
    assert archiving.collect(read_archive(spark, job.location, manifest)) == expected


def spoil(monkeypatch: pytest.MonkeyPatch, place: Path, change: Change) -> None:
    """The file of an archive is another one as soon as it is written."""
    write = batches._write

    def write_another(*words: Any) -> Any:
        found = write(*words)
        (path,) = archiving.list_data(place)
        pq.write_table(change(pq.ParquetFile(path).read()), path)
        return found

    monkeypatch.setattr(batches, "_write", write_another)


def test_null_and_empty_have_other_fingerprints(spark: SparkSession) -> None:
    headers = (
        "array()",
        "array(named_struct('name', 'a', 'value', cast(null as binary)))",
        "array(named_struct('name', 'a', 'value', x''))",
        "array(named_struct('name', '', 'value', x'61'))",
        "array(named_struct('name', 'a', 'value', x''), named_struct('name', 'a', 'value', x''))",
    )
    pairs = (("null", "x''"), ("x''", "null"), ("x'61'", "null"), ("null", "x'61'"))
    fixed = "5L as offset, 1L as timestamp, cast(0 as tinyint) as timestamp_type"
    texts = [
        f"select {fixed}, cast({key} as binary) as key, cast({value} as binary) as value, "
        f"cast({text} as array<struct<name:string,value:binary>>) as headers, {number} as number"
        for number, (text, (key, value)) in enumerate(product(headers, pairs))
    ]
    sums = spark.sql(" union all ".join(texts)).groupBy("number").agg(*summarize()).collect()
    assert len({row["fingerprint"] for row in sums}) == len(sums) == 20


def test_messages_are_not_sorted_to_be_written(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=2, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 10, 2)
    location = tmp_path / "a"
    job = archiving.make_job(kafka.bootstrap, name, location, partitions=2)
    reader = Reader(name, 100)
    batches._write(open_writer(spark), ArchivePlace(spark, str(location)), job, job.ranges, reader)
    java: Any = spark._jsparkSession
    runs = java.sharedState().statusStore().executionsList()
    plans = [runs.apply(each).physicalPlanDescription() for each in range(runs.size())]
    (plan,) = [text for text in plans if f"file:{location}" in text and "InsertInto" in text]
    assert "Union" in plan
    assert "Sort" not in plan
    assert "SerializeFromObject" in plan


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """With a name that would be a pattern, were it taken for one."""
    return tmp_path / "offloads {a,b}" / "r-1 [x] 100%"


@pytest.fixture
def manifest(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, place: Path
) -> ArchiveManifest:
    name = topic(partitions=2, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 20, 2)
    return write_archive(spark, archiving.make_job(kafka.bootstrap, name, place, partitions=2))


def test_missing_corrupt_and_unexpected_files_are_named(
    spark: SparkSession, manifest: ArchiveManifest, place: Path
) -> None:
    first, second = (place / file.path for file in manifest.files)
    whole = first.read_bytes()
    middle = len(whole) // 2
    first.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    check = verify_archive(spark, str(place), manifest)
    assert (check.corrupt, check.missing) == ((manifest.files[0].path,), ())
    assert not check.is_good
    quick = verify_archive(spark, str(place), manifest, rehash=False)
    assert quick.is_good, "the size alone does not tell"
    first.write_bytes(whole[:-1])
    assert not verify_archive(spark, str(place), manifest, rehash=False).is_good
    first.write_bytes(whole)
    second.rename(place / "partition=1" / "other.parquet")
    (place / "notes.txt").write_text("somebody's")
    check = verify_archive(spark, str(place), manifest)
    assert check.missing == (manifest.files[1].path,)
    assert check.unexpected == ("notes.txt", "partition=1/other.parquet")
    with pytest.raises(StagingError) as caught:
        check.require_good("archive r-1")
    told = str(caught.value)
    assert f"missing: {manifest.files[1].path}" in told
    assert "unexpected: notes.txt, partition=1/other.parquet" in told
    assert "nothing was sent" in told


def test_a_finished_archive_that_was_damaged_is_not_taken_for_finished(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, place: Path
) -> None:
    name = topic(partitions=1, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 20)
    job = archiving.make_job(kafka.bootstrap, name, place)
    file = place / write_archive(spark, job).files[0].path
    file.write_bytes(file.read_bytes()[::-1])
    with pytest.raises(StagingError, match="corrupt: partition=0/"):
        write_archive(spark, job)


def test_the_manifest_is_known_again_or_refused(
    spark: SparkSession, manifest: ArchiveManifest, place: Path
) -> None:
    path = place / ARCHIVE_MANIFEST
    assert read_archive_manifest(spark, str(place), manifest.sha256()) == manifest
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "group": "another"}))
    with pytest.raises(StagingError, match="not the one that was recorded; nothing was sent"):
        read_archive_manifest(spark, str(place), manifest.sha256())
    path.write_text(json.dumps({**value, "version": 2, "more": 1}))
    with pytest.raises(StagingError, match="later version of backlogctl"):
        read_archive_manifest(spark, str(place))
    path.write_text("[]")
    with pytest.raises(StagingError, match="not the manifest of an archive"):
        read_archive_manifest(spark, str(place))
    path.write_text("{")
    with pytest.raises(StagingError, match="holds no JSON"):
        read_archive_manifest(spark, str(place))
    path.unlink()
    with pytest.raises(StagingError, match="no finished archive is there"):
        read_archive_manifest(spark, str(place))


def test_files_and_folders_are_for_their_owner_only(manifest: ArchiveManifest, place: Path) -> None:
    assert len(manifest.files) == 2
    for path in [place, *place.rglob("*")]:
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    names = {path.name for path in place.rglob("*") if path.is_file()}
    assert not any(name.endswith(".crc") or name == "_SUCCESS" for name in names)


def own(manifest: ArchiveManifest) -> dict[str, str]:
    return {"recovery_id": manifest.recovery_id, "plan_hash": manifest.plan_hash}


@pytest.mark.parametrize("without", ["_parts/job.json", "manifest.json", ""])
def test_fault_12_a_purge_deletes_nobody_elses_archive(
    spark: SparkSession, manifest: ArchiveManifest, place: Path, without: str
) -> None:
    if without:
        (place / without).unlink()
    before = sorted(place.rglob("*"))
    for name in own(manifest):
        with pytest.raises(ForeignArchive, match="another recovery or plan"):
            purge_archive(spark, str(place), owner={**own(manifest), name: "other"})
    assert sorted(place.rglob("*")) == before
    assert purge_archive(spark, str(place), owner=own(manifest)).files == 2


def test_purged_it_leaves_no_rest_and_may_be_purged_again(
    spark: SparkSession, manifest: ArchiveManifest, place: Path
) -> None:
    assert purge_archive(spark, str(place), owner=own(manifest)) == Purged(2, manifest.bytes)
    assert not place.exists()
    assert purge_archive(spark, str(place), owner=own(manifest)) == Purged(0, 0)


def test_what_is_none_of_the_archives_stays_when_it_is_purged(
    spark: SparkSession, manifest: ArchiveManifest, place: Path
) -> None:
    (place / "notes.txt").write_text("somebody's")
    assert purge_archive(spark, str(place), owner=own(manifest)).files == 2
    assert [path.name for path in place.rglob("*") if path.is_file()] == ["notes.txt"]
    assert purge_archive(spark, str(place), owner=own(manifest)) == Purged(0, 0)
    (place / "partition=0").mkdir(exist_ok=True)
    (place / "partition=0" / "a.parquet").write_text("whose?")
    with pytest.raises(Refused, match="does not look like an archive"):
        purge_archive(spark, str(place), owner=own(manifest))
    assert (place / "notes.txt").read_text() == "somebody's"


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


def test_messages_of_every_shape_come_back_equal(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=3, config=archiving.KEEP)
    for codec in archiving.CODECS:
        archiving.publish(kafka.bootstrap, name, 10, 3, **{"compression.type": codec})
    job = archiving.make_job(kafka.bootstrap, name, tmp_path / "archive", partitions=3)
    told: list[ArchiveProgress] = []
    manifest = write_archive(spark, job, on_progress=told.append)
    expected = archiving.consume(kafka.bootstrap, name, job.ranges)
    assert len(expected) == manifest.count == 150
    assert archiving.collect(read_archive(spark, job.location, manifest)) == expected
    assert [item.holes for item in manifest.ranges] == [0, 0, 0]
    assert told[-1].messages == 150
    assert told[-1].offsets == told[-1].offsets_total == 150
    assert told[-1].bytes == manifest.bytes
    assert read_archive_manifest(spark, job.location, manifest.sha256()) == manifest
    assert verify_archive(spark, job.location, manifest).is_good


def test_fault_125_times_of_any_unit_are_archived_as_they_are(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Spark's own source ends at the first of them that is beyond its microseconds."""
    name = topic(partitions=1, config=archiving.ANY_TIME)
    producer = make_producer({"bootstrap.servers": kafka.bootstrap})
    seconds, last = 1_760_000_000, 2**63 - 1
    times = [seconds * 1000, seconds * 10**6, seconds * 10**9, seconds * 1000 + 7, last, seconds]
    for at in times:
        producer.produce(name, b"v", b"k", partition=0, timestamp=at)
    assert producer.flush(60) == 0
    job = archiving.make_job(kafka.bootstrap, name, tmp_path / "archive")
    manifest = write_archive(spark, job)
    found = archiving.collect(read_archive(spark, job.location, manifest))
    assert [message[2] for message in found] == times
    assert found == archiving.consume(kafka.bootstrap, name, job.ranges)
    assert verify_archive(spark, job.location, manifest).is_good
    # Seconds are the milliseconds of another time; what is beyond all times is none.
    (told,) = manifest.ranges
    assert (told.first_time, told.last_time) == (
        datetime.fromtimestamp(seconds / 1000, UTC),
        datetime.fromtimestamp(times[3] / 1000, UTC),
    )


SIZE, COUNT = 100_000, 10_500


def test_a_gigabyte_in_one_partition(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=1, config=archiving.KEEP)
    producer = make_producer(
        {"bootstrap.servers": kafka.bootstrap}, {"compression.type": "lz4", "linger.ms": 20}
    )
    line = json.dumps({"order_id": "o-00000001", "status": "paid", "amount": "12.50"})
    value = (line * (SIZE // len(line))).encode()
    for number in range(COUNT):
        producer.produce(name, value, b"%d" % number, partition=0)
        producer.poll(0)
    assert producer.flush(120) == 0
    job = archiving.make_job(kafka.bootstrap, name, tmp_path / "archive", bytes_per_message=600.0)
    manifest = write_archive(spark, job)
    assert manifest.count == COUNT
    assert COUNT * len(value) > 10**9
    assert verify_archive(spark, job.location, manifest).is_good
