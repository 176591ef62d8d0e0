"""One contract for every kind of evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from backlogctl.errors import BacklogError, KafkaFailure, Refused, SourceError
from backlogctl.kafka.clients import make_producer
from backlogctl.manifests import CHUNK_SCHEMA, write_chunk
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.evidence.consumed import ConsumedEvidence
from backlogctl.spark_backfill.evidence.injected import (
    LABELS,
    Evidence,
    InjectedEvidence,
    label_candidates,
)
from backlogctl.spark_backfill.evidence.survivors import (
    SurvivorEvidence,
    describe_moves,
    read_current_offsets,
)
from backlogctl.spark_backfill.messages.candidates import SourceAccess
from backlogctl.spark_backfill.request import PriorChunk
from backlogctl.spark_backfill.sources.reflection import make_access, open_engine, reflect_table
from backlogctl.values import OffsetRange
from backlogctl_delivery import stamps
from tests.conftest import MakeTopic
from tests.spark_backfill import world
from tests.spark_backfill.archive.archiving import ANY_TIME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Case:
    """A kind of evidence over given keys: how to make it, add to its source, and break that."""

    make: Callable[[Path], Evidence]
    add: Callable[[Iterable[str]], None]
    ruin: Callable[[], Evidence]


@pytest.fixture(
    params=[
        "survivors",
        "survivors_by_header",
        "consumed",
        "consumed_text",
        "consumed_mariadb",
        "injected",
    ]
)
def case(request: pytest.FixtureRequest, spark: SparkSession) -> Case:
    """Each kind; all of them need Spark, which marks their tests."""
    made: Case = request.getfixturevalue(request.param)
    return made


def make_survivors(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, header: str | None, work: Path
) -> SurvivorEvidence:
    properties = {"bootstrap.servers": kafka.bootstrap}
    offsets = read_current_offsets(properties, topic, 3)
    return SurvivorEvidence(
        spark, topic, header, properties, offsets.starts, offsets.ends, (), work / "survivors"
    )


def _survivor_case(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, header: str | None, tmp_path: Path
) -> Case:
    name = topic(partitions=3)

    def add(keys: Iterable[str]) -> None:
        world.publish(
            kafka.bootstrap,
            name,
            [
                world.Published(
                    key.encode() if header is None else b"k",
                    b"v",
                    i % 3,
                    () if header is None else (("id", b"old"), ("id", key.encode())),
                )
                for i, key in enumerate(keys)
            ]
            + [world.Published(None, b"v", 0)],
        )

    def ruin() -> Evidence:
        add(["a", "b", "c", "d"])
        made = make_survivors(spark, kafka, name, header, tmp_path / "ruined")
        world.delete_below(kafka.bootstrap, name, {0: 2})
        return made

    return Case(lambda work: make_survivors(spark, kafka, name, header, work), add, ruin)


@pytest.fixture
def survivors(spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path) -> Case:
    return _survivor_case(spark, kafka, topic, None, tmp_path)


@pytest.fixture
def survivors_by_header(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> Case:
    return _survivor_case(spark, kafka, topic, "id", tmp_path)


def open_access(spark: SparkSession, url: str, table: str) -> SourceAccess:
    source = world.make_source(url)
    engine = open_engine(source, "shop")
    found = reflect_table(engine, "shop", table)
    return SourceAccess(spark, engine, make_access(source, "shop"), found, "UTC", 2)


def _consumed_case(spark: SparkSession, url: str, kind: str) -> Case:
    world.run_sql(url, f"CREATE TABLE done (order_id {kind})", "INSERT INTO done VALUES (NULL)")

    def make(work: Path) -> Evidence:
        return ConsumedEvidence(open_access(spark, url, "done"), "order_id", work / "consumed")

    def add(keys: Iterable[str]) -> None:
        world.run_sql(url, *(f"INSERT INTO done VALUES ('{key}')" for key in keys))

    def ruin() -> Evidence:
        evidence = make(Path("/nonexistent-and-not-needed"))
        world.run_sql(url, "ALTER TABLE done RENAME TO gone")
        return evidence

    return Case(make, add, ruin)


@pytest.fixture
def consumed(spark: SparkSession, pg_url: str) -> Case:
    return _consumed_case(spark, pg_url, "bigint")


@pytest.fixture
def consumed_text(spark: SparkSession, tmp_path: Path) -> Case:
    return _consumed_case(spark, f"sqlite:///{tmp_path}/shop.db", "TEXT")


@pytest.fixture
def consumed_mariadb(spark: SparkSession, mariadb_url: str) -> Case:
    return _consumed_case(spark, mariadb_url, "varchar(50) CHARACTER SET latin1")


@pytest.fixture
def injected(spark: SparkSession, tmp_path: Path) -> Case:
    chunks: list[PriorChunk] = []

    def add(keys: Iterable[str]) -> None:
        rows: list[dict[str, object]] = [
            {"message_id": k, "key": None, "value": b"", "partition": 0, "headers": [],
             "original_time": None}
            for k in keys
        ]  # fmt: skip
        table = pa.Table.from_pylist(rows, schema=CHUNK_SCHEMA)
        number = len(chunks)
        write_chunk(tmp_path / "r-1", 4, number, table)
        chunks.append(PriorChunk("r-1", 4, number))

    def make(work: Path) -> Evidence:
        return InjectedEvidence(spark, tmp_path, tuple(chunks))

    def ruin() -> Evidence:
        return InjectedEvidence(spark, tmp_path, (*chunks, PriorChunk("r-9", 0, 0)))

    return Case(make, add, ruin)


def explain(evidence: Evidence, keys: Iterable[str]) -> dict[str, str]:
    spark = evidence.collect_keys().sparkSession
    rows = [(key.encode() if evidence.matches == "identity" else key, None) for key in keys]
    kind = "binary" if evidence.matches == "identity" else "string"
    frame = world.make_frame(spark, rows, f"{evidence.matches} {kind}, reason string")
    found = label_candidates(frame, [evidence]).collect()
    assert len(found) == len(rows)
    return {(bytes(row[0]).decode() if kind == "binary" else row[0]): row["label"] for row in found}


def test_it_explains_exactly_its_keys_as_they_were_when_it_was_frozen(
    case: Case, tmp_path: Path
) -> None:
    """They are distinct, and never NULL. Without keys it explains nothing."""
    empty = case.make(tmp_path / "empty")
    empty.freeze()
    assert explain(empty, ["1", ""]) == {"1": "lost", "": "lost"}
    case.add(["1", "2", "2", "33"])
    evidence = case.make(tmp_path)
    evidence.freeze()
    case.add(["7"])
    evidence.freeze()
    assert evidence.label in LABELS
    assert evidence.matches in ("identity", "message_id")
    frame = evidence.collect_keys()
    assert dict(frame.dtypes) == {"key": "binary" if evidence.matches == "identity" else "string"}
    keys: list[Any] = [row["key"] for row in frame.collect()]
    assert None not in keys
    assert len(keys) == len({bytes(k) if isinstance(k, bytearray) else k for k in keys}) == 3
    asked = ("1", "2", "3", "33", "333", "01", "7")
    assert explain(evidence, asked) == {
        key: evidence.label if key in ("1", "2", "33") else "lost" for key in asked
    }


def test_half_of_the_evidence_is_none(case: Case) -> None:
    evidence = case.ruin()
    with pytest.raises(BacklogError) as caught:
        evidence.freeze()
    assert isinstance(caught.value, KafkaFailure | SourceError | Refused)
    assert caught.value.subject


def test_precedence_is_the_order_given(
    spark: SparkSession, survivors: Case, consumed: Case, tmp_path: Path
) -> None:
    survivors.add(["1", "2"])
    consumed.add(["2", "3"])
    both = [survivors.make(tmp_path), consumed.make(tmp_path)]
    for item in both:
        item.freeze()
    rows = [(key.encode(), reason) for key in ("1", "2", "3", "4") for reason in (None, "bad")]
    frame = world.make_frame(spark, rows, "identity binary, reason string")
    labels = {
        (bytes(row["identity"]).decode(), row["reason"]): row["label"]
        for row in label_candidates(frame, both).collect()
    }
    assert labels == {
        ("1", None): "surviving", ("1", "bad"): "surviving", ("2", None): "surviving",
        ("2", "bad"): "surviving", ("3", None): "consumed", ("3", "bad"): "consumed",
        ("4", None): "lost", ("4", "bad"): "quarantined",
    }  # fmt: skip


def test_fault_20_aborted_messages_are_no_survivors(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    name = topic(partitions=3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"t-{unique}"})
    producer.init_transactions(90)
    for keys, commit in ((["1", "2"], True), (["3", "4"], False), (["5"], True)):
        producer.begin_transaction()
        for key in keys:
            ours: list[tuple[str, str | bytes | None]] = []
            if key == "5":
                ours.append((stamps.MESSAGE_ID, b"x"))
            producer.produce(name, key=key.encode(), value=b"v", partition=1, headers=ours)
        assert producer.flush(90) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(90)
    world.await_decided(kafka.bootstrap, name, 3)
    evidence = make_survivors(spark, kafka, name, None, tmp_path)
    evidence.freeze()
    said = explain(evidence, ["1", "2", "3", "4", "5"])
    assert said == {"1": "surviving", "2": "surviving", "3": "lost", "4": "lost",
                    "5": "surviving"}  # fmt: skip
    span = evidence.measure_spans()[1]
    # 2 + marker, 2 + marker, then our own message at 6 and its marker.
    assert (span.end, span.records, span.first_ours) == (8, 3, 6)
    assert (span.span_before_ours, span.records_before_ours) == (6, 2)


def test_messages_within_the_lost_ranges_are_no_survivors(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=3)
    world.publish(kafka.bootstrap, name, [world.Published(b"%d" % i, b"", 0) for i in range(6)])
    properties = {"bootstrap.servers": kafka.bootstrap}
    offsets = read_current_offsets(properties, name, 3)
    evidence = SurvivorEvidence(
        spark, name, None, properties, offsets.starts, offsets.ends,
        (OffsetRange(0, 1, 3), OffsetRange(1, 0, 9)), tmp_path / "survivors",
    )  # fmt: skip
    evidence.freeze()
    said = explain(evidence, [str(i) for i in range(6)])
    assert [key for key, label in said.items() if label == "lost"] == ["1", "2"]


def test_fault_125_a_message_with_a_time_in_nanoseconds_survives(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Its time is not known: what has changed at any time is sent again."""
    name = topic(partitions=3, config=ANY_TIME)
    at = 1_763_726_400
    producer = make_producer({"bootstrap.servers": kafka.bootstrap})
    for key, time in ((b"ms", at * 1000), (b"ns", at * 10**9)):
        producer.produce(name, b"v", key, partition=0, timestamp=time)
    assert producer.flush(60) == 0
    evidence = replace(
        make_survivors(spark, kafka, name, None, tmp_path),
        lost=(OffsetRange(0, 2, 3),),
        restated=True,
    )
    evidence.freeze()
    rows = {bytes(row["identity"]): row["timestamp"] for row in evidence.read_frozen().collect()}
    assert rows == {b"ms": at * 1000, b"ns": None}
    until = {bytes(row["key"]): row["until"] for row in evidence.collect_keys().collect()}
    assert until == {b"ms": at * 1000, b"ns": 0}


def test_a_message_read_before_a_skip_does_not_hide_a_later_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Partition 0: read up to 3, skipped up to 6; the rest is to be read."""
    frozen = [(b"changed", 0, 1), (b"same", 0, 2), (b"back", 0, 1), (b"back", 0, 7),
              (b"other", 1, 0), (b"skipped", 0, 4)]  # fmt: skip
    noon = 1_763_726_400_000  # 2025-11-21T12:00:00Z
    work = str(tmp_path / "survivors")
    world.make_frame(
        spark,
        [(key, partition, offset, noon, False) for key, partition, offset in frozen],
        "identity binary, partition int, offset long, timestamp long, ours boolean",
    ).write.parquet(work)
    rows = [(key, "2025-11-21T12:00:01.000999Z" if key == b"same" else "2025-11-21T12:00:01.001000Z")
            for key in {item[0] for item in frozen}]  # fmt: skip
    candidates = world.make_frame(
        spark,
        [(key, at, None) for key, at in [*rows, (b"changed", None)]],
        "identity binary, time string, reason string",
    )
    said = {}
    for restated in (True, False):
        evidence = SurvivorEvidence(
            spark, "t", None, {}, {0: 0, 1: 0}, {0: 9, 1: 9}, (OffsetRange(0, 3, 6),),
            Path(work), restated,
        )  # fmt: skip
        found = label_candidates(candidates, [evidence]).collect()
        assert len(found) == len(rows) + 1
        said[restated] = {
            bytes(row["identity"]) for row in found if row["label"] == "lost" and row["time"]
        }
        assert [row["label"] for row in found if row["time"] is None] == ["surviving"]
    assert said == {True: {b"changed", b"skipped"}, False: {b"skipped"}}


def test_fault_23_moves_tell_both_bounds() -> None:
    assert describe_moves({0: 3, 1: 4}, {0: 9, 1: 4}) == "partition 0 from 3 to 9"
    assert describe_moves({0: 3}, {0: 3}) == ""
