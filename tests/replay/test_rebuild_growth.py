"""A topic that got partitions when nobody looked: what a plan says, and the way out that it names."""

from __future__ import annotations

import re

import pytest
from confluent_kafka.cimpl import NewPartitions

from backlogctl.kafka.clients import make_admin
from tests.kit.kafka import commit, move_log_start
from tests.kit.shop import (
    DONE,
    LOST,
    PARTITIONS,
    PROCESSED,
    TOTAL,
    Shop,
    count_by_partition,
)
from tests.spark_backfill.world import (
    ORDERS,
    encode_order,
    fill_table,
    make_order,
    place_key,
    publish_orders,
)

pytestmark = [pytest.mark.timeout(900), pytest.mark.spark]

GROWN = PARTITIONS + 2


def test_fault_137_where_nobody_saw_it_grow_the_consumers_table_names_the_lost(
    empty_shop: Shop,
) -> None:
    shop, rows = empty_shop, [make_order(number) for number in range(TOTAL)]
    fill_table(shop.url, ORDERS, rows)
    fill_table(shop.url, PROCESSED, [{"order_id": n} for n in range(DONE)], "processed")
    until = DONE + LOST + 40
    publish_orders(shop.bootstrap, shop.topic, rows[:until], PARTITIONS)
    commit(shop.properties, shop.group, shop.topic, count_by_partition(range(DONE)))
    move_log_start(shop.properties, shop.topic, count_by_partition(range(DONE + LOST)))
    grown = make_admin(shop.properties).create_partitions([NewPartitions(shop.topic, GROWN)])
    grown[shop.topic].result(30)
    publish_orders(shop.bootstrap, shop.topic, rows[until:], GROWN)

    refused = shop.call("plan", "rebuild", "orders", "--json", code=5).error
    assert "partition is" in refused["message"]
    assert f"among {PARTITIONS} partitions" in refused["hint"]
    (words,) = re.findall("`backlogctl (plan rebuild orders --allow [^`]+)`", refused["hint"])
    plan = shop.call(*words.split(), "--json").document
    assert plan["verdict"] == "surplus"
    shop.call("approve", plan["id"], "--by", "Ada")
    shop.call("run", plan["id"])
    lost = {str(n).encode(): encode_order(make_order(n)) for n in range(DONE, DONE + LOST)}
    injected = shop.read_injected()
    assert len(injected) == LOST
    assert {key: value for _, key, value in injected} == lost
    assert all(key and place_key(key, GROWN) == at for at, key, _ in injected)
