"""A night that finds messages in an archive and others lost: a redrive, then a rebuild."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from rich.console import Console

from backlogctl.clock import utc_now
from backlogctl.replay.engine.plan import name_origin
from backlogctl.replay.runbooks.nights import Tonight, find_night_work
from backlogctl.replay.runbooks.work import carry_on
from backlogctl.values import Cause, GapState
from tests.kafka_tools import commit, move_log_start
from tests.replay.offloaded import offload
from tests.replay.redrive.world import read_own
from tests.replay.shop import PARTITIONS, Shop, count_by_partition, place
from tests.spark_backfill.world import FIELDS, ORDERS, fill_table, make_order, publish_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(900)]
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
NIGHT = name_origin("nightly_backfill", "manual__1")


def test_archived_and_lost_in_one_night(empty_shop: Shop, spark: SparkSession) -> None:
    """Each is once in the log, and every gap is closed."""
    shop = empty_shop
    archive = lose_and_offload(shop, spark)
    states = [gap.state for gap in shop.open().ledger.gaps.list()]
    assert sorted(states) == [GapState.OPEN] * 6 + [GapState.STAGED] * 3
    refused = shop.call("plan", "rebuild", "orders", "--gap", find_waiting(shop), "--json", code=2)
    assert f"backlogctl plan redrive orders --from archive:{archive}" in refused.error["message"]
    kinds = work_off(shop)
    assert kinds == ["redrive", "rebuild"]
    check_sent(shop, list(range(WAVE, 4 * WAVE)), skip=range(4 * WAVE, 6 * WAVE))
    assert {gap.state for gap in shop.open().ledger.gaps.list()} == {GapState.VERIFIED}


def work_off(shop: Shop) -> list[str]:
    """Carries out what the night finds until it finds nothing; the kinds, in their order."""
    workspace = shop.open()
    kinds: list[str] = []
    stream, console = workspace.config.stream("orders"), Console(file=io.StringIO())
    while True:
        work = find_night_work(workspace, stream, utc_now(), NIGHT)
        if work.action is Tonight.NOTHING:
            return kinds
        recovery = workspace.ledger.recoveries.get(work.recovery)
        if work.action is Tonight.ASK:
            shop.call("approve", recovery.id, "--by", "Ada")
        kinds.append(recovery.kind)
        carried = carry_on(workspace, recovery.id, console)
        assert carried.come_again is None, carried.why


def find_waiting(shop: Shop) -> str:
    return shop.open().ledger.gaps.list_waiting()[0].id


def lose_and_offload(shop: Shop, spark: SparkSession) -> str:
    """Orders that expired before and after what was offloaded; the archive's id."""
    shop.write_config(source=SOURCE)
    rows: list[dict[str, Any]] = []

    def publish(waves: int) -> None:
        for _ in range(waves):
            begin, first = utc_now(), len(rows)
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
    return archive


def record_expired(shop: Shop, begin: datetime) -> None:
    """The group set by a tool is no member: what expired behind it would be known as bounded."""
    starts, ends = (count_by_partition(range(waves * WAVE)) for waves in (3, 4))
    record(shop, begin, starts, ends)


def record(shop: Shop, begin: datetime, starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
    ledger = shop.open().ledger
    offloaded = next(gap for gap in ledger.gaps.list() if gap.archive)
    for number in range(PARTITIONS):
        ledger.gaps.record(
            replace(
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
        )


def insert(shop: Shop, rows: list[dict[str, Any]]) -> None:
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


def check_sent(shop: Shop, orders: list[int], skip: range = range(0)) -> None:
    """Each once, where it belongs; those of the archive in each partition in their old order."""
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for partition, key, _, _ in read_own(shop):
        assert key is not None
        found[partition].append(int(key))
    for number, keys in found.items():
        sent = [key for key in keys if key not in skip]
        assert Counter(sent) == Counter(order for order in orders if place(order) == number)
        archived = [key for key in sent if key in range(2 * WAVE, 3 * WAVE)]
        assert sent[: len(archived)] == archived == sorted(archived)
