"""What waits in an archive is put back from there: byte for byte, each once, in order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.cimpl import NewPartitions

from backlogctl.kafka.clients import make_admin
from backlogctl.values import GapState
from backlogctl_delivery import stamps
from tests.kafka_tools import commit, move_log_start, read_all, set_config, wait_until
from tests.replay.offloaded import offload
from tests.replay.redrive.world import UNREAD, Message, carry_out, plain_shop, plan, read_own, run
from tests.replay.shop import DONE, PARTITIONS, Shop, count_by_partition
from tests.spark_backfill.archive import archiving
from tests.spark_backfill.world import make_order, place_key, publish_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["endpoint", "plain_shop"]
pytestmark = [pytest.mark.timeout(900)]
SETTLED = {GapState.VERIFIED}


def list_unread(messages: list[Message]) -> list[Message]:
    handled = count_by_partition(range(DONE))
    return [
        item
        for number in range(PARTITIONS)
        for item in [one for one in messages if one[0] == number][handled[number] :]
    ]


def list_states(shop: Shop) -> set[GapState]:
    return {gap.state for gap in shop.open().ledger.gaps.list()}


def test_put_back_expired_unread_and_put_back_again(plain_shop: Shop, spark: SparkSession) -> None:
    """The printed command works, twice; no payload is kept anywhere else (P2.12)."""
    shop = plain_shop
    marker = "marker-7f3a-personal"
    publish_orders(shop.bootstrap, shop.topic, [{**make_order(9999), "status": marker}])
    unread = list_unread(read_own(shop))
    archive = offload(shop, spark)
    assert read_own(shop) == []
    source = f"archive:{archive}"
    command = f"backlogctl plan redrive orders --from {source}"
    assert command in shop.call("gaps").out
    assert command in shop.call("archive", "show", archive).out
    assert command in shop.call("status").out
    gaps = shop.call("gaps", "--json").document["gaps"]
    assert gaps[0]["archive"] == archive
    refused = shop.call("plan", "rebuild", "orders", "--json", code=2).error
    assert command in refused["hint"]
    planned = plan(shop, "--from", source)
    assert planned["counts"]["staged"] == planned["counts"]["read"] == UNREAD + 1
    assert archive in shop.call("show", planned["id"]).out
    run(shop, planned["id"])
    assert read_own(shop) == unread
    assert list_states(shop) == SETTLED
    for message in read_all(shop.properties, shop.topic, range(PARTITIONS)):
        headers: Any = message.headers()
        assert stamps.find_header(headers, stamps.FIDELITY) == "original"
        assert stamps.find_header(headers, stamps.REPLAYS) == "1"
    said = [
        shop.call("report", planned["id"], "--json", "--html", "report.html"),
        shop.call("show", planned["id"], "--json"),
        shop.call("gaps", "--json"),
        shop.call("archive", "list", "--json"),
        shop.call("archive", "show", archive, "--json"),
    ]
    assert said[0].document["verification"]["result"] == "passed"
    shown = said[-1].document
    assert (shown["put_back"], shown["waiting"]) == (UNREAD + 1, 0)
    assert shown["expires_at"] is not None
    assert not [one for one in said if marker in one.out + one.err]
    assert marker not in (shop.directory / "report.html").read_text()
    for path in shop.directory.glob("ledger.db*"):
        assert marker.encode() not in path.read_bytes()
    assert "nothing that stream orders has lost" in plan(shop, "--from", source, code=5)["message"]
    move_log_start(shop.properties, shop.topic, shop.read_ends())
    assert command in shop.call("gaps").out
    assert carry_out(shop, "--from", source)["counts"]["staged"] == UNREAD + 1
    assert read_own(shop) == unread
    assert list_states(shop) == SETTLED


def test_killed_and_planned_again_it_is_put_back_once(
    plain_shop: Shop, spark: SparkSession
) -> None:
    """P2.4: a cancelled recovery's committed chunks are not sent again."""
    shop = plain_shop
    unread = list_unread(read_own(shop))
    archive = offload(shop, spark)
    shop.write_config(limits={"messages_per_second": 30})
    first = plan(shop, "--from", f"archive:{archive}")["id"]
    shop.call("approve", first, "--by", "Ada")
    said = shop.run("run", first, code=None, BACKLOG_CRASH_AT="p3.7.copy.before:2")
    assert said.code != os.EX_OK
    shop.call("cancel", first)
    there = len(read_own(shop))
    assert 0 < there < UNREAD
    waiting = shop.open().ledger.gaps.list_waiting()
    assert {gap.archive for gap in waiting} == {archive}, "given back to the archive"
    shop.write_config(limits={})
    counts = carry_out(shop, "--from", f"archive:{archive}")["counts"]
    assert (counts["put_back"], counts["staged"]) == (there, UNREAD - there)
    assert sorted(read_own(shop), key=repr) == sorted(unread, key=repr)
    assert list_states(shop) == SETTLED


def test_every_shape_comes_back_equal(empty_shop: Shop, spark: SparkSession) -> None:
    """Null keys, tombstones, empty values, repeated, empty and null headers, binary ones."""
    shop = empty_shop
    shop.write_config(source=None)
    set_config(shop.properties, shop.topic, {"retention.ms": "-1"})
    archiving.publish(shop.bootstrap, shop.topic, 40, PARTITIONS, **{"compression.type": "zstd"})
    commit(shop.properties, shop.group, shop.topic, {0: 1})
    before = read_own(shop)
    archive = offload(shop, spark, starts=dict.fromkeys(range(PARTITIONS), 0))
    set_config(shop.properties, shop.topic, {"max.message.bytes": "5000"})
    short = plan(shop, "--from", f"archive:{archive}")
    assert (short["verdict"], short["counts"]["quarantined"]) == ("partial", 4 * PARTITIONS)
    assert len(shop.open().ledger.gaps.list_waiting()) == PARTITIONS, "their gaps stay"
    set_config(shop.properties, shop.topic, {"max.message.bytes": "1000000"})
    carry_out(shop, "--from", f"archive:{archive}")
    assert read_own(shop) == before
    assert list_states(shop) == SETTLED


def test_fault_81_keys_go_where_they_belong_now(plain_shop: Shop, spark: SparkSession) -> None:
    shop, now = plain_shop, PARTITIONS + 2
    archive = offload(shop, spark)
    admin = make_admin(shop.properties)
    admin.create_partitions([NewPartitions(shop.topic, now)])[shop.topic].result(60)
    wait_until(
        lambda: len(admin.list_topics(shop.topic, timeout=10).topics[shop.topic].partitions) == now,
        what="the partitions are there",
    )
    planned = carry_out(shop, "--from", f"archive:{archive}")
    assert "the messages are of 3: they go by their keys" in " ".join(planned["warnings"])
    found: dict[int, list[bytes]] = {}
    for partition, key, _, _ in read_own(shop, partitions=now):
        assert key is not None
        found.setdefault(partition, []).append(key)
    assert sum(map(len, found.values())) == UNREAD
    for number, keys in found.items():
        by_home: dict[int, list[int]] = {}
        for key in keys:
            assert place_key(key, now) == number
            by_home.setdefault(place_key(key, PARTITIONS), []).append(int(key))
        assert all(numbers == sorted(numbers) for numbers in by_home.values())
    assert list_states(shop) == SETTLED
