"""What the sequences of a topic show: an oracle in Python says the same of random chains."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

from backlogctl.spark_backfill.audits.sequence import SequenceKey, audit_sequence
from backlogctl.spark_backfill.existing.messages import ORIGINALS_SCHEMA
from backlogctl_delivery import stamps
from backlogctl_delivery.sequenced import sequence
from backlogctl_delivery.sequenced.sequence import Stamp, UnreadableStamp, read_stamp, write_stamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Headers = list[tuple[str, bytes | None]]
NOW_MS = 1_790_000_000_000


def make_frame(spark: SparkSession, rows: Iterable[tuple[int, int, Headers]]) -> DataFrame:
    """Messages of (partition, offset, headers)."""
    made = [
        (p, offset, NOW_MS + offset, 0, None, b"v", [tuple(header) for header in headers])
        for p, offset, headers in rows
    ]
    return spark.createDataFrame(made, ORIGINALS_SCHEMA)


def stamped(producer: str, epoch: int, number: int, *, of: int = 0, **more: Any) -> Headers:
    return [*write_stamp(Stamp(producer, epoch, of, number, **more))]


def list_holes(found: Any) -> list[tuple[SequenceKey, int, int]]:
    return [(hole.id, hole.first, hole.last) for hole in found.holes]


def test_a_hole_has_its_neighbours_and_repeats_are_none(spark: SparkSession) -> None:
    numbers = [0, 1, 1, 4, 3, 9]
    rows = [(0, 10 + at, stamped("shop", 7, n)) for at, n in enumerate(numbers)]
    found = audit_sequence(make_frame(spark, rows), whole=[])
    chain = SequenceKey(0, "shop", 7)
    assert list_holes(found) == [(chain, 2, 2), (chain, 5, 8)]
    first, second = found.holes
    assert (first.before.offset, first.after.offset) == (11, 14)  # type: ignore[union-attr]
    assert (second.before.offset, second.after.offset) == (13, 15)  # type: ignore[union-attr]
    (only,) = found.chains
    assert (only.messages, only.repeats, only.first, only.last) == (6, 1, 0, 9)
    assert (found.heads, found.is_whole, found.counts.stamped) == (0, True, 6)


def test_the_head_is_a_hole_only_where_it_was_read(spark: SparkSession) -> None:
    rows = [(p, 5, stamped("shop", 1, 3, of=p)) for p in (0, 1)]
    found = audit_sequence(make_frame(spark, rows), whole=[1])
    assert list_holes(found) == [(SequenceKey(1, "shop", 1), 0, 2)]
    assert found.holes[0].before is None
    assert found.heads == 1


def test_what_the_producer_reported_is_no_loss(spark: SparkSession) -> None:
    rows = [
        (0, 0, stamped("shop", 1, 0)),
        (0, 1, stamped("shop", 1, 9, skipped=((1, 3), (5, 5)))),
        (0, 2, stamped("shop", 2, 4)),  # another epoch's reports do not count
    ]
    found = audit_sequence(make_frame(spark, rows), whole=[0])
    assert list_holes(found) == [
        (SequenceKey(0, "shop", 1), 4, 4),
        (SequenceKey(0, "shop", 1), 6, 8),
        (SequenceKey(0, "shop", 2), 0, 3),
    ]
    assert found.reported == 4


def test_what_a_recovery_put_back_fills_its_place_and_makes_none(spark: SparkSession) -> None:
    ours: Headers = [(stamps.RECOVERY_ID, b"r-20261124-0001")]
    rows = [
        (0, 0, stamped("shop", 1, 0)),
        (0, 1, stamped("shop", 1, 4)),
        (0, 2, [*stamped("shop", 1, 2), *ours]),
        (0, 3, [*stamped("shop", 1, 90), *ours]),  # of a later one that expired
        (0, 4, [*stamped("gone", 1, 90), *ours]),
    ]
    found = audit_sequence(make_frame(spark, rows), whole=[0])
    chain = SequenceKey(0, "shop", 1)
    assert list_holes(found) == [(chain, 1, 1), (chain, 3, 3)]
    assert found.counts.put_back == 3
    assert [(one.id, one.last) for one in found.chains] == [(chain, 4)]


def test_a_copy_in_another_partition_fills_its_own_place_and_none_there(
    spark: SparkSession,
) -> None:
    """Its offset says nothing of where the hole is: the neighbours are the producer's own."""
    ours: Headers = [(stamps.RECOVERY_ID, b"r-1")]
    rows = [(p, 10 + n, stamped("shop", 1, n, of=p)) for p in (0, 1) for n in (0, 1, 6)]
    rows.append((1, 900, [*stamped("shop", 1, 3, of=0), *ours]))
    found = audit_sequence(make_frame(spark, rows), whole=[0, 1])
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
    found = audit_sequence(make_frame(spark, rows), whole=[0, 1])
    assert (found.holes, found.counts.misplaced) == ((), 2)
    assert [(one.id.partition, one.last, one.is_closed) for one in found.chains] == [(0, 2, False)]


HOSTILE: list[Headers] = [
    [(sequence.SEQUENCE, b"shop:1:0:two")],
    [(sequence.SEQUENCE, b"shop:1:0:-2")],
    [(sequence.SEQUENCE, b"shop:1:0:" + b"9" * 19)],
    [(sequence.SEQUENCE, b"shop:1:0:" + b"9" * 10_000_000)],
    [(sequence.SEQUENCE, b"shop:1:2147483648:2")],
    [(sequence.SEQUENCE, b"shop:1:2")],
    [(sequence.SEQUENCE, b"\xff\xfe")],
    [(sequence.SEQUENCE, b"")],
    [(sequence.SEQUENCE, None)],
    [(sequence.SEQUENCE, b"shop:1:0:2\n")],
    [(sequence.SEQUENCE, b"shop:1:0:02")],
    [(sequence.SEQUENCE, "shop:1:0:٣".encode())],
    [(sequence.SEQUENCE, b"shop:1:0:2"), (sequence.SEQUENCE, b"shop:1:0:3")],
]


def test_what_is_illegible_is_counted_and_named_never_a_crash(spark: SparkSession) -> None:
    rows = [(0, 0, stamped("shop", 1, 0))]
    rows += [(0, 1 + at, headers) for at, headers in enumerate(HOSTILE)]
    rows += [(0, 50, stamped("shop", 1, 1)), (1, 0, [("other", b"x")]), (1, 1, [])]
    found = audit_sequence(make_frame(spark, rows), whole=[0])
    assert found.counts.unreadable == len(HOSTILE)
    assert (found.counts.read, found.counts.stamped) == (len(rows), 2)
    assert found.holes == ()
    assert found.doubtful == {0: (1, len(HOSTILE))}
    for headers in HOSTILE:
        with pytest.raises(UnreadableStamp):
            read_stamp(headers)


@pytest.mark.parametrize("bad", [b"5-", b"3-1", b"x", b"9" * 20_000, b"7-90", None])
def test_an_illegible_report_hides_nothing(spark: SparkSession, bad: bytes | None) -> None:
    rows = [
        (0, 0, stamped("shop", 1, 0)),
        (0, 1, [*stamped("shop", 1, 8), (sequence.SKIPPED, bad)]),
    ]
    found = audit_sequence(make_frame(spark, rows), whole=[0])
    assert list_holes(found) == [(SequenceKey(0, "shop", 1), 1, 7)]
    assert found.doubtful == {0: (1, 1)}


def test_an_empty_topic_has_nothing(spark: SparkSession) -> None:
    found = audit_sequence(make_frame(spark, []), whole=[0])
    assert (found.counts.read, found.chains, found.holes) == (0, (), ())


def judge(
    rows: list[tuple[int, int, Headers]], whole: set[int]
) -> list[tuple[SequenceKey, int, int]]:
    """The same by sets of numbers."""
    own: dict[SequenceKey, set[int]] = {}
    known: dict[SequenceKey, set[int]] = {}
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
    return holes


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
    wanted = judge(rows, whole)
    assert len(wanted) > 100
    found = audit_sequence(make_frame(spark, rows).repartition(5), whole)
    assert list_holes(found) == wanted
    assert found.counts.misplaced == misplaced > 100


def test_a_healthy_topic_cut_anywhere_shows_nothing(spark: SparkSession) -> None:
    """A thousand cuts: restarts, several producers, retries that overtake, and repeats are in it."""
    chance = random.Random(7)
    rows: list[tuple[int, int, Headers]] = []
    for partition in range(1000):
        messages: list[Headers] = []
        for epoch in (1, 2):
            sent = [stamped(name, epoch, n, of=partition) for n in range(20) for name in ("a", "b")]
            for at in range(0, len(sent), 4):
                piece = [*sent[at : at + 4], chance.choice(sent[at : at + 4])]
                chance.shuffle(piece)
                messages += piece
        cut = chance.randint(1, len(messages) - 1)
        rows += [(partition, n, headers) for n, headers in enumerate(messages) if n >= cut]
    found = audit_sequence(make_frame(spark, rows), whole=[])
    assert found.holes, "a cut between two that were overtaken"
    # Timestamps are offsets here, in ms, and a piece has five.
    assert [hole for hole in found.holes if not found.is_at_head(hole, 5)] == []
    assert not found.is_at_head(found.holes[0], 0)
    assert found.counts.unreadable == 0
