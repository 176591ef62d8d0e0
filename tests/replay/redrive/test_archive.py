"""From an archive: what an offload moved is put back as it was; a damaged file is named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlogctl.spark_backfill.archive.verification import purge_archive
from backlogctl.values import GapState
from tests.kit.kafka import move_log_start, set_config
from tests.kit.shop import Shop, offload, place
from tests.replay.redrive.world import (
    KEEP,
    Header,
    carry_out,
    keys_of,
    make_order,
    plan,
    publish,
    read_sent,
)
from tests.spark_backfill.archive.archiving import list_data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(900)]
TOTAL = 60
OWN: list[Header] = [("trace", b"1"), ("trace", None)]


@pytest.fixture
def offloaded(empty_shop: Shop, spark: SparkSession) -> tuple[Shop, str]:
    """All of the topic is in an archive, and nothing is left in the topic."""
    shop = empty_shop
    set_config(shop.properties, shop.topic, KEEP)
    publish(shop, shop.topic, [make_order(number, OWN) for number in range(TOTAL)])
    return shop, offload(shop, spark)


def test_a_offloaded_range_is_put_back(offloaded: tuple[Shop, str]) -> None:
    """In part, then the rest: what is put back is left out."""
    shop, archive = offloaded
    mine = [number for number in range(TOTAL) if place(number) == 1]
    first = carry_out(shop, "--from", f"archive:{archive}", "--offsets", "1:0-4")
    assert first["counts"]["staged"] == 5
    assert "wait in this archive and stay so" in " ".join(first["warnings"])
    assert keys_of(read_sent(shop)) == {str(number).encode(): 1 for number in mine[:5]}
    rest = carry_out(shop, "--from", f"archive:{archive}", "--all")
    assert (rest["counts"]["put_back"], rest["counts"]["staged"]) == (5, TOTAL - 5)
    sent = read_sent(shop)
    assert {gap.state for gap in shop.open().ledger.gaps.list()} == {GapState.VERIFIED}
    assert keys_of(sent) == {str(number).encode(): 1 for number in range(TOTAL)}
    assert {one.headers for one in sent} == {tuple(OWN)}
    assert all(one.partition == place(int(one.key or b"")) for one in sent)
    tail = [one.key for one in sent if one.partition == 1][5:]
    assert tail == [str(number).encode() for number in mine[5:]], "in their order"


def test_what_expired_unread_again_is_lost_again(offloaded: tuple[Shop, str]) -> None:
    """P2.4: message by message, by where each of them was."""
    shop, archive = offloaded
    ends = shop.read_ends()
    shop.call("status")
    carry_out(shop, "--from", f"archive:{archive}", "--offsets", "1:0-4")
    # Three of the five expire before the group reads them.
    move_log_start(shop.properties, shop.topic, {1: ends[1] + 3})
    again = carry_out(shop, "--from", f"archive:{archive}", "--offsets", "1:0-4")
    assert (again["counts"]["put_back"], again["counts"]["staged"]) == (2, 3)
    mine = [number for number in range(TOTAL) if place(number) == 1]
    assert [one.key for one in read_sent(shop)] == [
        str(number).encode() for number in (*mine[3:5], *mine[:3])
    ]
    refused = plan(shop, "--from", f"archive:{archive}", "--offsets", "1:0-4", code=5)
    assert "5 are put back already" in refused["message"]


def test_lost_again_beside_what_was_put_back_twice(offloaded: tuple[Shop, str]) -> None:
    """All five expire; of two of them there is a second copy, the other three are lost still."""
    shop, archive = offloaded
    ends = shop.read_ends()
    shop.call("status")
    carry_out(shop, "--from", f"archive:{archive}", "--offsets", "1:0-4")
    move_log_start(shop.properties, shop.topic, {1: ends[1] + 5})
    two = carry_out(shop, "--from", f"archive:{archive}", "--offsets", "1:0-1")
    assert two["counts"]["staged"] == 2
    rest = carry_out(shop, "--from", f"archive:{archive}", "--offsets", "1:0-4")
    assert (rest["counts"]["put_back"], rest["counts"]["staged"]) == (2, 3)
    mine = [number for number in range(TOTAL) if place(number) == 1]
    assert [one.key for one in read_sent(shop)] == [str(number).encode() for number in mine[:5]]


def test_what_waits_in_another_archive_comes_from_there(
    offloaded: tuple[Shop, str], spark: SparkSession
) -> None:
    """Put back, and offloaded once more unread: from the first archive it would come twice."""
    shop, first = offloaded
    shop.write_config(source=None)
    carry_out(shop, "--from", f"archive:{first}")
    second = offload(shop, spark)
    refused = plan(shop, "--from", f"archive:{first}", "--all", code=5)
    assert f"{TOTAL} are put back already" in refused["message"]
    assert f"archive {second} has them" in refused["hint"]
    planned = carry_out(shop, "--from", f"archive:{second}")
    assert planned["counts"]["staged"] == TOTAL, "its own messages are not in the way"
    assert keys_of(read_sent(shop)) == {str(number).encode(): 1 for number in range(TOTAL)}


def test_a_damaged_or_missing_archive_is_named(
    offloaded: tuple[Shop, str], spark: SparkSession
) -> None:
    """Nothing is planned, and nothing is staged."""
    shop, archive = offloaded
    location = Path(shop.open().ledger.archives.get(archive).location)
    victim = list_data(location)[0]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:100] + bytes([whole[100] ^ 255]) + whole[101:])
    said = plan(shop, "--from", f"archive:{archive}", "--all", code=1)
    assert victim.name in said["message"]
    assert "nothing was sent" in said["message"]
    victim.write_bytes(whole)
    assert (
        "no partition 7"
        in plan(shop, "--from", f"archive:{archive}", "--offsets", "7:0", code=2)["message"]
    )
    purge_archive(spark, str(location), owner={"recovery_id": archive})
    shop.open().ledger.archives.mark_purged(archive, "tester")
    assert "removed" in plan(shop, "--from", f"archive:{archive}", "--all", code=5)["message"]
    assert [one.kind for one in shop.open().ledger.recoveries.list()] == ["offload"]
