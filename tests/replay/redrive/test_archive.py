"""From an archive and from dead letters: put back as it was, and what cannot be is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlogctl.kafka.admin import committed_offsets, create_topic, describe_topic
from backlogctl.spark_backfill.archive.verification import purge_archive
from backlogctl.values import GapState
from backlogctl_delivery import stamps
from tests.conftest import MakeTopic
from tests.kit.kafka import delete_topic, leave_at, move_log_start, set_config, wait_until
from tests.kit.shop import PARTITIONS, SOURCE, Shop, offload, place
from tests.replay.redrive.world import (
    AT,
    KEEP,
    Header,
    Letter,
    carry_out,
    connect,
    generic,
    keys_of,
    make_order,
    make_value,
    plan,
    pointer,
    publish,
    read_sent,
    retryable,
    run,
    spring,
    streams,
)
from tests.spark_backfill.archive.archiving import ANY_TIME, list_data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)


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


def test_fault_94_rows_that_moved_on_are_counted(offloaded: tuple[Shop, str]) -> None:
    """An archive of states: seven have a newer message, one a tombstone."""
    shop, archive = offloaded
    publish(shop, shop.topic, [make_order(number) for number in range(7)])
    publish(shop, shop.topic, [replace(make_order(7), value=None)])
    for mutable in (True, False):
        shop.write_config(source={**SOURCE, "mutable": mutable})
        planned = plan(shop, "--from", f"archive:{archive}", "--all")
        told = [line for line in planned["warnings"] if "moved on" in line]
        assert [line[:39] for line in told] == ["8 rows of these messages moved on: topi"] * mutable


def test_fault_125_a_time_in_nanoseconds_ends_no_work(
    empty_shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    """Archived, shown, put back from there, and put back from the log."""
    shop = empty_shop
    set_config(shop.properties, shop.topic, ANY_TIME)
    orders = [make_order(number, OWN) for number in range(TOTAL)]
    publish(shop, shop.topic, [*orders[1:], replace(orders[0], timestamp=AT * 10**6)])
    dated = plan(shop, "--from", "log", "--since", "2025-10-09", "--until", "2026-01-01")
    assert dated["counts"]["staged"] == TOTAL - 1
    assert "1 message without a time that can be read" in " ".join(dated["warnings"])
    copied = carry_out(shop, "--from", "log", "--all", "--where", "time IS NULL")
    assert copied["counts"]["staged"] == 1
    (sent,) = read_sent(shop)
    assert (sent.key, sent.original_time) == (b"0", "")
    archive = offload(shop, spark)
    shop.call("archive", "verify", archive)
    peeked = shop.call("archive", "peek", archive, "--key", "0", "--json").document["messages"]
    assert [message["time"] for message in peeked][:1] == [None]
    rest = carry_out(shop, "--from", f"archive:{archive}", "--all")
    assert rest["counts"]["staged"] + rest["counts"]["put_back"] == TOTAL + 1
    assert {gap.state for gap in shop.open().ledger.gaps.list()} == {GapState.VERIFIED}


def test_fault_126_into_a_topic_that_was_made_anew(offloaded: tuple[Shop, str]) -> None:
    """What is printed works, and closes what it says is not put back."""
    shop, archive = offloaded
    shop.call("gaps")
    delete_topic(shop.properties, shop.topic)
    # The broker deletes the group's commits a moment later.
    numbers = range(PARTITIONS)
    wait_until(
        lambda: (
            not any(committed_offsets(shop.properties, shop.group, shop.topic, numbers).values())
        )
    )
    create_topic(shop.properties, shop.topic, partitions=PARTITIONS, config=KEEP)
    leave_at(shop.properties, shop.group, shop.topic, dict.fromkeys(numbers, 0))
    command = f"plan redrive orders --from archive:{archive}"
    told = shop.call("gaps").out
    assert command in told
    assert "plan rebuild" not in told
    stands = shop.run("status", code=None).out
    assert command in stands
    assert "plan rebuild" not in stands, stands
    refused = shop.call("plan", "rebuild", "orders", "--json", code=5).document["error"]
    assert f"its messages are in archive {archive}" in refused["message"]
    assert command in refused["hint"]
    planned = carry_out(shop, "--from", f"archive:{archive}")
    assert planned["counts"]["staged"] == TOTAL
    assert "was deleted and made again" in " ".join(planned["warnings"])
    assert keys_of(read_sent(shop)) == {str(number).encode(): 1 for number in range(TOTAL)}
    require_put_back(shop, archive)
    # In the new topic they expire unread: they come from the same archive again.
    move_log_start(shop.properties, shop.topic, shop.read_ends())
    assert command in shop.call("gaps").out
    again = carry_out(shop, "--from", f"archive:{archive}")
    assert again["counts"]["staged"] == TOTAL
    require_put_back(shop, archive)


def test_fault_126_put_back_in_parts_it_is_put_back(offloaded: tuple[Shop, str]) -> None:
    """By recoveries of which none took the whole gap."""
    shop, archive = offloaded
    source = f"archive:{archive}"
    carry_out(shop, "--from", source, "--offsets", "1:0-4", "--offsets", "0:0-4")
    carry_out(shop, "--from", source, "--offsets", "1:5-")
    ledger = shop.open().ledger
    assert {gap.partition: gap.state for gap in ledger.gaps.list()}[1] is GapState.VERIFIED
    last = carry_out(shop, "--from", source, "--all", "--where", "offset >= 0")
    waiting = ledger.gaps.list_waiting()
    assert len(waiting) == PARTITIONS - 1, "a part of the messages was asked for"
    refused = plan(shop, "--from", source, code=5)
    assert "put back already" in refused["message"]
    assert "closed now" in refused["hint"]
    require_put_back(shop, archive)
    assert {ledger.gaps.get(gap.id).recovery_id for gap in waiting} == {last["id"]}


def require_put_back(shop: Shop, archive: str) -> None:
    """It is told the same everywhere."""
    shown = shop.call("archive", "show", archive, "--json").document
    assert (shown["waiting"], shown["under_way"], shown["put_back"]) == (0, 0, TOTAL)
    counted = [gap for gap in shop.open().ledger.gaps.list() if gap.count]
    assert {gap.state for gap in counted} == {GapState.VERIFIED}
    told = shop.call("gaps").out
    assert "not put back" not in told
    assert "plan redrive" not in told


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


@pytest.fixture
def dead(empty_shop: Shop, topic: MakeTopic) -> str:
    """A topic of dead letters."""
    set_config(empty_shop.properties, empty_shop.topic, KEEP)
    publish(empty_shop, empty_shop.topic, [make_order(number) for number in range(30)])
    return topic(2, KEEP, name="orders-dlt")


def letter(number: int, headers: list[Header], partition: int = 0) -> Letter:
    return Letter(str(number).encode(), make_value(number), headers, partition)


@pytest.mark.usefixtures("spark")
def test_origins_of_each_framework(empty_shop: Shop, dead: str) -> None:
    """Known by their place in the stream's topic, put back there, without what a retry added."""
    shop = empty_shop
    own: list[Header] = [("trace", b"1"), ("trace", None)]
    publish(
        shop,
        dead,
        [
            letter(1, [*own, *spring(shop.topic, 2, 7, "row 1 is bad\nsecond line")]),
            letter(2, [*connect(shop.topic, 0, 4), *own], 1),
            letter(3, [*own, *generic(shop.topic, 1, 5), ("retry_topic-attempts", b"3")]),
            letter(4, own),
            letter(5, spring("payments", 0, 1)),
            letter(6, connect("payments", 0, 2)),
            letter(7, spring(dead, 0, 3)),
            letter(8, [*own, *streams(shop.topic, 2, 8)]),
            letter(9, [*retryable(shop.topic, 0, 5), *own]),
        ],
    )
    planned = plan(shop, "--from", f"dlq:{dead}", "--all", "--allow", "unnamed")
    counts = planned["counts"]
    assert (counts["read"], counts["staged"], counts["elsewhere"]) == (9, 6, 3)
    assert (counts["unnamed"], counts["assumed"], counts["unreadable"]) == (0, 1, 0)
    assert planned["elsewhere"] == [
        {"topic": "payments", "count": 2, "exists": False},
        {"topic": dead, "count": 1, "exists": True},
    ]
    assert {(one["name"], one["count"]) for one in planned["errors"]} == {
        ("java.lang.IllegalStateException", 1),
        ("org.apache.kafka.connect.DataException", 1),
        ("java.lang.ArithmeticException", 1),
        ("java.lang.NullPointerException", 1),
        ("unknown", 2),
    }
    stripped = {one["name"] for one in planned["stripped"]}
    assert {"kafka_dlt-original-offset", "__connect.errors.topic"} <= stripped
    shown = shop.call("show", planned["id"]).out
    assert "payments (which is gone)" in " ".join(shown.split())
    assert "row 1 is bad" in shown
    assert "second line" not in shown
    assert b"row 1 is bad" not in (shop.directory / "ledger.db").read_bytes()

    run(shop, planned["id"])
    topic_id = describe_topic(shop.properties, shop.topic).topic_id
    dead_id = describe_topic(shop.properties, dead).topic_id
    sent = {one.key: one for one in read_sent(shop)}
    assert {key: one.headers for key, one in sent.items()} == dict.fromkeys(
        [b"1", b"2", b"3", b"4", b"8", b"9"], tuple(own)
    )
    named = (b"1", b"2", b"3", b"8", b"9")
    assert [sent[key].partition for key in named] == [2, 0, 1, 2, 0]
    assert sent[b"4"].partition == place(4)
    assert [sent[key].message_id for key in named] == [
        stamps.make_original_id(topic_id, *at) for at in ((2, 7), (0, 4), (1, 5), (2, 8), (0, 5))
    ]
    assert sent[b"4"].message_id == stamps.make_original_id(dead_id, 0, 2)
    # The original's time where it is known: of a header, or of a letter that keeps it.
    times = {key: one.original_time[-8:-4] for key, one in sent.items() if one.original_time}
    assert times == {b"1": ".007", b"2": ".000", b"8": ".000"}
    report = shop.call("report", planned["id"], "--json").document
    assert report["verification"]["result"] == "passed"
    again = plan(shop, "--from", f"dlq:{dead}", "--all", "--allow", "unnamed", code=5)
    assert "6 are put back already" in again["message"]


def make_hostile(name: bytes) -> list[Letter]:
    """Five of the topic of this name, of which no place can be read, and one of another topic."""
    bad: list[list[Header]] = [
        [("kafka_dlt-original-topic", name), ("kafka_dlt-original-offset", b"\x00\x01\x02")],
        [
            ("x-original-topic", name),
            ("x-original-partition", b"-1"),
            ("x-original-offset", b"9" * 400_000),
        ],
        [
            ("kafka_dlt-original-topic", name),
            ("kafka_dlt-original-partition", b"\xff\xff\xff\xff"),
            ("kafka_dlt-original-offset", b"\xff" * 8),
        ],
        [("x-original-topic", name), ("x-original-partition", None), ("x-original-offset", b"")],
        [
            ("__connect.errors.topic", name),
            ("__connect.errors.exception.class.name", b"\x00\xfe" * 1000),
            ("__connect.errors.exception.message", b"\x1b[31m red" + b"x" * 400_000),
            (stamps.REPLAYS, b"many"),
        ],
        [("x-original-topic", b"\xff\xfe"), ("x-original-partition", b"0")],
    ]
    return [letter(200 + n, headers, 1) for n, headers in enumerate(bad)]


@pytest.mark.usefixtures("spark")
def test_faults_105_and_106_letters_of_nobody_and_of_others_stay(
    empty_shop: Shop, dead: str
) -> None:
    """Forty of another service share the topic, without a word of whose they are. Of one letter
    somebody mended the value and left the headers: one message, the newest; and told. Whatever
    stands in a header, it is read or counted as unreadable."""
    shop, again = empty_shop, spring("payments", 0, 9)
    mine = [*spring(shop.topic, 0, 4), *spring(dead, 1, 0)]
    others = [letter(100 + n, again if n < 5 else []) for n in range(40)]
    place_only = Letter(None, None, pointer(shop.topic, 0, 7))
    copied, broken = letter(2, pointer(shop.topic, 0, 8)), letter(3, spring(shop.topic, 0, 9))
    mended = replace(broken, value=b"mended", timestamp=AT + 1)
    publish(shop, dead, [letter(1, mine), *others, place_only, copied, broken, mended])
    publish(shop, dead, make_hostile(shop.topic.encode()))
    planned = plan(shop, "--from", f"dlq:{dead}", "--all", "--since", "2025-01-01")
    counts = planned["counts"]
    assert (counts["staged"], counts["elsewhere"], counts["unnamed"]) == (3 + 5, 5 + 1, 35)
    assert (counts["empty"], counts["bare"]) == (1, 1)
    assert (counts["repeated"], counts["corrected"], counts["unreadable"]) == (1, 1, 5)
    assert "1 dead letter left out for a newer one" in " ".join(planned["warnings"])
    assert planned["verdict"] == "partial"
    assert "--allow unnamed" in planned["reasons"][0]
    assert planned["hops"] == [{"name": f"{shop.topic} → {dead}", "count": 1}]
    out = shop.call("show", planned["id"]).out
    assert "\x1b[31m red" not in out
    shown = " ".join(out.replace("│", " ").split())
    assert f"{shop.topic} → {dead}: known by the first in topic {shop.topic}" in shown
    assert "35 dead letters without a topic" in shown
    assert "by the letters' timestamps, not the originals'" in shown
    run(shop, planned["id"])
    topic_id = describe_topic(shop.properties, shop.topic).topic_id
    found = {one.key: one for one in read_sent(shop)}
    assert len(found) == len(read_sent(shop)) == 3 + 5
    sent = [found[key] for key in (b"1", b"2", b"3")]
    assert [(one.key, one.message_id, one.headers) for one in sent] == [
        (str(number).encode(), stamps.make_original_id(topic_id, 0, at), ())
        for number, at in ((1, 4), (2, 8), (3, 9))
    ]
    assert sent[-1].value == b"mended"
    assert {one.partition for one in sent} == {0}, "where they were"
    refused = plan(shop, "--from", f"dlq:{dead}", "--all", code=5)
    assert "35 are dead letters that name no topic" in refused["message"]
    allowed = plan(shop, "--from", f"dlq:{dead}", "--all", "--allow", "unnamed")
    assert (allowed["counts"]["staged"], allowed["counts"]["assumed"]) == (35, 35)


@pytest.mark.usefixtures("spark")
def test_what_comes_back_is_counted_and_refused_after_the_third_time(
    empty_shop: Shop, dead: str
) -> None:
    """A poison message is put back until `max_replays`, and then only by name."""
    shop = empty_shop
    publish(shop, dead, [letter(1, spring(shop.topic, 0, 4)), letter(2, spring(shop.topic, 0, 5))])
    carry_out(shop, "--from", f"dlq:{dead}", "--all")
    assert {one.replays for one in read_sent(shop)} == {1}
    # Order 1 fails again, from where it lies now; it still has our stamps.
    for before in (1, 2):
        publish(
            shop,
            dead,
            [
                letter(
                    1,
                    [
                        *stamps.stamp(
                            [],
                            message_id="x" * 32,
                            recovery_id="r-1",
                            original_time="",
                            fidelity="original",
                            replays=before,
                        ),
                        *spring(shop.topic, 0, 100 + before),
                    ],
                )
            ],
        )
        planned = carry_out(shop, "--from", f"dlq:{dead}", "--all")
        assert planned["counts"]["put_back"] == before + 1
        assert planned["counts"]["came_back"] == before
        assert planned["counts"]["staged"] == 1
        assert "came back" in " ".join(planned["warnings"])
    assert sorted(one.replays for one in read_sent(shop)) == [1, 1, 2, 3]
    publish(shop, dead, [letter(1, [(stamps.REPLAYS, b"3"), *spring(shop.topic, 0, 103)])])
    refused = plan(shop, "--from", f"dlq:{dead}", "--all", code=5)
    assert "--allow replays" in refused["message"]
    allowed = plan(shop, "--from", f"dlq:{dead}", "--all", "--allow", "replays")
    assert allowed["counts"]["staged"] == 1


@pytest.mark.usefixtures("spark")
def test_two_letters_of_one_message_are_one(empty_shop: Shop, dead: str) -> None:
    """The newest counts: a message is put back once."""
    shop = empty_shop
    own: list[Header] = [("last", b"1")]
    publish(
        shop,
        dead,
        [
            letter(1, spring(shop.topic, 0, 4)),
            letter(1, [*own, *spring(shop.topic, 0, 4)]),
            letter(2, connect(shop.topic, 0, 5)),
        ],
    )
    planned = carry_out(shop, "--from", f"dlq:{dead}", "--all")
    assert (planned["counts"]["repeated"], planned["counts"]["staged"]) == (1, 2)
    assert planned["counts"]["corrected"] == 0
    assert {one.key: one.headers for one in read_sent(shop)} == {b"1": tuple(own), b"2": ()}


@pytest.mark.usefixtures("spark")
def test_two_messages_of_one_place_are_two(empty_shop: Shop, dead: str) -> None:
    """The topic was made anew, or a header is wrong: neither is left out for the other."""
    shop = empty_shop
    publish(
        shop, dead, [letter(1, spring(shop.topic, 0, 4)), letter(2, spring(shop.topic, 0, 4), 1)]
    )
    planned = carry_out(shop, "--from", f"dlq:{dead}", "--all")
    assert (planned["counts"]["repeated"], planned["counts"]["staged"]) == (0, 2)
    sent = {one.key: one.message_id for one in read_sent(shop)}
    topic_id = describe_topic(shop.properties, shop.topic).topic_id
    assert stamps.make_original_id(topic_id, 0, 4) in sent.values()
    assert len({len(one) for one in sent.values()}) == 1
    assert len(set(sent.values())) == 2
    again = plan(shop, "--from", f"dlq:{dead}", "--all", code=5)
    assert "2 are put back already" in again["message"]


@pytest.mark.usefixtures("spark")
def test_headers_of_a_framework_of_ones_own(empty_shop: Shop, dead: str) -> None:
    shop = empty_shop
    names = {"topic": "my[t]", "partition": "my-p", "offset": "my-o", "error": "my-e"}
    shop.write_config(redrive={"dead_letters": {**names, "strip": ["my-try-*"]}})
    headers: list[Header] = [
        ("my[t]", shop.topic.encode()),
        ("my-p", b"1"),
        ("my-o", (17).to_bytes(8, "big")),
        ("my-e", b"shop.errors.Broken: order 1"),
        ("my-try-2", b"x"),
        ("myt", b"stays"),
    ]
    publish(shop, dead, [letter(1, headers)])
    planned = carry_out(shop, "--from", f"dlq:{dead}", "--offsets", "0:0")
    assert [one["name"] for one in planned["errors"]] == ["shop.errors.Broken"]
    (sent,) = read_sent(shop)
    assert sent.headers == (("myt", b"stays"),)
    topic_id = describe_topic(shop.properties, shop.topic).topic_id
    assert sent.message_id == stamps.make_original_id(topic_id, 1, 17)
    assert sent.partition == 1
