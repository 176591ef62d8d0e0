"""Plans of rebuilds and their rules against a real broker, Spark, PostgreSQL and SQLite."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer

from backlogctl.clock import format_time
from backlogctl.errors import Refused, StagingError, UsageError
from backlogctl.manifests import read_manifest
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill import lost_rows
from backlogctl.spark_backfill.evidence.survivors import LogOffsets, read_current_offsets
from backlogctl.spark_backfill.messages.candidates import count_rows
from backlogctl.spark_backfill.messages.staging import ChunkLimits
from backlogctl.spark_backfill.rebuild import stage_rebuild
from backlogctl.spark_backfill.request import CandidateCounts, PriorChunk
from backlogctl.spark_backfill.spark import frames
from backlogctl.values import Cause, Certainty
from backlogctl_delivery.stamps import make_message_id
from tests.conftest import MakeTopic
from tests.spark_backfill import world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["small", "large"])
def copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is frozen on the way is read as one partition, or as large copies are, as many."""
    if request.param == "large":
        monkeypatch.setattr(frames, "_SMALL", 0)


@pytest.mark.usefixtures("copies")
def test_finds_exactly_the_lost_orders(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, url: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, 3001)]
    world.fill_table(url, world.ORDERS, rows)
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, 1000)
    stream = world.make_stream(lost.topic)
    request = world.make_request(kafka.bootstrap, stream, url, lost.gaps, tmp_path / "staging")
    outcome = stage_rebuild(spark, request, limits=ChunkLimits(messages=100))
    assert outcome.counts.rebuilt == outcome.counts.expected == 1000
    assert outcome.counts.surviving == 2000
    assert outcome.proof.rate == 1.0
    assert outcome.proof.compared == 200
    assert outcome.verdict == "covering"  # rows that change are sent as they are now
    assert len(outcome.reasons) == 1
    staged = world.read_staged(request)
    made = {
        int(m["key"]): (m["value"], m["partition"])
        for m in staged.select(["key", "value", "partition"]).to_pylist()
    }
    assert made == {
        row["order_id"]: (
            world.encode_order(row),
            world.place_key(str(row["order_id"]).encode(), 3),
        )
        for row in rows[:1000]
    }
    manifest = read_manifest(request.directory, outcome.manifest_sha256)
    canaries = [chunk for chunk in manifest.chunks if chunk.canary]
    assert [chunk.count for chunk in canaries] == [10, 10, 10]
    assert len({chunk.slot for chunk in canaries}) == 1
    json.dumps(outcome.to_json())


@pytest.mark.usefixtures("copies")
def test_consumed_evidence_makes_a_plan_exact(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, pg_url: str, tmp_path: Path
) -> None:
    """The demo's story: part was handled, part is lost, part survives."""
    rows = [world.make_order(number) for number in range(1, 601)]
    world.fill_table(pg_url, world.ORDERS, rows)
    world.run_sql(
        pg_url,
        "CREATE INDEX ON orders (updated_at)",
        "CREATE TABLE processed (order_id text PRIMARY KEY)",
        "INSERT INTO processed SELECT order_id FROM orders WHERE order_id <= 200",
    )
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, 300)
    handled = [0, 0, 0]
    for row in rows[:200]:
        handled[world.place_key(str(row["order_id"]).encode(), 3)] += 1
    gaps = tuple(replace(gap, start=handled[gap.partition], first_time=None) for gap in lost.gaps)
    stream = world.make_stream(
        lost.topic,
        mutable=False,
        consumed={"database": "shop", "table": "processed", "column": "order_id"},
    )
    request = world.make_request(kafka.bootstrap, stream, pg_url, gaps, tmp_path / "staging")
    outcome = world.plan(spark, request)
    assert (outcome.verdict, outcome.reasons) == ("exact", ())
    assert outcome.counts == CandidateCounts(
        expected=100, candidates=600, surviving=300, consumed=200, rebuilt=100
    )
    last = rows[299]["updated_at"] + timedelta(minutes=10)
    assert outcome.bounds == (None, format_time(last))
    assert world.keys_of(request) == list(range(201, 301))
    assert outcome.warnings == ()
    assert request.directory.stat().st_mode & 0o077 == 0
    assert not (request.directory / "work").exists()


def test_earlier_recoveries_are_subtracted_and_a_missing_list_is_refused(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, 201)]
    world.fill_table(shop, world.ORDERS, rows)
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, 60)
    stream = world.make_stream(lost.topic)
    staging = tmp_path / "staging"
    first = world.make_request(
        kafka.bootstrap, world.make_stream(lost.topic, margin="1ms"), shop, lost.gaps, staging,
        until=rows[29]["updated_at"], since=world.START,
    )  # fmt: skip
    assert world.plan(spark, first, messages=8).counts.rebuilt == 30
    second = world.make_request(
        kafka.bootstrap, stream, shop, lost.gaps, staging,
        recovery_id="r-20261121-0002", prior=world.list_prior(first),
    )  # fmt: skip
    outcome = world.plan(spark, second)
    assert outcome.counts.already_injected == 30
    assert world.keys_of(second) == list(range(31, 61))
    assert outcome.verdict == "covering"
    assert any("earlier recovery" in reason for reason in outcome.reasons)
    third = replace(
        second, recovery_id="r-3", prior=(*second.prior, PriorChunk("r-20261121-0001", 9, 0))
    )
    with pytest.raises(Refused, match="id lists"):
        world.plan(spark, third)


def test_faults_14_18_and_34_bad_rows_are_listed_and_chunks_deterministic(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, pg_url: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, 201)]
    create = world.ORDERS.replace("NUMERIC(12,2)", "NUMERIC").replace("VARCHAR(20)", "TEXT")
    world.fill_table(pg_url, create, rows)
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, 100)
    world.run_sql(
        pg_url,
        "UPDATE orders SET status = repeat('x', 3000) WHERE order_id = 7",
        "UPDATE orders SET amount = 'NaN' WHERE order_id IN (8, 150)",
    )
    stream = world.make_stream(lost.topic, mutable=False)
    requests = [
        world.make_request(
            kafka.bootstrap, stream, pg_url, lost.gaps, tmp_path / name,
            topic_config={"max.message.bytes": "2500"},
        )
        for name in ("one", "two")
    ]  # fmt: skip
    outcomes = [world.plan(spark, request, messages=15) for request in requests]
    assert outcomes[0].manifest_sha256 == outcomes[1].manifest_sha256
    assert outcomes[0].to_json() == {**outcomes[1].to_json(), "quarantine": ANY, "uncertain": ANY}
    outcome = outcomes[0]
    assert world.keys_of(requests[0]) == [n for n in range(1, 101) if n not in (7, 8)]
    quarantine = outcome.quarantine
    # Row 150 is poison too, but its message survives.
    assert [(item.primary_key, item.reason) for item in quarantine.sample] == [
        (("7",), "larger than the topic allows (2500 bytes with its overhead)"),
        (("8",), "column amount: NaN or infinite"),
    ]
    assert (quarantine.count, outcome.counts.quarantined, outcome.counts.shortfall) == (2, 2, 2)
    assert sum(item.quarantined for item in outcome.partitions) == 2
    assert Path(quarantine.path).is_dir()
    for message in world.read_staged(requests[0]).to_pylist():
        headers = {h["name"]: h["value"] for h in message["headers"]}
        original = rows[int(message["key"]) - 1]["updated_at"]
        assert headers["backlog-original-time"] == format_time(original).encode()
        assert headers["backlog-fidelity"] == b"original"
        version = format_time(original)
        expected = make_message_id(lost.topic, [message["key"].decode()], version)
        assert message["message_id"] == expected


def test_messages_are_in_order_within_a_slot(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, pg_url: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number, minutes=(number * 37) % 101) for number in range(1, 201)]
    world.fill_table(pg_url, world.ORDERS, rows)
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, 200)
    for order, key in (
        (None, lambda row: (row["updated_at"], row["order_id"])),
        (["amount", "order_id"], lambda row: (float(row["amount"]), row["order_id"])),
    ):
        stream = world.make_stream(lost.topic, order_by=order)
        request = world.make_request(
            kafka.bootstrap, stream, pg_url, lost.gaps, tmp_path / f"staging-{bool(order)}",
            since=world.START,
        )  # fmt: skip
        outcome = world.plan(spark, request, messages=30)
        assert outcome.proof.compared == 0
        assert "no survivor" in " ".join(outcome.warnings)
        staged = world.read_staged(request)
        for slot in range(3):
            mask = pc.equal(staged["partition"], slot)
            got = [int(k) for k in staged.filter(mask)["key"].to_pylist()]
            assert got == sorted(got, key=lambda n: key(rows[n - 1]))


def test_fault_31_a_row_committed_late_is_caught_by_the_margin(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    rows = [world.make_order(1, minutes=-9), world.make_order(2, minutes=-11),
            *(world.make_order(n, minutes=n) for n in range(3, 21)),
            world.make_order(21, minutes=29)]  # fmt: skip
    world.fill_table(shop, world.ORDERS, rows)
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, len(rows))
    stream = world.make_stream(lost.topic, mutable=False, margin="10m")
    request = world.make_request(
        kafka.bootstrap, stream, shop, lost.gaps, tmp_path / "staging",
        since=world.START, until=world.START + timedelta(minutes=20),
    )  # fmt: skip
    outcome = world.plan(spark, request)
    assert world.keys_of(request) == [1, *range(3, 22)]
    assert (outcome.verdict, outcome.counts.shortfall) == ("short", 1)


def test_fault_30_rows_that_change_meanwhile_are_frozen_and_reported(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    shop: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [world.make_order(number) for number in range(1, 101)]
    world.fill_table(shop, world.ORDERS, rows)
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, 50)
    counted: list[int] = []

    def count_and_change(access: Any, where: str) -> int:
        # The second count comes right after the rows were read.
        if counted:
            world.run_sql(
                shop,
                "UPDATE orders SET status = 'changed'",
                "DELETE FROM orders WHERE order_id <= 3",
            )
        counted.append(count_rows(access, where))
        return counted[-1]

    monkeypatch.setattr(lost_rows, "count_rows", count_and_change)
    stream = world.make_stream(lost.topic)
    request = world.make_request(kafka.bootstrap, stream, shop, lost.gaps, tmp_path / "staging")
    outcome = world.plan(spark, request)
    assert counted == [100, 97]
    assert any("100 before, 97 after" in warning for warning in outcome.warnings)
    staged = world.read_staged(request)
    assert [
        (int(m["key"]), m["value"]) for m in sorted(staged.to_pylist(), key=lambda m: int(m["key"]))
    ] == [(row["order_id"], world.encode_order(row)) for row in rows[:50]]
    # The proof reads the rows as they are now, and says that they changed.
    assert outcome.proof.rate == 1.0
    assert outcome.proof.equal_values == 0
    assert any("changed since" in warning for warning in outcome.warnings)


def test_fault_23_retention_that_moves_while_planning_is_read_again(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    shop: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [world.make_order(number) for number in range(1, 201)]
    world.fill_table(shop, world.ORDERS, rows)
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, 50)
    partition, start = max(lost.by_partition.items())
    asked: list[LogOffsets] = []

    def read_then_expire(*arguments: Any) -> LogOffsets:
        asked.append(read_current_offsets(*arguments))
        if len(asked) == 1:
            world.delete_below(kafka.bootstrap, lost.topic, {partition: start + 4})
        return asked[-1]

    monkeypatch.setattr(lost_rows, "read_current_offsets", read_then_expire)
    stream = world.make_stream(lost.topic)
    request = world.make_request(kafka.bootstrap, stream, shop, lost.gaps, tmp_path / "staging")
    outcome = world.plan(spark, request)
    moved = f"partition {partition} from {start} to {start + 4}"
    assert any(moved in warning for warning in outcome.warnings)
    assert outcome.log_start[partition] == start + 4
    # What expired meanwhile is a new gap: here it is more than this plan's gaps hold.
    assert (outcome.verdict, outcome.counts.surplus) == ("covering", 4)


def test_faults_19_and_20_holes_are_not_losses(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, unique: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    rows = [world.make_order(number) for number in range(1, 61)]
    world.fill_table(shop, world.ORDERS, rows)
    name = topic(partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"t-{unique}"})
    producer.init_transactions(90)
    for at in range(0, 60, 10):
        producer.begin_transaction()
        for row in rows[at : at + 10]:
            key = str(row["order_id"]).encode()
            producer.produce(name, key=key, value=world.encode_order(row), partition=0)
        assert producer.flush(90) == 0
        producer.commit_transaction(90)
        if at == 40:  # this one never was: its message is no survivor
            producer.begin_transaction()
            producer.produce(name, key=b"25", value=b"aborted", partition=0)
            assert producer.flush(90) == 0
            producer.abort_transaction(90)
    world.await_decided(kafka.bootstrap, name, 1)
    world.delete_below(kafka.bootstrap, name, {0: 33})
    stream = world.make_stream(name, mutable=False)
    gaps = (world.make_gap(name, 0, 0, 33),)
    request = world.make_request(
        kafka.bootstrap, stream, shop, gaps, tmp_path / "staging", partitions=1
    )
    outcome = world.plan(spark, request)
    # 33 offsets: 30 messages and 3 markers.
    assert world.keys_of(request) == list(range(1, 31))
    assert outcome.verdict == "short"
    assert "at most 3, control records included" in outcome.reasons[0]


def test_fault_37_no_lost_row_is_no_success(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, 21)]
    world.fill_table(shop, world.ORDERS, rows)
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, 10)
    stream = world.make_stream(lost.topic)
    request = world.make_request(
        kafka.bootstrap, stream, shop, lost.gaps, tmp_path / "staging",
        since=world.START + timedelta(days=2),
    )  # fmt: skip
    with pytest.raises(Refused, match="no row was lost among 0 candidates, but 10 offsets"):
        world.plan(spark, request)
    # What a refused plan leaves does not hinder the next, and a staged one is not staged twice.
    good = replace(request, since=None)
    assert world.plan(spark, good).counts.rebuilt == 10
    with pytest.raises(StagingError, match="staged there already"):
        world.plan(spark, good)
    limited = replace(
        good, recovery_id="r-2", stream=world.make_stream(lost.topic, limits={"max_messages": 9})
    )
    with pytest.raises(Refused, match="max_messages"):
        world.plan(spark, limited)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"message": {"key": "order_id", "value": {"json": ["order_id", "amount"]}}}, "value"),
        ({"message": {"key": "order_id", "value": {"json": world.FIELDS},
                      "headers": {"type": "'x'"}}}, "headers"),
        ({"partitioner": "crc32", "mutable": True}, "partition"),
    ],
)  # fmt: skip
def test_the_proof_catches_wrong_rules(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path,
    change: dict[str, Any], kind: str,
) -> None:  # fmt: skip
    rows = [world.make_order(number) for number in range(1, 121)]
    world.fill_table(shop, world.ORDERS, rows)
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, 60)
    stream = world.make_stream(lost.topic, **{"mutable": False, **change})
    request = world.make_request(kafka.bootstrap, stream, shop, lost.gaps, tmp_path / "staging")
    with pytest.raises(Refused, match=f"{kind}") as caught:
        world.plan(spark, request)
    assert "--allow proof" in caught.value.hint
    assert not (request.directory / "manifest.json").exists()
    if kind == "headers":
        # The wrong header identifies nothing: that compares nothing, and proves nothing.
        wrong = world.make_stream(lost.topic, identity={"row": "order_id", "message": "header:id"})
        with pytest.raises(Refused, match="60 messages survive, 0 of them"):
            world.plan(spark, replace(request, stream=wrong, allow=frozenset({"surplus"})))
        allowed = replace(request, allow=frozenset({"proof"}))
        outcome = world.plan(spark, allowed)
        assert outcome.proof.matched == 0
        assert outcome.proof.differences


def test_an_ambiguous_identity_is_refused(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, 31)]
    world.fill_table(shop, world.ORDERS, rows)
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, 10)
    stream = world.make_stream(lost.topic, identity={"row": "status", "message": "key"})
    request = world.make_request(kafka.bootstrap, stream, shop, lost.gaps, tmp_path / "staging")
    with pytest.raises(Refused, match="identities stand for several rows"):
        world.plan(spark, request)
    undecided = replace(request, stream=world.make_stream(lost.topic, stale="refuse"))
    with pytest.raises(Refused, match="stale"):
        world.plan(spark, undecided)
    gaps = tuple(replace(gap, first_time=None) for gap in lost.gaps)
    with pytest.raises(UsageError, match="--since"):
        world.plan(spark, replace(request, stream=world.make_stream(lost.topic), gaps=gaps))


def test_events_are_identified_by_a_header_and_skipped_ones_are_lost(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, pg_url: str, tmp_path: Path
) -> None:
    """An append-only table; a group that skipped messages that are still in the log."""
    world.run_sql(
        pg_url,
        "CREATE TABLE events (event uuid PRIMARY KEY, customer text, kind text, payload bytea, "
        "at timestamptz)",
        "INSERT INTO events SELECT md5(i::text)::uuid, 'c' || i % 5, CASE i % 2 WHEN 0 THEN 'A' END, "
        "decode(lpad(to_hex(i), 8, '0'), 'hex'), "
        "timestamptz '2026-11-20 12:00+00' + i * interval '1 s' FROM generate_series(1, 90) i",
    )
    engine = world.open_database(pg_url)
    with engine.connect() as connection:
        events = connection.exec_driver_sql(
            "SELECT event::text, customer, kind, payload FROM events ORDER BY at"
        ).all()
    engine.dispose()
    name = topic(partitions=3)
    world.publish(
        kafka.bootstrap,
        name,
        [
            world.Published(
                event.customer.encode(), bytes(event.payload),
                world.place_key(event.customer.encode(), 3),
                (("id", event.event.encode()), ("kind", event.kind and event.kind.encode())),
            )
            for event in events
        ],
    )  # fmt: skip
    stream = world.make_stream(
        name, table="events", primary_key="event", time_column="at", stale="events",
        message={"key": "customer", "value": {"column": "payload"},
                 "headers": {"id": "event", "kind": "kind"}},
        identity={"row": "event", "message": "header:id"},
    )  # fmt: skip
    by_partition: dict[int, list[str]] = {}
    for event in events:
        partition = world.place_key(event.customer.encode(), 3)
        by_partition.setdefault(partition, []).append(event.event)
    partition, ids = max(by_partition.items(), key=lambda item: len(item[1]))
    gap = world.make_gap(name, partition, 5, 9, cause=Cause.SKIPPED, certainty=Certainty.BOUNDED)
    request = world.make_request(kafka.bootstrap, stream, pg_url, (gap,), tmp_path / "staging")
    outcome = world.plan(spark, request)
    staged = world.read_staged(request).to_pylist()
    assert [m["headers"][0]["value"].decode() for m in staged] == ids[5:9]
    assert all(m["headers"][1]["name"] == "kind" for m in staged)
    assert [m["message_id"] for m in staged] == [
        make_message_id(name, [event], event) for event in ids[5:9]
    ]
    assert outcome.fidelity == "original"
    assert outcome.proof.rate == 1.0
    assert outcome.proof.compared == 90
    assert outcome.verdict == "short"
    assert any("upper bound" in reason for reason in outcome.reasons)


def test_messages_without_a_key_are_spread_and_never_exact(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, 61)]
    world.fill_table(shop, world.ORDERS, rows)
    name = topic(partitions=3)
    stream = world.make_stream(
        name, stale="refuse", message={"value": {"json": world.FIELDS},
        "headers": {"order": "order_id"}}, identity={"row": "order_id", "message": "header:order"},
    )  # fmt: skip
    gaps = (world.make_gap(name, 0, 0, 30), world.make_gap(name, 2, 0, 30))
    request = world.make_request(kafka.bootstrap, stream, shop, gaps, tmp_path / "staging")
    outcome = world.plan(spark, request)
    assert outcome.counts.rebuilt == 60
    assert {item.partition for item in outcome.partitions if item.rebuilt} == {0, 2}
    assert outcome.verdict != "exact"
    assert any("spread" in reason for reason in outcome.reasons)
    assert any("no partition that is known" in warning for warning in outcome.warnings)
