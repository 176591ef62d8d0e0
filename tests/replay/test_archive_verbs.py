"""`backlogctl archive`: seen, looked into, verified, deleted; on a real archive."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlogctl.kafka.admin import read_topic_id
from backlogctl.kafka.clients import make_admin
from backlogctl.replay.engine.archives import clear_staging, find_archive
from backlogctl.values import GapState
from tests.kafka_tools import commit
from tests.replay.makers import change_ledger, read_actions
from tests.replay.offloaded import list_states, offload
from tests.replay.shop import DONE, PARTITIONS, TOTAL, Shop, count_by_partition
from tests.spark_backfill.world import make_gap, make_order, publish_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNREAD = TOTAL - DONE


@pytest.fixture
def offloaded(empty_shop: Shop, spark: SparkSession) -> tuple[Shop, str]:
    """A shop of which all that was unread lies in an archive, and its id."""
    shop = empty_shop
    publish_orders(shop.bootstrap, shop.topic, [make_order(number) for number in range(TOTAL)])
    commit(shop.properties, shop.group, shop.topic, count_by_partition(range(DONE)))
    return shop, offload(shop, spark)


def find_folder(shop: Shop, archive: str) -> Path:
    return shop.directory / "staging" / "archives" / archive


def close_gaps(shop: Shop, archive: str) -> None:
    """As if all of it was put back."""
    ledger = shop.open().ledger
    ids = [gap.id for gap in ledger.gaps.list()]
    for state in (GapState.INJECTED, GapState.VERIFIED):
        ledger.gaps.advance(ids, state, archive)


def test_seen_and_looked_into(offloaded: tuple[Shop, str]) -> None:
    shop, archive = offloaded
    listed = shop.call("archive", "list", "--json").document["archives"]
    assert [(one["id"], one["messages"], one["waiting"]) for one in listed] == [
        (archive, UNREAD, UNREAD)
    ]
    assert listed[0]["expires_at"] is None
    assert "not while needed" in shop.call("archive", "list").out
    shown = shop.call("archive", "show", archive, "--json").document
    handled = count_by_partition(range(DONE))
    assert [item["start"] for item in shown["ranges"]] == [handled[n] for n in range(PARTITIONS)]
    assert {item["holes"] for item in shown["ranges"]} == {0}
    assert {gap["stage"] for gap in shown["gaps"]} == {"waiting"}
    told = shop.call("archive", "show", archive).out
    assert f"{UNREAD} messages" in told
    assert f"backlogctl plan redrive orders --from archive:{archive}" in told

    first = shop.call(
        "archive", "peek", archive, "--partition", "1", "--offset", "30", "-n", "2", "--json"
    ).document["messages"]
    assert [(one["partition"], one["offset"]) for one in first] == [(1, 30), (1, 31)]
    order = shop.call("archive", "peek", archive, "--key", str(TOTAL - 1), "--json").document
    value = json.loads(order["messages"][0]["value"]["text"])
    assert value["order_id"] == TOTAL - 1
    assert len(order["messages"]) == 1
    assert "no such message" in shop.call("archive", "peek", archive, "--key", "nobody").out

    shop.write_config(mask=["user_id", "key"])
    masked = shop.call("archive", "peek", archive, "-n", "3").out
    assert '"user_id": "***"' in masked
    assert masked.count("hidden by `mask`") == 3
    missing = shop.call("archive", "show", "r-20000101-0001", "--json", code=2).error
    assert "no such archive" in missing["message"]


def test_files_that_changed_are_named(offloaded: tuple[Shop, str]) -> None:
    shop, archive = offloaded
    good = shop.call("archive", "verify", archive, "--json").document
    assert good["good"]
    assert good["messages"] == UNREAD
    files = sorted(find_folder(shop, archive).glob("partition=*/*.parquet"))
    raw = bytearray(files[0].read_bytes())
    raw[len(raw) // 2] ^= 1
    files[0].write_bytes(raw)
    files[1].unlink()
    (files[2].parent / "other.parquet").write_bytes(b"x")
    bad = shop.call("archive", "verify", archive, "--json", code=1).document
    assert not bad["good"]
    assert [Path(path).name for path in bad["corrupt"]] == [files[0].name]
    assert [Path(path).name for path in bad["missing"]] == [files[1].name]
    assert [Path(path).name for path in bad["unexpected"]] == ["other.parquet"]
    told = shop.call("archive", "verify", archive, code=1).out
    assert files[1].name in told
    (find_folder(shop, archive) / "manifest.json").write_text("{}")
    refused = shop.call("archive", "verify", archive, "--json", code=1).error
    assert refused["code"] == "staging"


def test_purge_loses_nothing_unless_allowed(offloaded: tuple[Shop, str]) -> None:
    shop, archive = offloaded
    refused = shop.call("archive", "purge", archive, "--json", code=5).error
    assert f"{UNREAD} messages" in refused["message"]
    assert "--allow lose" in refused["hint"]
    assert find_folder(shop, archive).exists()
    shop.call("archive", "purge", archive, "--allow", "all", "--json", code=2)
    done = shop.call("archive", "purge", archive, "--allow", "lose", "--json").document
    assert done["files"] > PARTITIONS
    assert done["bytes"] > 0
    assert not find_folder(shop, archive).exists()
    workspace = shop.open()
    gaps = workspace.ledger.gaps.list()
    assert {gap.state for gap in gaps} == {GapState.WAIVED}
    assert all(archive in gap.reason for gap in gaps)
    assert "archive purged" in read_actions(workspace, archive)
    shown = shop.call("archive", "show", archive, "--json").document
    assert shown["purged_by"].startswith("os:")
    assert sum(item["messages"] for item in shown["ranges"]) == UNREAD, "the counts stay"
    for verb in ("peek", "verify", "purge"):
        gone = shop.call("archive", verb, archive, "--json", code=5).error
        assert "it was purged" in gone["message"]


def test_purge_leaves_what_is_not_of_the_archive(offloaded: tuple[Shop, str]) -> None:
    shop, archive = offloaded
    close_gaps(shop, archive)
    outside = shop.directory / "precious"
    outside.mkdir()
    (outside / "file.parquet").write_text("x")
    folder = find_folder(shop, archive)
    (folder / "notes.txt").write_text("mine")
    (folder / "partition=7").symlink_to(outside)
    shop.call("archive", "purge", archive)
    assert (outside / "file.parquet").exists()
    assert (folder / "notes.txt").exists()
    assert not list(folder.glob("partition=*/*.parquet"))[1:]


def test_an_archive_of_another_offload_is_not_deleted(offloaded: tuple[Shop, str]) -> None:
    shop, archive = offloaded
    close_gaps(shop, archive)
    path = find_folder(shop, archive) / "manifest.json"
    path.write_text(path.read_text().replace(archive, "r-20000101-0001"))
    refused = shop.call("archive", "purge", archive, "--json", code=5).error
    assert refused["code"] == "foreign_archive"
    assert path.exists()


def test_archives_expire_after_all_is_put_back(offloaded: tuple[Shop, str]) -> None:
    shop, archive = offloaded
    workspace = shop.open()
    age_gaps(shop)
    assert clear_staging(workspace) == (), "its gaps wait"
    assert list_states(workspace) == ["staged"]
    close_gaps(shop, archive)
    assert clear_staging(workspace) == (), "kept for a while"
    expires = find_archive(workspace, archive).expires_at
    assert expires is not None
    age_gaps(shop)
    assert clear_staging(workspace) == (archive,)
    assert not find_folder(shop, archive).exists()
    assert clear_staging(workspace) == ()
    assert workspace.ledger.archives.get(archive).purged_at is not None


def test_an_archive_that_an_open_gap_needs_is_kept(empty_shop: Shop, spark: SparkSession) -> None:
    """The group was set back over a known gap: its messages are the archive's, not the gap."""
    shop = empty_shop
    publish_orders(shop.bootstrap, shop.topic, [make_order(number) for number in range(TOTAL)])
    ledger = shop.open().ledger
    topic_id, _ = read_topic_id(make_admin(shop.properties), shop.topic)
    older = make_gap(shop.topic, 0, 3, 8, group=shop.group, topic_id=topic_id)
    ledger.gaps.record(older)
    archive = offload(shop, spark)
    kept = [gap for gap in ledger.gaps.list() if gap.archive]
    for state in (GapState.INJECTED, GapState.VERIFIED):
        ledger.gaps.advance([gap.id for gap in kept], state, archive)
    age_gaps(shop)
    assert clear_staging(shop.open()) == ()
    refused = shop.call("archive", "purge", archive, "--json", code=5).error
    assert "5 messages" in refused["message"]
    assert "only in this archive" in refused["message"]


def test_an_archive_that_another_streams_gap_needs_is_kept(offloaded: tuple[Shop, str]) -> None:
    """Two groups read the topic: what the other one lost lies only here, too."""
    shop, archive = offloaded
    ledger, record = shop.open().ledger, shop.open().ledger.archives.get(archive)
    close_gaps(shop, archive)
    item = record.ranges[0]
    for stream, cluster in (("orders-there", "another"), ("audit", record.cluster)):
        age_gaps(shop)
        assert find_archive(shop.open(), archive).expires_at is not None
        place = (shop.topic, item.partition, item.start, item.end)
        words: dict[str, Any] = {"stream": stream, "group": stream, "cluster": cluster}
        ledger.gaps.record(replace(make_gap(*place, topic_id=record.topic_id), **words))
    (gap,) = find_archive(shop.open(), archive).elsewhere
    assert (gap.stream, gap.cluster) == ("audit", record.cluster)
    assert clear_staging(shop.open()) == ()
    refused = shop.call("archive", "purge", archive, "--json", code=5).error
    assert gap.id in refused["message"]
    assert "audit" in refused["hint"]


def age_gaps(shop: Shop) -> None:
    workspace = shop.open()
    change_ledger(workspace, "UPDATE backlog_gaps SET changed_at = '2026-01-01T00:00:00.000000Z'")
    change_ledger(workspace, "UPDATE backlog_archives SET made_at = '2026-01-01T00:00:00.000000Z'")
