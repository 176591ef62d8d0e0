"""Which rows were lost without a table of what was handled; partitions that came or went."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from confluent_kafka import Message, Producer

from backlogctl.manifests import read_chunk, read_manifest
from backlogctl.spark_backfill import lost_rows
from backlogctl.spark_backfill.request import Growth, PriorChunk, RebuildRequest
from backlogctl.values import Bookmark
from backlogctl_delivery import stamps
from backlogctl_delivery.stamps import hash_identity
from tests.spark_backfill import world
from tests.spark_backfill.placing.losing import (
    HANDLED,
    LOST,
    PARTITIONS,
    ROWS,
    Losing,
    count,
    lost_keys,
    make_orders,
    mark,
    mark_all,
    place,
)


def test_bookmarks_make_a_plan_exact_and_what_was_put_back_is_lost_again_message_by_message(
    losing: Losing,
) -> None:
    rows = make_orders()
    gaps = losing.lose(rows)
    marks = mark_all(rows, gaps)
    request = losing.open(gaps, bookmarks=marks)
    outcome = losing.plan(request, messages=40)
    assert world.keys_of(request) == lost_keys(rows)
    assert (outcome.verdict, outcome.reasons) == ("exact", ())
    assert outcome.evidence == (
        "where the losses begin is known by bookmarks in 3 partitions; counting agrees in 3 of 3; "
        "300 survivors stand in the order of their rows"
    )
    assert (outcome.displacement, outcome.uncertain.count) == (0, 0)
    assert outcome.counts.outside > 100

    # A part of what was put back expires.
    prior, offsets = put_back(losing, request)
    # The group read all that survived, and the first of partition 0's that were put back.
    begin = min(offsets[key] for key in lost_keys(rows, [0]))
    start, end = begin + 20, begin + 90
    losing.delete_below({0: end})
    late = rows[-1]["updated_at"] + timedelta(hours=1)
    again = losing.make_gap(0, start, end, late, late + timedelta(minutes=1))
    second = losing.open((again,), recovery_id="r-2", prior=prior,
        read_since=rows[0]["updated_at"],
    )  # fmt: skip
    outcome = losing.plan(second)
    lost = [key for key in lost_keys(rows, [0]) if start <= offsets[key] < end]
    assert 60 < len(lost) < 70  # the control records of their transactions lie among them
    assert world.keys_of(second) == lost
    assert (outcome.counts.expected, outcome.counts.rebuilt) == (len(lost), len(lost))


def test_a_loss_in_one_partition_takes_no_rows_of_others(losing: Losing) -> None:
    rows = make_orders()
    gaps = losing.lose(rows)[1:2]
    marks = (mark(rows, 1, gaps[0].start or 0),)
    request = losing.open(gaps, bookmarks=marks)
    outcome = losing.plan(request)
    assert world.keys_of(request) == lost_keys(rows, [1])
    assert outcome.verdict == "exact"


def test_counting_back_finds_them_and_never_says_exact(losing: Losing) -> None:
    rows = make_orders()
    gaps = losing.lose(rows)
    request = losing.open(gaps)
    outcome = losing.plan(request)
    assert world.keys_of(request) == lost_keys(rows)
    assert outcome.verdict == "short"
    assert 0 < outcome.uncertain.count < 20
    assert outcome.uncertain.count == sum(part.uncertain for part in outcome.partitions)
    assert {part.evidence for part in outcome.partitions} == {"counted"}
    keys = {int(row.primary_key[0] or 0): row.taken for row in outcome.uncertain.sample}
    assert len(keys) == outcome.uncertain.count
    assert all(taken == (key > HANDLED) for key, taken in keys.items())

    for edge, within in (("include", set(keys)), ("exclude", set())):
        other = losing.open(gaps, recovery_id=f"r-{edge}", source={"edge": edge})
        losing.plan(other)
        sure = set(lost_keys(rows)) - set(keys)
        assert set(world.keys_of(other)) == sure | within


def test_rows_never_sent_are_told_where_a_bookmark_knows_the_beginning(losing: Losing) -> None:
    rows = make_orders()
    gaps = losing.lose(rows)
    extra = world.make_order(ROWS + 1, minutes=(HANDLED + LOST) / 2 / 60)
    world.run_sql(
        losing.shop,
        "INSERT INTO orders VALUES "
        f"({extra['order_id']}, 1, 'new', '1.00', '{extra['updated_at']:%Y-%m-%d %H:%M:%S.%f}')",
    )
    marks = mark_all(rows, gaps)
    request = losing.open(gaps, bookmarks=marks)
    outcome = losing.plan(request)
    assert (outcome.verdict, outcome.counts.surplus) == ("surplus", 1)
    assert [part.differs for part in outcome.partitions if part.differs] == [1]
    assert "counting agrees in 2 of 3, and differs by at most 1 row" in outcome.evidence


def test_what_was_put_back_and_what_was_never_read_are_lost_together(losing: Losing) -> None:
    """A row at the edge whose message was put back is known by where that was."""
    rows = make_orders()
    gaps = losing.lose(rows)
    first = losing.open(gaps)
    losing.plan(first)
    prior, offsets = put_back(losing, first)
    start, end = gaps[0].end or 0, max(offsets[key] for key in lost_keys(rows, [0])) + 2
    losing.delete_below({0: end})
    late = rows[-1]["updated_at"] + timedelta(minutes=1)
    again = losing.make_gap(0, start, end, rows[LOST]["updated_at"], late)
    second = losing.open((again,), recovery_id="r-2", prior=prior,
        read_since=rows[0]["updated_at"],
    )  # fmt: skip
    outcome = losing.plan(second)
    lost = [row["order_id"] for row in rows[HANDLED:] if place(row) == 0]
    assert world.keys_of(second) == lost
    assert (outcome.counts.expected, outcome.counts.shortfall) == (len(lost), 0)
    assert outcome.verdict == "short"
    put_back_keys = set(lost_keys(rows))
    assert not put_back_keys & {int(row.primary_key[0] or 0) for row in outcome.uncertain.sample}


def put_back(
    losing: Losing, request: RebuildRequest
) -> tuple[tuple[PriorChunk, ...], dict[int, int]]:
    """Sends what a plan staged, a transaction a chunk; the chunks, and each order's offset."""
    manifest = read_manifest(request.directory)
    producer = Producer(
        {
            "bootstrap.servers": losing.bootstrap,
            "transactional.id": f"{losing.topic}-back",
            "linger.ms": 5,
        }
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
                losing.topic, key=message["key"], value=message["value"], partition=chunk.slot,
                headers=headers, on_delivery=note,
            )  # fmt: skip
        assert producer.flush(90) == 0
        producer.commit_transaction(90)
        offsets = [places[int(message["key"])] for message in messages]
        where = (chunk.slot, chunk.number, chunk.count, min(offsets), max(offsets))
        found.append(PriorChunk(request.recovery_id, *where))
    world.await_decided(losing.bootstrap, losing.topic, PARTITIONS)
    return tuple(found), places


def test_a_loss_without_a_date_is_read_for_until_its_beginning_is_found(
    losing: Losing, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition had nearly all messages before, and few of those since."""
    losing = replace(losing, shop=pg_url)
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
    world.fill_table(pg_url, world.ORDERS, rows)
    losing.publish(rows)
    losing.delete_below({0: 1_550})
    gap = losing.make_gap(0, 1_500, 1_550, None, rows[2_290]["updated_at"])
    request = losing.open((gap,), source={"margin": "1s", "edge": "include"})
    outcome = losing.plan(request)
    lost = [row["order_id"] for row in rows if place(row) == 0][1_500:1_550]
    assert set(lost) <= set(world.keys_of(request))
    assert len(world.keys_of(request)) <= len(lost) + outcome.uncertain.count
    assert outcome.verdict == "short"
    assert any("times as many" in warning for warning in outcome.warnings)


def test_partitions_added_since_are_proved_by_the_old_count_and_placed_by_the_new(
    losing: Losing,
) -> None:
    rows = make_orders()
    world.fill_table(losing.shop, world.ORDERS, rows)
    grown_at = 750
    losing.publish(rows[:grown_at], 2)
    losing.publish(rows[grown_at:], PARTITIONS)
    handled, gone = count(rows[:HANDLED], 2), count(rows[:LOST], 2)
    losing.delete_below(dict(enumerate(gone)))
    first, last = (rows[at]["updated_at"] for at in (HANDLED, LOST - 1))
    gaps = tuple(
        losing.make_gap(p, handled[p], gone[p], first - timedelta(minutes=2), last)
        for p in range(2)
    )
    grown = rows[grown_at]["updated_at"]
    growth = (Growth(2, grown - timedelta(seconds=20), grown + timedelta(seconds=10)),)
    request = losing.open(gaps, growth=growth, source={"margin": "1m"})
    outcome = losing.plan(request)
    assert outcome.proof.rate == 1.0
    assert world.keys_of(request) == [row["order_id"] for row in rows[HANDLED:LOST]]
    assert outcome.slots == (0, 1, 2)
    assert [part.partition for part in outcome.partitions] == [0, 1]
    assert [part.rebuilt for part in outcome.partitions] == [gone[p] - handled[p] for p in range(2)]
    for message in world.read_staged(request).to_pylist():
        assert message["partition"] == world.place_key(message["key"], PARTITIONS)
    blind = losing.plan(replace(request, recovery_id="r-2", growth=(), allow=frozenset({"proof"})))
    assert (blind.proof.rate or 0) < 0.9


def test_rows_that_were_sent_while_partitions_were_added_are_of_either_partition(
    losing: Losing,
) -> None:
    rows = make_orders()
    world.fill_table(losing.shop, world.ORDERS, rows)
    grown_at = 450
    losing.publish(rows[:grown_at], 2)
    losing.publish(rows[grown_at:], PARTITIONS)
    old, new = rows[HANDLED:grown_at], rows[grown_at:LOST]
    first_old = next(row for row in old if place(row, 2) == 0)
    handled = count(rows[:HANDLED], 2)[0]
    gone = count(rows[:grown_at], 2)[0] + count(new)[0]
    losing.delete_below({0: gone})
    first, last = (rows[at]["updated_at"] for at in (HANDLED, LOST - 1))
    gap = losing.make_gap(0, handled, gone, first - timedelta(minutes=2), last)
    grown = rows[grown_at]["updated_at"]
    growth = (Growth(2, grown - timedelta(seconds=20), grown + timedelta(seconds=10)),)
    source = {"margin": "1s"}
    begin = Bookmark(
        0, handled, handled, hash_identity("topic-id", str(first_old["order_id"]).encode())
    )
    request = losing.open((gap,), growth=growth, source=source, bookmarks=(begin,))
    outcome = losing.plan(request)
    lost = {row["order_id"] for row in old if place(row, 2) == 0}
    lost |= {row["order_id"] for row in new if place(row) == 0}
    found = set(world.keys_of(request))
    assert lost <= found
    uncertain = {int(row.primary_key[0] or 0) for row in outcome.uncertain.sample}
    assert found - lost <= uncertain, "what may be of another partition is told"
    by_id = {row["order_id"]: row for row in rows}
    assert all(0 in (place(by_id[key], 2), place(by_id[key])) for key in found)
    assert outcome.verdict != "exact"


def test_rows_behind_the_end_of_a_partition_that_expired_whole_are_not_lost(losing: Losing) -> None:
    """No survivor says where its log begins: its messages all expired, and later rows were never
    sent."""
    rows = make_orders()
    world.fill_table(losing.shop, world.ORDERS, rows)
    sent = [row for number, row in enumerate(rows) if number < LOST or place(row) != 0]
    losing.publish(sent)
    handled, gone = count(rows[:HANDLED])[0], count(rows[:LOST])[0]
    losing.delete_below({0: gone})
    first, last = (rows[at]["updated_at"] for at in (HANDLED, LOST - 1))
    gap = losing.make_gap(0, handled, gone, first - timedelta(minutes=2), last)
    request = losing.open((gap,))
    outcome = losing.plan(request)
    uncertain = {int(row.primary_key[0] or 0) for row in outcome.uncertain.sample}
    # A row a second, and clocks may differ by five: those may seem to be of before the end.
    behind = {row["order_id"] for row in rows[LOST : LOST + 5] if place(row) == 0}
    found = set(world.keys_of(request))
    assert found - set(lost_keys(rows, [0])) <= behind | uncertain
    assert len(set(lost_keys(rows, [0])) - found) <= len(behind)
    assert outcome.verdict == "short"
    assert any("rows without a message" in reason for reason in outcome.reasons)


def test_messages_without_a_key_fill_what_the_gaps_lack(losing: Losing) -> None:
    """Every ninth message has no key, and went to any partition; the consumer keeps a table."""
    rows = make_orders()
    world.fill_table(losing.shop, world.ORDERS, rows)
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
    world.publish(losing.bootstrap, losing.topic, messages)
    world.run_sql(
        losing.shop,
        "CREATE TABLE processed (order_id text PRIMARY KEY)",
        f"INSERT INTO processed SELECT order_id FROM orders WHERE order_id <= {HANDLED}",
    )
    first, last = (rows[at]["updated_at"] for at in (HANDLED, LOST - 1))
    handled = [sum(number <= HANDLED for number in own) for own in sent]
    gone = [sum(number <= LOST for number in own) for own in sent]
    losing.delete_below(dict(enumerate(gone)))
    gaps = tuple(losing.make_gap(p, handled[p], gone[p], first, last) for p in range(PARTITIONS))
    request = losing.open(gaps,
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
    outcome = losing.plan(request)
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
