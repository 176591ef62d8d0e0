"""Audits in Spark: what was consumed, and holes in a sequence."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from backlogctl.spark_backfill.audits.sequence import SequenceKey, audit_sequence
from backlogctl.spark_backfill.existing.messages import ORIGINALS_SCHEMA
from backlogctl.values import OffsetRange
from backlogctl_delivery import stamps
from backlogctl_delivery.sequenced import sequence
from backlogctl_delivery.sequenced.sequence import (
    Stamp,
    UnreadableStamp,
    hash_topic,
    read_stamp,
    write_stamp,
)
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
    return world.make_frame(spark, rows, ORIGINALS_SCHEMA)


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
    keys = world.make_frame(spark, [(key,) for key in handled], "key binary")
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
    """Offsets without a message between two do not part them; a handled one does. An empty key is
    one."""
    sent = [Sent(0, at, b"%d" % at) for at in (0, 1, 2, 5, 6, 7, 9)]
    sent += [Sent(1, 3, b""), Sent(1, 4, None)]
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


def test_an_id_that_was_passed_on_hides_no_other_message(spark: SparkSession) -> None:
    """Of one copy two messages were made, with its headers: both were never handled."""
    sent = [Sent(0, 0, b"a"), copy(0, 1, b"b", (7, 7)), copy(0, 2, b"c", (7, 7))]
    found = examine(spark, sent, [b"a"])
    assert places(found) == ["0:1-2"]
    assert found.counts.unhandled == 2


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


def test_random_logs_have_what_an_oracle_says(spark: SparkSession) -> None:
    """What has no identity is counted and never judged; a tombstone does not bring a message again.
    Nor is an older message judged whose identity is on its way once more, or is not settled. Where
    the table has a key that repeats, that is told."""
    chance = random.Random(54)
    sent = [
        Sent(
            p,
            at,
            None if chance.random() < 0.05 else b"%d" % chance.randrange(3000),
            value=None if chance.random() < 0.1 else b"v",
        )
        for p in range(5)
        for at in range(600)
        if chance.random() < 0.9
    ]
    settled, committed = {p: 300 + 20 * p for p in range(4)}, dict.fromkeys(range(5), 500)
    below = [one for one in sent if one.offset < committed[one.partition]]
    later = [one for one in sent if one.offset >= committed[one.partition]]
    known = [one for one in below if one.key is not None and one.value is not None]
    keys = sorted({one.key for one in sent if one.key is not None})
    handled = {key for key in keys if chance.random() < 0.7}
    recent = {one.key for one in known if one.offset >= settled.get(one.partition, 0)}
    coming = {one.key for one in later if one.key is not None and one.value is not None}
    wanted = {
        (one.partition, one.offset) for one in known if one.key not in handled | recent | coming
    }
    found = examine(spark, below, handled, later=later, settled=settled)
    told = {
        (one.partition, one.offset)
        for one in below
        for item in found.ranges
        if item.partition == one.partition and item.first <= one.offset <= item.last
    }
    assert told == wanted
    counts = found.counts
    assert len(wanted) == counts.unhandled > 20
    assert sum(item.messages for item in found.ranges) == len(wanted)
    gone = [one for one in known if one.key not in handled]
    assert counts.coming_again == sum(one.key in coming for one in gone) > 20
    assert counts.not_settled == sum(one.key in recent - coming for one in gone) > 20
    assert counts.tombstones == sum(one.value is None for one in below) > 20
    counted = Counter(one.key for one in known)
    there = [one.key for one in known if one.key in handled]
    assert counts.handled == len(there)
    assert counts.repeated == sum(counted[key] > 1 for key in there) > 20
    assert counts.without_identity == len(below) - len(known) > counts.tombstones


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


Headers = list[tuple[str, bytes | None]]


def make_reports(spark: SparkSession, rows: Iterable[tuple[int, int, Headers]]) -> DataFrame:
    """Messages of (partition, offset, headers)."""
    made = [
        (p, offset, NOW_MS + offset, 0, None, b"v", [tuple(header) for header in headers])
        for p, offset, headers in rows
    ]
    return world.make_frame(spark, made, ORIGINALS_SCHEMA)


def stamped(producer: str, epoch: int, number: int, *, of: int = 0, **more: Any) -> Headers:
    return [*write_stamp(Stamp(producer, epoch, hash_topic("orders"), of, number, **more))]


def list_holes(found: Any) -> list[tuple[SequenceKey, int, int]]:
    return [(hole.id, hole.first, hole.last) for hole in found.holes]


def test_a_hole_has_its_neighbours_and_repeats_are_none(spark: SparkSession) -> None:
    numbers = [0, 1, 1, 4, 3, 9]
    rows = [(0, 10 + at, stamped("shop", 7, n)) for at, n in enumerate(numbers)]
    found = audit_sequence(make_reports(spark, rows), "orders", whole=[])
    chain = SequenceKey(0, "shop", 7)
    assert list_holes(found) == [(chain, 2, 2), (chain, 5, 8)]
    first, second = found.holes
    assert (first.before.offset, first.after.offset) == (11, 14)  # type: ignore[union-attr]
    assert (second.before.offset, second.after.offset) == (13, 15)  # type: ignore[union-attr]
    (only,) = found.chains
    assert (only.messages, only.repeats, only.first, only.last) == (6, 1, 0, 9)
    assert (found.heads, found.is_whole, found.counts.stamped) == (0, True, 6)


def test_a_copy_in_another_partition_fills_its_own_place_and_none_there(
    spark: SparkSession,
) -> None:
    """Its offset says nothing of where the hole is: the neighbours are the producer's own."""
    ours: Headers = [(stamps.RECOVERY_ID, b"r-1")]
    rows = [(p, 10 + n, stamped("shop", 1, n, of=p)) for p in (0, 1) for n in (0, 1, 6)]
    rows.append((1, 900, [*stamped("shop", 1, 3, of=0), *ours]))
    found = audit_sequence(make_reports(spark, rows), "orders", whole=[0, 1])
    assert list_holes(found) == [
        (SequenceKey(0, "shop", 1), 2, 2),
        (SequenceKey(0, "shop", 1), 4, 5),
        (SequenceKey(1, "shop", 1), 2, 5),
    ]
    places = [(hole.before.offset, hole.after.offset) for hole in found.holes]  # type: ignore[union-attr]
    assert places == [(11, 16)] * 3
    assert (found.counts.put_back, found.counts.misplaced) == (1, 0)


def test_what_lies_elsewhere_by_itself_is_counted(spark: SparkSession) -> None:
    rows = [(0, n, stamped("shop", 1, n)) for n in (0, 2)]
    rows += [(1, 0, stamped("shop", 1, 1)), (1, 1, stamped("shop", 1, 90, is_last=True))]
    found = audit_sequence(make_reports(spark, rows), "orders", whole=[0, 1])
    assert (found.holes, found.counts.misplaced) == ((), 2)
    assert [(one.id.partition, one.last, one.is_closed) for one in found.chains] == [(0, 2, False)]


def test_a_stamp_of_another_topic_fills_no_place_and_makes_no_hole(spark: SparkSession) -> None:
    """A consumer passes on the headers of every third message that it handles."""
    foreign = hash_topic("payments")
    passed_on = [Stamp("till", 1, foreign, 0, n) for n in range(2, 90, 3)]
    passed_on.append(Stamp("shop", 1, foreign, 0, 2, ((0, 1),)))
    rows = [(0, n, stamped("shop", 1, n)) for n in (0, 1, 3)]
    rows += [(0, 10 + n, [*write_stamp(stamp)]) for n, stamp in enumerate(passed_on)]
    found = audit_sequence(make_reports(spark, rows), "orders", whole=[0])
    assert list_holes(found) == [(SequenceKey(0, "shop", 1), 2, 2)]
    assert [chain.id.producer for chain in found.chains] == ["shop"]
    counts = found.counts
    assert (counts.stamped, counts.foreign, counts.unreadable, counts.misplaced) == (
        3,
        len(passed_on),
        0,
        0,
    )
    assert (found.reported, found.doubtful) == (0, {})


HOSTILE: list[Headers] = [
    [(sequence.SEQUENCE, b"shop:1:0a1b2c3d:0:two")],
    [(sequence.SEQUENCE, b"shop:1:0a1b2c3d:0:-2")],
    [(sequence.SEQUENCE, b"shop:1:0a1b2c3d:0:" + b"9" * 19)],
    [(sequence.SEQUENCE, b"shop:1:0a1b2c3d:0:" + b"9" * 10_000_000)],
    [(sequence.SEQUENCE, b"shop:1:0a1b2c3d:2147483648:2")],
    [(sequence.SEQUENCE, b"shop:1:0a1b2c3d:2")],
    [(sequence.SEQUENCE, b"\xff\xfe")],
    [(sequence.SEQUENCE, b"")],
    [(sequence.SEQUENCE, None)],
    [(sequence.SEQUENCE, b"shop:1:0a1b2c3d:0:2\n")],
    [(sequence.SEQUENCE, b"shop:1:0a1b2c3d:0:02")],
    [(sequence.SEQUENCE, "shop:1:0a1b2c3d:0:٣".encode())],
    [(sequence.SEQUENCE, b"shop:1:0a1b2c3d:0:2"), (sequence.SEQUENCE, b"shop:1:0a1b2c3d:0:3")],
]


def test_what_is_illegible_is_counted_and_named_never_a_crash(spark: SparkSession) -> None:
    rows = [(0, 0, stamped("shop", 1, 0))]
    rows += [(0, 1 + at, headers) for at, headers in enumerate(HOSTILE)]
    rows += [(0, 50, stamped("shop", 1, 1)), (1, 0, [("other", b"x")]), (1, 1, [])]
    found = audit_sequence(make_reports(spark, rows), "orders", whole=[0])
    assert found.counts.unreadable == len(HOSTILE)
    assert (found.counts.read, found.counts.stamped) == (len(rows), 2)
    assert found.holes == ()
    assert found.doubtful == {0: (1, len(HOSTILE))}
    for headers in HOSTILE:
        with pytest.raises(UnreadableStamp):
            read_stamp(headers)


ILLEGIBLE = (b"5-", b"3-1", b"x", b"9" * 20_000, b"7-90", None)


def test_an_illegible_report_hides_nothing(spark: SparkSession) -> None:
    rows: list[tuple[int, int, Headers]] = []
    for p, bad in enumerate(ILLEGIBLE):
        rows.append((p, 0, stamped("shop", 1, 0, of=p)))
        rows.append((p, 1, [*stamped("shop", 1, 8, of=p), (sequence.SKIPPED, bad)]))
    found = audit_sequence(make_reports(spark, rows), "orders", whole=[0])
    partitions = range(len(ILLEGIBLE))
    assert list_holes(found) == [(SequenceKey(p, "shop", 1), 1, 7) for p in partitions]
    assert found.doubtful == dict.fromkeys(partitions, (1, 1))


def test_an_empty_topic_has_nothing(spark: SparkSession) -> None:
    found = audit_sequence(make_reports(spark, []), "orders", whole=[0])
    assert (found.counts.read, found.chains, found.holes) == (0, (), ())
    nothing = examine(spark, [], [])
    assert (nothing.counts.messages, nothing.ranges, nothing.oldest_ms) == (0, (), None)


Reports = dict[SequenceKey, set[int]]


def judge(
    rows: list[tuple[int, int, Headers]], whole: set[int]
) -> tuple[list[tuple[SequenceKey, int, int]], Reports, Reports]:
    """The same by sets of numbers: the holes, what each chain has itself, and what was reported."""
    own: Reports = {}
    known: Reports = {}
    reported: Reports = {}
    for partition, _, headers in rows:
        stamp = read_stamp(headers)
        if stamp is None:
            continue
        chain = SequenceKey(stamp.partition, stamp.producer, stamp.epoch)
        is_copy = any(name == stamps.RECOVERY_ID for name, _ in headers)
        if stamp.partition == partition and not is_copy:
            own.setdefault(chain, set()).add(stamp.sequence)
        known.setdefault(chain, set()).add(stamp.sequence)
        for first, last in stamp.skipped:
            known[chain].update(range(first, last + 1))
            reported.setdefault(chain, set()).update(range(first, last + 1))
    holes = []
    for chain, numbers in sorted(own.items()):
        first = 0 if chain.partition in whole else min(numbers)
        run: list[int] = []
        for number in range(first, max(numbers) + 2):
            missing = number < max(numbers) and number not in known[chain]
            if missing:
                run.append(number)
            elif run:
                holes.append((chain, run[0], run[-1]))
                run = []
    return holes, own, reported


def test_random_chains_have_the_holes_that_are_in_them(spark: SparkSession) -> None:
    """A thousand chains at once: lost, repeated, late, reported, put back, misplaced."""
    chance = random.Random(20261124)
    rows: list[tuple[int, int, Headers]] = []
    misplaced = 0
    for number in range(1000):
        partition, producer, epoch = number % 7, f"p{number % 50}", number // 50
        sent: list[tuple[int, Headers]] = []
        reported: list[int] = []
        begin = chance.choice([0, 0, 5])
        for at in range(begin, begin + chance.randint(1, 25)):
            fate = chance.random()
            skipped = tuple((one, one) for one in reported) if chance.random() < 0.5 else ()
            reported = [] if skipped else reported
            if fate < 0.05:
                continue
            if fate < 0.1:
                reported.append(at)
                continue
            headers = stamped(producer, epoch, at, of=partition, skipped=skipped)
            place = partition if fate > 0.18 else chance.randrange(7)
            if fate < 0.15:
                headers = [*headers, (stamps.RECOVERY_ID, b"r-1")]
            else:
                misplaced += place != partition
            sent += [(place, headers)] * (2 if fate > 0.95 else 1)
        if chance.random() < 0.5:
            chance.shuffle(sent)
        rows += [(place, len(rows) + n, headers) for n, (place, headers) in enumerate(sent)]
    whole = {0, 2, 4}
    wanted, own, skips = judge(rows, whole)
    assert len(wanted) > 100
    found = audit_sequence(make_reports(spark, rows).repartition(5), "orders", whole)
    assert list_holes(found) == wanted
    assert found.counts.misplaced == misplaced > 100
    ends = [(chain, min(numbers), max(numbers)) for chain, numbers in sorted(own.items())]
    assert [(one.id, one.first, one.last) for one in found.chains] == ends
    begun = {chain for chain, first, _ in ends if first == 0 or chain.partition in whole}
    assert found.heads == len(ends) - len(begun) > 100
    assert found.reported == sum(map(len, skips.values())) > 100
    copies = [row for row in rows if (stamps.RECOVERY_ID, b"r-1") in row[2]]
    assert found.counts.put_back == len(copies) > 100
    first = next(hole for hole in found.holes if hole.first == 0)
    assert first.before is None


def test_a_healthy_topic_cut_anywhere_shows_nothing(spark: SparkSession) -> None:
    """Two hundred cuts: restarts, several producers, retries that overtake, and repeats are in it."""
    chance = random.Random(7)
    rows: list[tuple[int, int, Headers]] = []
    for partition in range(200):
        messages: list[Headers] = []
        for epoch in (1, 2):
            sent = [stamped(name, epoch, n, of=partition) for n in range(20) for name in ("a", "b")]
            for at in range(0, len(sent), 4):
                piece = [*sent[at : at + 4], chance.choice(sent[at : at + 4])]
                chance.shuffle(piece)
                messages += piece
        cut = chance.randint(1, len(messages) - 1)
        rows += [(partition, n, headers) for n, headers in enumerate(messages) if n >= cut]
    found = audit_sequence(make_reports(spark, rows), "orders", whole=[])
    assert found.holes, "a cut between two that were overtaken"
    # Timestamps are offsets here, in ms, and a piece has five.
    assert [hole for hole in found.holes if not found.is_at_head(hole, 5)] == []
    assert not found.is_at_head(found.holes[0], 0)
    assert found.counts.unreadable == 0
