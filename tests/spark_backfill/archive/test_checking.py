"""What was written is read back before it counts: each kind of difference is found."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backlogctl.errors import StagingError
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.archive import batches
from backlogctl.spark_backfill.archive.batches import Reader, open_writer
from backlogctl.spark_backfill.archive.place import ArchivePlace
from backlogctl.spark_backfill.archive.reading import read_archive, summarize
from backlogctl.spark_backfill.archive.writing import write_archive
from tests.conftest import MakeTopic
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


@pytest.mark.parametrize(
    ("name", "holes"), [*((name, False) for name in CHANGES), ("another order", True)]
)
def test_a_file_that_is_not_what_was_read_does_not_count(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    holes: bool,
) -> None:
    change, told = CHANGES[name]
    made = topic(partitions=1, config=archiving.KEEP)
    if holes:
        archiving.publish_transactions(kafka.bootstrap, made, [True] * 6)
    else:
        archiving.publish(kafka.bootstrap, made, 30)
    job = archiving.make_job(kafka.bootstrap, made, tmp_path / "a")
    write = batches._write

    def spoil(*words: Any) -> Any:
        found = write(*words)
        (path,) = archiving.list_data(tmp_path / "a")
        pq.write_table(change(pq.ParquetFile(path).read()), path)
        return found

    monkeypatch.setattr(batches, "_write", spoil)
    with pytest.raises(StagingError, match="what was read back is not what was archived") as caught:
        write_archive(spark, job)
    assert told in caught.value.message
    assert caught.value.retryable
    assert archiving.list_data(tmp_path / "a") == [], "it is deleted"
    monkeypatch.undo()
    manifest = write_archive(spark, job)
    expected = archiving.consume(kafka.bootstrap, made, job.ranges)
    assert archiving.collect(read_archive(spark, job.location, manifest)) == expected


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
    assert "KafkaScan" in plan or "MicroBatchScan" in plan or "BatchScan" in plan
