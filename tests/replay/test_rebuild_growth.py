"""A topic that got partitions when nobody looked: what a plan says, and the way out that it names."""

from __future__ import annotations

import re

import pytest
from confluent_kafka.cimpl import NewPartitions

from backlogctl.kafka.clients import make_admin
from tests.kit.kafka import commit, move_log_start, read_all
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


def test_where_nobody_saw_it_grow_the_consumers_table_names_the_lost(
    empty_shop: Shop,
) -> None:
    shop, rows = empty_shop, [make_order(number) for number in range(TOTAL)]
    fill_table(shop.url, ORDERS, rows)
    fill_table(shop.url, PROCESSED, [{"order_id": n} for n in range(DONE)], "processed")
    until = DONE + LOST + 40
    publish_orders(shop.bootstrap, shop.topic, rows[:until], PARTITIONS)
    commit(shop.properties, shop.group, shop.topic, count_by_partition(range(DONE)))
    move_log_start(shop.properties, shop.topic, count_by_partition(range(DONE + LOST)))
    admin = make_admin(shop.properties)
    admin.create_partitions([NewPartitions(shop.topic, GROWN)])[shop.topic].result(30)
    publish_orders(shop.bootstrap, shop.topic, rows[until:], GROWN)

    refused = shop.call("plan", "rebuild", "orders", "--json", code=5).error
    assert "partition is" in refused["message"]
    assert f"among {PARTITIONS} partitions" in refused["hint"]
    (words,) = re.findall("`backlogctl (plan rebuild orders --allow [^`]+)`", refused["hint"])
    plan = shop.call(*words.split(), "--json").document
    assert plan["verdict"] == "surplus"
    shop.call("approve", plan["id"], "--by", "Ada")
    shop.call("run", plan["id"])
    there = read_all(shop.properties, shop.topic, range(GROWN))
    assert sorted(int(message.key() or b"") for message in there) == list(range(DONE, TOTAL))
    for message in there:
        if (number := int(message.key() or b"")) < DONE + LOST:
            key = str(number).encode()
            assert message.value() == encode_order(rows[number])
            assert message.partition() == place_key(key, GROWN)
