"""Rows of a table and messages of an archive, in one recovery, in the order they had."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from backlog.clock import utc_now
from backlog.values import Cause, GapState
from replay.injection.plan import To
from replay.kinds.rebuild.kind import KIND
from replay.kinds.rebuild.options import RebuildOptions
from replay.kinds.rebuild.plan import RebuildPlan
from replay.kinds.rebuild.planning import plan_rebuild
from replay.recovery.approval import approve_plan
from tests.kafka_tools import commit, move_log_start
from tests.replay.offloaded import offload
from tests.replay.rebuild_archive.test_whole_way import read_own
from tests.replay.shop import PARTITIONS, Shop, count_by_partition, place
from tests.spark_backfill.world import FIELDS, ORDERS, fill_table, make_order, publish_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE = 60  # orders: handled, expired, offloaded, expired, still there
SOURCE = {
    "database": "shop",
    "table": "orders",
    "primary_key": ["order_id"],
    "time_column": "updated_at",
    "mutable": False,
    "message": {"key": "order_id", "value": {"json": FIELDS}},
    "identity": {"row": "order_id", "message": "key"},
    "stale": "restate",
}


@pytest.fixture
def mixed(empty_shop: Shop, spark: SparkSession) -> tuple[Shop, str]:
    """Orders that expired before and after what was offloaded; the shop, and the archive's id."""
    shop = empty_shop
    shop.write_config(source=SOURCE)
    rows: list[dict[str, Any]] = []

    def publish(waves: int) -> None:
        for _ in range(waves):
            begin = utc_now()
            first = len(rows)
            wave = [
                {**make_order(number), "updated_at": begin + timedelta(microseconds=number)}
                for number in range(first, first + WAVE)
            ]
            publish_orders(shop.bootstrap, shop.topic, wave)
            rows.extend(wave)

    def expire(orders: int) -> None:
        move_log_start(shop.properties, shop.topic, count_by_partition(range(orders)))

    publish(2)
    commit(shop.properties, shop.group, shop.topic, count_by_partition(range(WAVE)))
    expire(2 * WAVE)
    fill_table(shop.url, ORDERS, [])
    shop.call("gaps")
    publish(1)
    archive = offload(shop, spark)
    shop.call("gaps")
    begin = utc_now()
    publish(1)
    record_expired(shop, begin)
    expire(4 * WAVE)
    publish(2)
    insert(shop, rows)
    return shop, archive


def record_expired(shop: Shop, begin: datetime) -> None:
    """The group set by a tool is no member: what expired behind it would be known as bounded."""
    ledger = shop.open().ledger
    offloaded = next(gap for gap in ledger.gaps.list() if gap.archive)
    starts, ends = (count_by_partition(range(waves * WAVE)) for waves in (3, 4))
    for number in range(PARTITIONS):
        lost = replace(
            offloaded,
            partition=number,
            start=starts[number],
            end=ends[number],
            cause=Cause.EXPIRED,
            archive=None,
            first_time=begin,
            last_time=utc_now(),
            reason="",
        )
        ledger.gaps.record(lost)


def insert(shop: Shop, rows: list[dict[str, Any]]) -> None:
    import sqlalchemy

    engine = sqlalchemy.create_engine(shop.url)
    names = list(rows[0])
    with engine.begin() as connection:
        connection.execute(
            sqlalchemy.text(
                f"INSERT INTO orders ({', '.join(names)}) "
                f"VALUES ({', '.join(f':{name}' for name in names)})"
            ),
            [{**row, "updated_at": f"{row['updated_at']:%Y-%m-%d %H:%M:%S.%f}"} for row in rows],
        )
    engine.dispose()


def check_sent(shop: Shop, topic: str, skip: int) -> None:
    """All orders that were lost, each once, in each partition in their old order."""
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for partition, key, _, _ in read_own(shop, topic):
        assert key is not None
        found[partition].append(int(key))
    there = count_by_partition(range(4 * WAVE, 6 * WAVE)) if skip else dict.fromkeys(found, 0)
    lost = range(WAVE, 4 * WAVE)
    for number, keys in found.items():
        expected = [order for order in lost if place(order) == number]
        assert keys[there[number] :] == expected


def test_in_one_recovery_and_rehearsed_before(mixed: tuple[Shop, str]) -> None:
    shop, archive = mixed
    workspace = shop.open()
    stream = workspace.config.stream("orders")
    before = {gap.id: gap.state for gap in workspace.ledger.gaps.list()}
    assert sorted(before.values()) == [GapState.OPEN] * 6 + [GapState.STAGED] * 3
    rehearsed = plan_rebuild(workspace, stream, RebuildOptions(to="rehearsal"))
    plan = KIND.read_plan(rehearsed)
    check_plan(plan, archive)
    assert plan.target is not None
    assert plan.target.to is To.REHEARSAL
    approve_plan(workspace, rehearsed, by="tester")
    ran = shop.call("run", rehearsed.id)
    assert "rehearsal topic" in ran.out + ran.err
    check_sent(shop, plan.target_topic, skip=0)
    assert {gap.id: gap.state for gap in workspace.ledger.gaps.list()} == before
    report = shop.call("report", rehearsed.id, "--json").document
    assert "rehearsal" in str(report)
    assert report["verification"]["result"] == "passed"

    recovery = shop.plan_approved()
    real = KIND.read_plan(recovery)
    check_plan(real, archive)
    assert real.target is None
    assert real.outcome.counts.already_injected == 0
    told = shop.call("show", recovery.id).out
    assert f"{WAVE} original" in told or "original" in told
    shop.call("run", recovery.id)
    check_sent(shop, shop.topic, skip=1)
    assert {gap.state for gap in workspace.ledger.gaps.list()} == {GapState.VERIFIED}


def check_plan(plan: RebuildPlan, archive: str) -> None:
    counts = plan.outcome.counts
    assert plan.outcome.verdict in ("exact", "within"), plan.outcome.reasons
    assert (counts.rebuilt, counts.from_archive) == (3 * WAVE, WAVE)
    assert counts.shortfall == counts.surplus == 0
    archived = count_by_partition(range(2 * WAVE, 3 * WAVE))
    assert {row.partition: row.from_archive for row in plan.outcome.partitions} == archived
    for row in plan.outcome.partitions:
        assert row.rebuilt == row.expected
    assert [gap.archive for gap in plan.gaps].count(archive) == PARTITIONS
