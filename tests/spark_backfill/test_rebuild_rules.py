"""What a plan refuses or says about its rules: proof, identity, events, keys, nothing lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlogctl.errors import Refused, StagingError, UsageError
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Cause, Certainty
from backlogctl_delivery.stamps import make_message_id
from tests.conftest import MakeTopic
from tests.spark_backfill import world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    with pytest.raises(StagingError, match="staged already"):
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
    if kind == "value":
        allowed = replace(request, allow=frozenset({"proof"}))
        outcome = world.plan(spark, allowed)
        assert outcome.proof.matched == 0
        assert "user_id is only in the log" in outcome.proof.differences[0].detail


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
