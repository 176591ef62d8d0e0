"""Which rows were lost without a table of what was handled: a real broker, Spark and SQLite."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Message, Producer

from backlogctl.manifests import read_chunk, read_manifest
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill import lost_rows
from backlogctl.spark_backfill.request import PriorChunk, RebuildRequest
from backlogctl_delivery import stamps
from tests.conftest import MakeTopic
from tests.spark_backfill import world
from tests.spark_backfill.placing.losing import (
    HANDLED,  # fmt: skip
    LOST,  # fmt: skip
    PARTITIONS,  # fmt: skip
    ROWS,  # fmt: skip
    lose,  # fmt: skip
    lost_keys,  # fmt: skip
    mark,  # fmt: skip
    open_request,  # fmt: skip
    place,  # fmt: skip
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_bookmarks_make_a_plan_exact(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, ROWS + 1)]
    name = topic(partitions=PARTITIONS)
    gaps = lose(kafka, name, shop, rows)
    marks = tuple(mark(rows, gap.partition, gap.start or 0) for gap in gaps)
    request = open_request(kafka, name, shop, tmp_path, gaps, bookmarks=marks)
    outcome = world.plan(spark, request)
    assert world.keys_of(request) == lost_keys(rows)
    assert (outcome.verdict, outcome.reasons) == ("exact", ())
    assert outcome.evidence == (
        "where the losses begin is known by bookmarks in 3 partitions; counting agrees in 3 of 3; "
        "300 survivors stand in the order of their rows"
    )
    assert (outcome.displacement, outcome.uncertain.count) == (0, 0)
    assert outcome.counts.outside > 100


def test_a_loss_in_one_partition_takes_no_rows_of_others(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, ROWS + 1)]
    name = topic(partitions=PARTITIONS)
    gaps = lose(kafka, name, shop, rows)[1:2]
    marks = (mark(rows, 1, gaps[0].start or 0),)
    request = open_request(kafka, name, shop, tmp_path, gaps, bookmarks=marks)
    outcome = world.plan(spark, request)
    assert world.keys_of(request) == lost_keys(rows, [1])
    assert outcome.verdict == "exact"


def test_counting_back_finds_them_and_never_says_exact(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, ROWS + 1)]
    name = topic(partitions=PARTITIONS)
    gaps = lose(kafka, name, shop, rows)
    request = open_request(kafka, name, shop, tmp_path, gaps)
    outcome = world.plan(spark, request)
    assert world.keys_of(request) == lost_keys(rows)
    assert outcome.verdict == "within"
    assert 0 < outcome.uncertain.count < 20
    assert outcome.uncertain.count == sum(part.uncertain for part in outcome.partitions)
    assert {part.evidence for part in outcome.partitions} == {"counted"}
    keys = {int(row.primary_key[0] or 0): row.taken for row in outcome.uncertain.sample}
    assert len(keys) == outcome.uncertain.count
    assert all(taken == (key > HANDLED) for key, taken in keys.items())

    for edge, within in (("include", set(keys)), ("exclude", set())):
        other = open_request(
            kafka, name, shop, tmp_path, gaps, recovery_id=f"r-{edge}", source={"edge": edge}
        )
        world.plan(spark, other)
        sure = set(lost_keys(rows)) - set(keys)
        assert set(world.keys_of(other)) == sure | within


def test_rows_never_sent_are_told_where_a_bookmark_knows_the_beginning(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, ROWS + 1)]
    name = topic(partitions=PARTITIONS)
    gaps = lose(kafka, name, shop, rows)
    extra = world.make_order(ROWS + 1, minutes=(HANDLED + LOST) / 2 / 60)
    world.run_sql(
        shop,
        "INSERT INTO orders VALUES "
        f"({extra['order_id']}, 1, 'new', '1.00', '{extra['updated_at']:%Y-%m-%d %H:%M:%S.%f}')",
    )
    marks = tuple(mark(rows, gap.partition, gap.start or 0) for gap in gaps)
    request = open_request(kafka, name, shop, tmp_path, gaps, bookmarks=marks)
    outcome = world.plan(spark, request)
    assert (outcome.verdict, outcome.counts.surplus) == ("surplus", 1)
    assert [part.differs for part in outcome.partitions if part.differs] == [1]
    assert "counting agrees in 2 of 3, and differs by at most 1 row" in outcome.evidence


def test_what_was_put_back_and_expires_in_part_is_lost_again_message_by_message(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, ROWS + 1)]
    name = topic(partitions=PARTITIONS)
    gaps = lose(kafka, name, shop, rows)
    marks = tuple(mark(rows, gap.partition, gap.start or 0) for gap in gaps)
    first = open_request(kafka, name, shop, tmp_path, gaps, bookmarks=marks)
    world.plan(spark, first, messages=40)
    prior, offsets = put_back(kafka.bootstrap, name, first)
    # The group read all that survived, and the first of partition 0's that were put back.
    begin = min(offsets[key] for key in lost_keys(rows, [0]))
    start, end = begin + 20, begin + 90
    world.delete_below(kafka.bootstrap, name, {0: end})
    late = rows[-1]["updated_at"] + timedelta(hours=1)
    again = world.make_gap(name, 0, start, end, late, late + timedelta(minutes=1))
    second = open_request(
        kafka, name, shop, tmp_path, (again,), recovery_id="r-2", prior=prior,
        read_since=rows[0]["updated_at"],
    )  # fmt: skip
    outcome = world.plan(spark, second)
    lost = [key for key in lost_keys(rows, [0]) if start <= offsets[key] < end]
    assert 60 < len(lost) < 70  # the control records of their transactions lie among them
    assert world.keys_of(second) == lost
    assert (outcome.counts.expected, outcome.counts.rebuilt) == (len(lost), len(lost))


def test_what_was_put_back_and_what_was_never_read_are_lost_together(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> None:
    """A row at the edge whose message was put back is known by where that was."""
    rows = [world.make_order(number) for number in range(1, ROWS + 1)]
    name = topic(partitions=PARTITIONS)
    gaps = lose(kafka, name, shop, rows)
    first = open_request(kafka, name, shop, tmp_path, gaps)
    world.plan(spark, first)
    prior, offsets = put_back(kafka.bootstrap, name, first)
    start, end = gaps[0].end or 0, max(offsets[key] for key in lost_keys(rows, [0])) + 2
    world.delete_below(kafka.bootstrap, name, {0: end})
    late = rows[-1]["updated_at"] + timedelta(minutes=1)
    again = world.make_gap(name, 0, start, end, rows[LOST]["updated_at"], late)
    second = open_request(
        kafka, name, shop, tmp_path, (again,), recovery_id="r-2", prior=prior,
        read_since=rows[0]["updated_at"],
    )  # fmt: skip
    outcome = world.plan(spark, second)
    lost = [row["order_id"] for row in rows[HANDLED:] if place(row) == 0]
    assert world.keys_of(second) == lost
    assert (outcome.counts.expected, outcome.counts.shortfall) == (len(lost), 0)
    assert outcome.verdict == "within"
    put_back_keys = set(lost_keys(rows))
    assert not put_back_keys & {int(row.primary_key[0] or 0) for row in outcome.uncertain.sample}


def put_back(
    bootstrap: str, topic: str, request: RebuildRequest
) -> tuple[tuple[PriorChunk, ...], dict[int, int]]:
    """Sends what a plan staged, a transaction a chunk; the chunks, and each order's offset."""
    manifest = read_manifest(request.directory)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-back", "linger.ms": 5}
    )
    producer.init_transactions(90)
    found = []
    places: dict[int, int] = {}

    def note(_: object, sent: Message) -> None:
        places[int(sent.key() or 0)] = sent.offset() or 0

    for chunk in manifest.chunks:
        messages = read_chunk(request.directory, chunk).to_pylist()
        producer.begin_transaction()
        for message in messages:
            headers = [(item["name"], item["value"]) for item in message["headers"]]
            assert any(name == stamps.MESSAGE_ID for name, _ in headers)
            producer.produce(
                topic, key=message["key"], value=message["value"], partition=chunk.slot,
                headers=headers, on_delivery=note,
            )  # fmt: skip
        assert producer.flush(90) == 0
        producer.commit_transaction(90)
        offsets = [places[int(message["key"])] for message in messages]
        where = (chunk.slot, chunk.number, chunk.count, min(offsets), max(offsets))
        found.append(PriorChunk(request.recovery_id, *where))
    world.await_decided(bootstrap, topic, PARTITIONS)
    return tuple(found), places


def test_a_loss_without_a_date_is_read_for_until_its_beginning_is_found(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, pg_url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its partition had nearly all messages before, and few of those since."""
    monkeypatch.setattr(lost_rows, "_MORE_ROWS", 0)
    numbered = [world.make_order(number) for number in range(1, 9_000)]
    mine = iter([row for row in numbered if place(row) == 0])
    others = iter([row for row in numbered if place(row) != 0])
    chosen = [next(mine) for _ in range(1_500)]
    chosen += [next(mine if number % 10 == 0 else others) for number in range(800)]
    rows = [
        {**row, "updated_at": world.START + timedelta(seconds=number)}
        for number, row in enumerate(chosen)
    ]
    name = topic(partitions=PARTITIONS)
    world.fill_table(pg_url, world.ORDERS, rows)
    world.publish_orders(kafka.bootstrap, name, rows)
    world.delete_below(kafka.bootstrap, name, {0: 1_550})
    gap = world.make_gap(name, 0, 1_500, 1_550, None, rows[2_290]["updated_at"])
    request = open_request(
        kafka, name, pg_url, tmp_path, (gap,), source={"margin": "1s", "edge": "include"}
    )
    outcome = world.plan(spark, request)
    lost = [row["order_id"] for row in rows if place(row) == 0][1_500:1_550]
    assert set(lost) <= set(world.keys_of(request))
    assert len(world.keys_of(request)) <= len(lost) + outcome.uncertain.count
    assert outcome.verdict == "within"
    assert any("times as many" in warning for warning in outcome.warnings)
