"""What an archive holds of every shape, into other partitions, and again after it expired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka.cimpl import NewPartitions

from backlog.kafka.clients import make_admin
from backlog.values import GapState
from tests.kafka_tools import commit, move_log_start, set_config, wait_until
from tests.replay.offloaded import offload
from tests.replay.rebuild_archive.test_whole_way import (
    UNREAD,
    Message,
    plain_shop,
    plan_of,
    put_back,
    read_own,
)
from tests.replay.shop import DONE, PARTITIONS, TOTAL, Shop
from tests.spark_backfill.archive import archiving
from tests.spark_backfill.world import place_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["plain_shop"]


def test_every_shape_comes_back_equal(empty_shop: Shop, spark: SparkSession) -> None:
    """Null keys, tombstones, empty values, repeated, empty and null headers, binary ones."""
    shop = empty_shop
    shop.write_config(source=None)
    set_config(shop.properties, shop.topic, {"retention.ms": "-1"})
    archiving.publish(shop.bootstrap, shop.topic, 40, PARTITIONS, **{"compression.type": "zstd"})
    commit(shop.properties, shop.group, shop.topic, {0: 1})
    before = read_own(shop)
    offload(shop, spark, starts=dict.fromkeys(range(PARTITIONS), 0))
    set_config(shop.properties, shop.topic, {"max.message.bytes": "5000"})
    short = plan_of(shop.plan()).outcome
    assert short.verdict == "short"
    assert short.counts.quarantined == 4 * PARTITIONS
    assert "larger than the topic allows (5000 bytes)" in short.quarantine.reasons
    set_config(shop.properties, shop.topic, {"max.message.bytes": "1000000"})
    assert plan_of(put_back(shop)).outcome.verdict == "exact"
    assert read_own(shop) == before


def test_what_was_put_back_and_expired_comes_again(plain_shop: Shop, spark: SparkSession) -> None:
    """P2.12, of a stream without a source: the archive holds it still."""
    shop = plain_shop
    offload(shop, spark)
    put_back(shop)
    first = read_own(shop)
    assert len(first) == UNREAD
    move_log_start(shop.properties, shop.topic, shop.read_ends())
    shop.call("gaps")
    ledger = shop.open().ledger
    lost = [gap for gap in ledger.gaps.list() if gap.state is GapState.OPEN]
    assert {gap.partition for gap in lost} == set(range(PARTITIONS))
    outcome = plan_of(put_back(shop)).outcome
    assert outcome.verdict == "exact", outcome.reasons
    assert outcome.counts.rebuilt == outcome.counts.from_archive == UNREAD
    assert read_own(shop) == first
    assert {gap.state for gap in ledger.gaps.list()} == {GapState.VERIFIED}


def test_fault_81_keys_go_where_they_belong_now(plain_shop: Shop, spark: SparkSession) -> None:
    shop, now = plain_shop, PARTITIONS + 2
    offload(shop, spark)
    admin = make_admin(shop.properties)
    admin.create_partitions([NewPartitions(shop.topic, now)])[shop.topic].result(60)
    wait_until(
        lambda: len(admin.list_topics(shop.topic, timeout=10).topics[shop.topic].partitions) == now,
        what="the partitions are there",
    )
    plan = plan_of(put_back(shop))
    assert plan.outcome.verdict == "exact"
    assert any("had 3 partitions" in warning for warning in plan.warnings)
    found: dict[int, list[Message]] = {}
    for item in read_own(shop, partitions=now):
        found.setdefault(item[0], []).append(item)
    assert sum(map(len, found.values())) == UNREAD
    for number, messages in found.items():
        for _, key, _, _ in messages:
            assert key is not None
            assert place_key(key, now) == number
        by_home: dict[int, list[int]] = {}
        for _, key, _, _ in messages:
            assert key is not None
            by_home.setdefault(place_key(key, PARTITIONS), []).append(int(key))
        assert all(numbers == sorted(numbers) for numbers in by_home.values())
    assert DONE < TOTAL
