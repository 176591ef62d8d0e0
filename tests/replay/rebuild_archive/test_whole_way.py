"""Offloaded, planned, put back, verified: byte for byte, each once, in order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from backlog.values import GapState, Recovery
from backlogctl_delivery import stamps
from replay.kinds.rebuild.kind import KIND
from replay.kinds.rebuild.plan import RebuildPlan
from replay.recovery.approval import approve_plan
from tests.kafka_tools import commit, read_all
from tests.replay.offloaded import offload
from tests.replay.shop import DONE, PARTITIONS, TOTAL, Shop, count_by_partition
from tests.spark_backfill.world import make_order, publish_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNREAD = TOTAL - DONE
Message = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@pytest.fixture
def plain_shop(empty_shop: Shop) -> Shop:
    """Orders that are unread, and no source table."""
    shop = empty_shop
    publish_orders(shop.bootstrap, shop.topic, [make_order(number) for number in range(TOTAL)])
    commit(shop.properties, shop.group, shop.topic, count_by_partition(range(DONE)))
    shop.write_config(source=None)
    return shop


def read_own(shop: Shop, topic: str = "", partitions: int = PARTITIONS) -> list[Message]:
    """Messages as the stream's producers sent them: without our stamps, in the log's order."""
    found = []
    for message in read_all(shop.properties, topic or shop.topic, range(partitions)):
        headers: Any = message.headers() or []
        own = tuple((name, value) for name, value in headers if name not in stamps.ALL)
        found.append((message.partition() or 0, message.key(), message.value(), own))
    return sorted(found, key=lambda item: item[0])


def plan_of(recovery: Recovery) -> RebuildPlan:
    return KIND.read_plan(recovery)


def put_back(shop: Shop) -> Recovery:
    """Plans, approves, runs."""
    workspace = shop.open()
    planned = approve_plan(workspace, shop.plan(workspace), by="tester")
    shop.call("run", planned.id)
    return workspace.ledger.recoveries.get(planned.id)


def test_a_stream_without_a_source(plain_shop: Shop, spark: SparkSession) -> None:
    shop = plain_shop
    before = read_own(shop)
    handled = count_by_partition(range(DONE))
    unread: list[Message] = []
    for number in range(PARTITIONS):
        unread += [item for item in before if item[0] == number][handled[number] :]
    archive = offload(shop, spark)
    assert read_own(shop) == []
    assert shop.call("gaps", "--json").document["gaps"][0]["archive"] == archive
    assert "backlogctl plan rebuild orders" in shop.call("gaps").out
    planned = shop.plan()
    plan = plan_of(planned)
    assert plan.outcome.verdict == "exact"
    counts = plan.outcome.counts
    assert counts.expected == counts.rebuilt == counts.from_archive == counts.archived == UNREAD
    assert counts.candidates == counts.archived_holes == 0
    assert {gap.archive for gap in plan.gaps} == {archive}
    told = shop.call("show", planned.id).out
    assert "exact" in told
    assert archive in told
    approve_plan(shop.open(), planned, by="tester")
    ran = shop.call("run", planned.id)
    assert f"{UNREAD} messages are in topic {shop.topic}" in ran.out + ran.err
    assert read_own(shop) == unread
    ledger = shop.open().ledger
    assert {gap.state for gap in ledger.gaps.list()} == {GapState.VERIFIED}
    for message in read_all(shop.properties, shop.topic, range(PARTITIONS)):
        headers: Any = message.headers()
        assert stamps.find_header(headers, stamps.FIDELITY) == "original"
        assert stamps.find_header(headers, stamps.REPLAYS) == "1"
    report = shop.call("report", planned.id, "--json").document
    assert report["verification"]["result"] == "passed"
    assert report["unexplained"]["items"] == []
    refused = shop.call("plan", "rebuild", "orders", "--json", code=5).error
    assert "nothing is lost" in refused["message"]
    shown = shop.call("archive", "show", archive, "--json").document
    assert (shown["put_back"], shown["waiting"]) == (UNREAD, 0)
    assert shown["expires_at"] is not None


def test_killed_and_planned_again_it_is_put_back_once(
    plain_shop: Shop, spark: SparkSession
) -> None:
    """P2.4: a cancelled recovery's committed chunks are not sent again."""
    shop = plain_shop
    before = read_own(shop)
    archive = offload(shop, spark)
    shop.write_config(limits={"messages_per_second": 30})
    first = shop.plan_approved()
    said = shop.run("run", first.id, code=None, BACKLOG_CRASH_AT="p3.7.copy.before:2")
    assert said.code != os.EX_OK
    shop.call("cancel", first.id)
    ledger = shop.open().ledger
    there = len(read_own(shop))
    assert 0 < there < UNREAD
    waiting = ledger.gaps.list_waiting()
    assert {gap.archive for gap in waiting} == {archive}, "given back to the archive"
    shop.write_config(limits={})
    second = plan_of(put_back(shop)).outcome
    assert second.counts.already_injected == there
    assert second.counts.rebuilt == second.counts.expected == UNREAD - there
    assert second.verdict == "exact"
    found = read_own(shop)
    handled = count_by_partition(range(DONE))
    lost = [
        item
        for number in range(PARTITIONS)
        for item in [one for one in before if one[0] == number][handled[number] :]
    ]
    assert sorted(found, key=repr) == sorted(lost, key=repr)


def test_a_damaged_archive_sends_nothing(plain_shop: Shop, spark: SparkSession) -> None:
    shop = plain_shop
    archive = offload(shop, spark)
    folder = shop.directory / "staging" / "archives" / archive
    files = sorted(folder.glob("partition=*/*.parquet"))
    raw = bytearray(files[0].read_bytes())
    raw[len(raw) // 2] ^= 1
    files[0].write_bytes(raw)
    files[1].unlink()
    error = shop.call("plan", "rebuild", "orders", "--json", code=1).error
    assert error["code"] == "staging"
    assert files[0].name in error["message"]
    assert files[1].name in error["message"]
    ledger = shop.open().ledger
    assert len(ledger.gaps.list_waiting()) == PARTITIONS
    assert [one.kind for one in ledger.recoveries.list()] == ["offload"]


def test_a_purged_archive_is_said(plain_shop: Shop, spark: SparkSession) -> None:
    shop = plain_shop
    archive = offload(shop, spark)
    shop.open().ledger.archives.mark_purged(archive, "op")
    refused = shop.call("plan", "rebuild", "orders", "--json", code=2).error
    assert "no archive" in refused["message"]
    offload_again = shop.open().ledger.gaps.list_waiting()[0]
    named = shop.call(
        "plan", "rebuild", "orders", "--gap", offload_again.id, "--json", code=2
    ).error
    assert named["code"] == "usage"


def test_no_payload_is_kept_elsewhere(plain_shop: Shop, spark: SparkSession) -> None:
    """Neither in the ledger nor in a report, a document or what is printed."""
    shop = plain_shop
    marker = "marker-7f3a-personal"
    order = {**make_order(9999), "status": marker}
    publish_orders(shop.bootstrap, shop.topic, [order])
    offload(shop, spark)
    recovery = put_back(shop)
    said = [
        shop.call("report", recovery.id, "--json", "--html", "report.html"),
        shop.call("show", recovery.id, "--json"),
        shop.call("show", recovery.id),
        shop.call("gaps", "--json"),
        shop.call("archive", "list", "--json"),
        shop.call("archive", "show", recovery.plan["gaps"][0]["archive"], "--json"),
    ]
    assert not [one for one in said if marker in one.out + one.err]
    assert marker not in (shop.directory / "report.html").read_text()
    for path in shop.directory.glob("ledger.db*"):
        assert marker.encode() not in path.read_bytes()
    assert any(marker.encode() in (item[2] or b"") for item in read_own(shop)), "it is put back"
