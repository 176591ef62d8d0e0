"""Rows whose partition was added since, expired whole, or is not known: a real broker and Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.request import Growth
from backlogctl.values import Bookmark
from backlogctl_delivery.stamps import hash_identity
from tests.conftest import MakeTopic
from tests.spark_backfill import world
from tests.spark_backfill.placing.losing import (
    HANDLED,  # fmt: skip
    LOST,  # fmt: skip
    PARTITIONS,  # fmt: skip
    ROWS,  # fmt: skip
    count,  # fmt: skip
    lost_keys,  # fmt: skip
    open_request,  # fmt: skip
    place,  # fmt: skip
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_partitions_added_since_are_proved_by_the_old_count_and_placed_by_the_new(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, ROWS + 1)]
    name = topic(partitions=PARTITIONS)
    world.fill_table(shop, world.ORDERS, rows)
    grown_at = 750
    world.publish_orders(kafka.bootstrap, name, rows[:grown_at], 2)
    world.publish_orders(kafka.bootstrap, name, rows[grown_at:], PARTITIONS)
    handled, gone = count(rows[:HANDLED], 2), count(rows[:LOST], 2)
    world.delete_below(kafka.bootstrap, name, dict(enumerate(gone)))
    first, last = (rows[at]["updated_at"] for at in (HANDLED, LOST - 1))
    gaps = tuple(
        world.make_gap(name, p, handled[p], gone[p], first - timedelta(minutes=2), last)
        for p in range(2)
    )
    grown = rows[grown_at]["updated_at"]
    growth = (Growth(2, grown - timedelta(seconds=20), grown + timedelta(seconds=10)),)
    request = open_request(
        kafka, name, shop, tmp_path, gaps, growth=growth, source={"margin": "1m"}
    )
    outcome = world.plan(spark, request)
    assert outcome.proof.rate == 1.0
    assert world.keys_of(request) == [row["order_id"] for row in rows[HANDLED:LOST]]
    assert outcome.slots == (0, 1, 2)
    assert [part.partition for part in outcome.partitions] == [0, 1]
    assert [part.rebuilt for part in outcome.partitions] == [gone[p] - handled[p] for p in range(2)]
    for message in world.read_staged(request).to_pylist():
        assert message["partition"] == world.place_key(message["key"], PARTITIONS)
    blind = world.plan(
        spark, replace(request, recovery_id="r-2", growth=(), allow=frozenset({"proof"}))
    )
    assert (blind.proof.rate or 0) < 0.9


def test_rows_that_were_sent_while_partitions_were_added_are_of_either_partition(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, ROWS + 1)]
    name = topic(partitions=PARTITIONS)
    world.fill_table(shop, world.ORDERS, rows)
    grown_at = 450
    world.publish_orders(kafka.bootstrap, name, rows[:grown_at], 2)
    world.publish_orders(kafka.bootstrap, name, rows[grown_at:], PARTITIONS)
    old, new = rows[HANDLED:grown_at], rows[grown_at:LOST]
    first_old = next(row for row in old if place(row, 2) == 0)
    handled = count(rows[:HANDLED], 2)[0]
    gone = count(rows[:grown_at], 2)[0] + count(new)[0]
    world.delete_below(kafka.bootstrap, name, {0: gone})
    first, last = (rows[at]["updated_at"] for at in (HANDLED, LOST - 1))
    gap = world.make_gap(name, 0, handled, gone, first - timedelta(minutes=2), last)
    grown = rows[grown_at]["updated_at"]
    growth = (Growth(2, grown - timedelta(seconds=20), grown + timedelta(seconds=10)),)
    source = {"margin": "1s"}
    begin = Bookmark(
        0, handled, handled, hash_identity("topic-id", str(first_old["order_id"]).encode())
    )
    request = open_request(
        kafka, name, shop, tmp_path, (gap,), growth=growth, source=source, bookmarks=(begin,)
    )
    outcome = world.plan(spark, request)
    lost = {row["order_id"] for row in old if place(row, 2) == 0}
    lost |= {row["order_id"] for row in new if place(row) == 0}
    found = set(world.keys_of(request))
    assert lost <= found
    uncertain = {int(row.primary_key[0] or 0) for row in outcome.uncertain.sample}
    assert found - lost <= uncertain, "what may be of another partition is told"
    by_id = {row["order_id"]: row for row in rows}
    assert all(0 in (place(by_id[key], 2), place(by_id[key])) for key in found)
    assert outcome.verdict != "exact"


def test_rows_behind_the_end_of_a_partition_that_expired_whole_are_not_lost(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    """No survivor says where its log begins: its messages all expired, and later rows were never
    sent."""
    rows = [world.make_order(number) for number in range(1, ROWS + 1)]
    name = topic(partitions=PARTITIONS)
    world.fill_table(shop, world.ORDERS, rows)
    sent = [row for number, row in enumerate(rows) if number < LOST or place(row) != 0]
    world.publish_orders(kafka.bootstrap, name, sent)
    handled, gone = count(rows[:HANDLED])[0], count(rows[:LOST])[0]
    world.delete_below(kafka.bootstrap, name, {0: gone})
    first, last = (rows[at]["updated_at"] for at in (HANDLED, LOST - 1))
    gap = world.make_gap(name, 0, handled, gone, first - timedelta(minutes=2), last)
    request = open_request(kafka, name, shop, tmp_path, (gap,))
    outcome = world.plan(spark, request)
    uncertain = {int(row.primary_key[0] or 0) for row in outcome.uncertain.sample}
    # A row a second, and clocks may differ by five: those may seem to be of before the end.
    behind = {row["order_id"] for row in rows[LOST : LOST + 5] if place(row) == 0}
    found = set(world.keys_of(request))
    assert found - set(lost_keys(rows, [0])) <= behind | uncertain
    assert len(set(lost_keys(rows, [0])) - found) <= len(behind)
    assert outcome.verdict == "short"
    assert any("rows without a message" in reason for reason in outcome.reasons)


def test_messages_without_a_key_fill_what_the_gaps_lack(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    """Every ninth message has no key, and went to any partition; the consumer keeps a table."""
    rows = [world.make_order(number) for number in range(1, ROWS + 1)]
    name = topic(partitions=PARTITIONS)
    world.fill_table(shop, world.ORDERS, rows)
    sent: list[list[int]] = [[] for _ in range(PARTITIONS)]
    messages = []
    for row in rows:
        keyless = row["order_id"] % 9 == 0
        partition = row["order_id"] // 9 % PARTITIONS if keyless else place(row)
        key = str(row["order_id"]).encode()
        messages.append(
            world.Published(
                None if keyless else key, world.encode_order(row), partition, (("order", key),)
            )
        )
        sent[partition].append(row["order_id"])
    world.publish(kafka.bootstrap, name, messages)
    world.run_sql(
        shop,
        "CREATE TABLE processed (order_id text PRIMARY KEY)",
        f"INSERT INTO processed SELECT order_id FROM orders WHERE order_id <= {HANDLED}",
    )
    first, last = (rows[at]["updated_at"] for at in (HANDLED, LOST - 1))
    handled = [sum(number <= HANDLED for number in own) for own in sent]
    gone = [sum(number <= LOST for number in own) for own in sent]
    world.delete_below(kafka.bootstrap, name, dict(enumerate(gone)))
    gaps = tuple(
        world.make_gap(name, p, handled[p], gone[p], first, last) for p in range(PARTITIONS)
    )
    request = open_request(
        kafka, name, shop, tmp_path, gaps,
        source={
            "message": {
                "key": {"sql": "CASE WHEN order_id % 9 = 0 THEN NULL ELSE order_id END"},
                "value": {"json": world.FIELDS},
                "headers": {"order": "order_id"},
            },
            "identity": {"row": "order_id", "message": "header:order"},
            "consumed": {"database": "shop", "table": "processed", "column": "order_id"},
        },
    )  # fmt: skip
    outcome = world.plan(spark, request)
    ids = sorted(
        int({h["name"]: h["value"] for h in message["headers"]}["order"])
        for message in world.read_staged(request).to_pylist()
    )
    assert ids == list(range(HANDLED + 1, LOST + 1))
    assert (outcome.verdict, outcome.reasons) == ("exact", ())
    assert [part.rebuilt for part in outcome.partitions] == [
        gone[p] - handled[p] for p in range(PARTITIONS)
    ]
    assert any("totals are compared" in warning for warning in outcome.warnings)
