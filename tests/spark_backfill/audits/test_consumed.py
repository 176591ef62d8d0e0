"""What a consumer's table lacks of what was committed: an oracle in Python says the same."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlogctl.config import Consumed
from backlogctl.errors import ConfigurationError, SourceError
from backlogctl.spark_backfill.audits import consumed as module
from backlogctl.spark_backfill.audits.consumed import (
    ConsumedAudit,
    ConsumedScope,
    UnhandledRange,
    audit_consumed,
    read_consumed,
)
from backlogctl.spark_backfill.existing.messages import ORIGINALS_SCHEMA
from backlogctl.values import OffsetRange
from backlogctl_delivery import stamps
from tests.spark_backfill import world

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW_MS = 1_790_000_000_000
TOPIC_ID = "dGhlIHRvcGljJ3MgaWQ"


@dataclass(frozen=True)
class Sent:
    """A message of the log; its time is `at` seconds, or its offset."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None = b"v"
    at: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def make_frame(spark: SparkSession, sent: Iterable[Sent]) -> DataFrame:
    rows = [
        (
            one.partition,
            one.offset,
            NOW_MS + (one.offset if one.at is None else one.at),
            0,
            one.key,
            one.value,
            list(one.headers),
        )
        for one in sent
    ]
    return spark.createDataFrame(rows, ORIGINALS_SCHEMA)


def examine(
    spark: SparkSession,
    sent: Iterable[Sent],
    handled: Iterable[bytes],
    *,
    later: Iterable[Sent] = (),
    settled: Mapping[int, int] | None = None,
    header: str | None = None,
    **scope: object,
) -> ConsumedAudit:
    keys = spark.createDataFrame([(bytearray(key),) for key in handled], "key binary")
    made = ConsumedScope(TOPIC_ID, header, settled or dict.fromkeys(range(9), 10**6))
    made = replace(made, **scope)  # type: ignore[arg-type]
    return audit_consumed(make_frame(spark, sent), make_frame(spark, later), keys, made)


def places(found: ConsumedAudit) -> list[str]:
    return [one.place for one in found.ranges]


def copy(partition: int, offset: int, key: bytes, of: tuple[int, int]) -> Sent:
    """What a redrive of a message writes."""
    ours = stamps.make_original_id(TOPIC_ID, *of).encode()
    return Sent(partition, offset, key, headers=((stamps.MESSAGE_ID, ours),))


def test_ranges_hold_exactly_the_unhandled(spark: SparkSession) -> None:
    """Offsets without a message between two do not part them; a handled one does."""
    sent = [Sent(0, at, b"%d" % at) for at in (0, 1, 2, 5, 6, 7, 9)]
    sent += [Sent(1, 3, b"x"), Sent(1, 4, None)]
    found = examine(spark, sent, [b"0", b"6", b"other"])
    assert found.ranges == (
        UnhandledRange(0, 1, 5, 3, NOW_MS + 1, NOW_MS + 5, is_older=False),
        UnhandledRange(0, 7, 9, 2, NOW_MS + 7, NOW_MS + 9, is_older=False),
        UnhandledRange(1, 3, 3, 1, NOW_MS + 3, NOW_MS + 3, is_older=False),
    )
    counts = found.counts
    assert (counts.messages, counts.handled, counts.unhandled) == (9, 2, 6)
    assert (counts.without_identity, counts.older, found.is_whole) == (1, 0, True)
    assert found.oldest_ms == NOW_MS


def test_without_identity_is_counted_and_never_judged(spark: SparkSession) -> None:
    sent = [Sent(0, 0, None), Sent(0, 1, b"a", value=None), Sent(0, 2, b""), Sent(0, 3, b"b")]
    found = examine(spark, sent, [b"b"])
    assert places(found) == ["0:2-2"], "an empty key is one"
    assert (found.counts.without_identity, found.counts.tombstones) == (2, 1)


def test_a_message_that_comes_again_is_not_lost(spark: SparkSession) -> None:
    sent = [Sent(0, 0, b"a"), Sent(0, 1, b"b"), Sent(0, 2, b"c")]
    later = [Sent(1, 50, b"b"), Sent(0, 51, b"c", value=None)]
    found = examine(spark, sent, [b"z"], later=later)
    assert places(found) == ["0:0-0", "0:2-2"], "a tombstone does not bring it again"
    assert (found.counts.coming_again, found.counts.unhandled) == (1, 2)


def test_what_is_not_settled_is_not_judged(spark: SparkSession) -> None:
    """Nor is an older message of the same identity, which is on its way once more."""
    sent = [
        Sent(0, 0, b"a"),
        Sent(0, 1, b"b"),
        Sent(0, 5, b"b"),
        Sent(0, 6, b"c"),
        Sent(1, 0, b"d"),
    ]
    found = examine(spark, sent, [b"z"], settled={0: 5})
    assert places(found) == ["0:0-0"]
    assert (found.counts.not_settled, found.counts.unhandled) == (4, 1)


def test_repeated_keys_are_told_only_where_the_table_lacks_them(spark: SparkSession) -> None:
    sent = [Sent(0, at, b"a" if at % 2 else b"b") for at in range(6)] + [Sent(0, 6, b"c")]
    found = examine(spark, sent, [b"a", b"c"])
    assert places(found) == ["0:0-0", "0:2-2", "0:4-4"]
    assert (found.counts.handled, found.counts.repeated) == (4, 3)


def test_a_header_identifies_a_message_and_its_repeats(spark: SparkSession) -> None:
    """One copy of it is enough for the consumer, and one is put back."""

    def event(offset: int, name: bytes | None) -> Sent:
        return Sent(0, offset, b"k", headers=(("id", b"old"), ("id", name), ("x", b"y")))

    sent = [event(0, b"1"), event(1, b"2"), event(2, b"2"), event(3, b"3"), event(4, None)]
    found = examine(spark, sent, [b"1", b"k", b"old"], header="id")
    assert places(found) == ["0:2-3"]
    assert (found.counts.unhandled, found.counts.without_identity) == (2, 1)


def test_a_copy_that_was_put_back_stands_for_its_original(spark: SparkSession) -> None:
    """Handled once is enough; left out again, only the copy is lost: the ledger knows that the
    original was put back."""
    sent = [Sent(0, 0, b"a"), Sent(0, 1, b"b"), Sent(0, 2, b"b"), Sent(0, 3, b"c")]
    sent += [copy(0, 10, b"a", (0, 0)), copy(0, 11, b"b", (0, 1)), Sent(0, 12, b"z")]
    found = examine(spark, sent, [b"a", b"z"])
    assert places(found) == ["0:2-3", "0:11-11"], "not the original at offset 1"
    assert (found.counts.unhandled, found.counts.put_back) == (3, 2)
    assert found.counts.repeated == 0, "a copy of ours does not make a key one that repeats"


def test_what_is_older_than_the_table_is_apart(spark: SparkSession) -> None:
    """By the newest message of each identity: which of them its row means is not known."""
    sent = [
        Sent(0, 0, b"a"),
        Sent(0, 1, b"k"),
        Sent(0, 2, b"b"),
        Sent(0, 3, b"k"),
        Sent(0, 4, b"c"),
    ]
    found = examine(spark, sent, [b"k"])
    assert [(one.place, one.is_older) for one in found.ranges] == [
        ("0:0-0", True),
        ("0:2-2", True),
        ("0:4-4", False),
    ]
    assert (found.counts.older, found.oldest_ms) == (2, NOW_MS + 3)


def test_times_and_waived_ranges_bound_what_is_judged(spark: SparkSession) -> None:
    sent = [Sent(0, at, b"%d" % at, at=at * 10) for at in range(10)]
    found = examine(
        spark,
        sent,
        [b"5"],
        since_ms=NOW_MS + 20,
        until_ms=NOW_MS + 80,
        waived=(OffsetRange(0, 3, 5), OffsetRange(1, 0, 99)),
    )
    assert places(found) == ["0:2-2", "0:6-7"]
    assert (found.counts.handled, found.counts.unhandled) == (1, 3)


def test_too_many_ranges_are_counted_in_full(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_RANGES", 3)
    sent = [Sent(0, at, b"%d" % at) for at in range(20)]
    found = examine(spark, sent, [b"%d" % at for at in range(0, 20, 2)])
    assert places(found) == ["0:1-1", "0:3-3", "0:5-5"]
    assert (found.is_whole, found.counts.unhandled) == (False, 10)


def test_nothing_at_all(spark: SparkSession) -> None:
    found = examine(spark, [], [])
    assert (found.counts.messages, found.ranges, found.oldest_ms) == (0, (), None)


def test_random_logs_have_what_an_oracle_says(spark: SparkSession) -> None:
    chance = random.Random(54)
    sent = [
        Sent(p, at, b"%d" % chance.randrange(3000))
        for p in range(5)
        for at in range(600)
        if chance.random() < 0.9
    ]
    settled, committed = {p: 300 + 20 * p for p in range(4)}, dict.fromkeys(range(5), 500)
    below = [one for one in sent if one.offset < committed[one.partition]]
    later = [one for one in sent if one.offset >= committed[one.partition]]
    keys = {one.key for one in sent if one.key is not None}
    handled = {key for key in keys if chance.random() < 0.8}
    recent = {one.key for one in below if one.offset >= settled.get(one.partition, 0)}
    coming = {one.key for one in later}
    wanted = {
        (one.partition, one.offset) for one in below if one.key not in handled | recent | coming
    }
    found = examine(spark, below, handled, later=later, settled=settled)
    told = {
        (one.partition, one.offset)
        for one in below
        for item in found.ranges
        if item.partition == one.partition and item.first <= one.offset <= item.last
    }
    assert told == wanted
    assert len(wanted) == found.counts.unhandled > 20
    assert sum(item.messages for item in found.ranges) == len(wanted)
    gone = [one for one in below if one.key not in handled]
    assert found.counts.coming_again == sum(one.key in coming for one in gone)
    assert found.counts.not_settled == sum(one.key in recent - coming for one in gone)


@pytest.mark.parametrize("kind", ["BIGINT", "TEXT"])
def test_the_table_is_read_as_a_rebuild_reads_it(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    world.run_sql(
        url, f"CREATE TABLE done (id {kind})", "INSERT INTO done VALUES (7), (7), (NULL), (12)"
    )
    where = Consumed(database="shop", table="done", column="id")
    sources = {"shop": world.make_source(url)}
    keys = read_consumed(spark, sources, where, "orders", tmp_path / "a")
    assert sorted(bytes(row["key"]) for row in keys.collect()) == [b"12", b"7"]
    wrong = Consumed(database="shop", table="done", column="idd")
    with pytest.raises(ConfigurationError, match="idd") as told:
        read_consumed(spark, sources, wrong, "orders", tmp_path / "b")
    assert told.value.subject == "streams.orders.source.consumed.column"
    gone = Consumed(database="shop", table="gone", column="id")
    with pytest.raises((ConfigurationError, SourceError), match="gone"):
        read_consumed(spark, sources, gone, "orders", tmp_path / "c")
