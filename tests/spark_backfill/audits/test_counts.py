"""Counts by event time: an oracle in Python counts the same of random rows and messages."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.spark_backfill.audits.counts import (
    CountsAudit,
    Stretch,
    as_tier,
    choose_width,
    count_tiers,
    find_heads,
    list_stretches,
)
from backlogctl.spark_backfill.existing.messages import ORIGINALS_SCHEMA
from backlogctl_delivery import stamps
from tests.spark_backfill.world import make_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGIN = datetime(2026, 11, 20, 12, 3, 30, tzinfo=UTC)
BEGIN_MS = round(BEGIN.timestamp() * 1000)
MINUTE = timedelta(minutes=1)
MINUTE_MS = 60_000

RowTier = list[tuple[bytes | None, int | None]]
MessageTier = list[tuple[bytes | None, int | None, bool, bool]]


@dataclass
class World:
    """Three tiers; times in ms."""

    rows: RowTier
    messages: MessageTier
    consumed: list[bytes] | None
    archived: MessageTier = field(default_factory=list)

    def count(
        self, spark: SparkSession, minutes: int = 10, width: timedelta = MINUTE
    ) -> CountsAudit:
        frame = "identity binary, at_ms long"
        consumed = self.consumed
        message = f"{frame}, is_put_back boolean, is_read boolean"
        return count_tiers(
            make_frame(spark, self.rows, frame),
            make_frame(spark, self.messages, message),
            None
            if consumed is None
            else make_frame(spark, [(one,) for one in consumed], "identity binary"),
            begin=BEGIN,
            end=BEGIN + minutes * MINUTE,
            width=width,
            archived=make_frame(spark, self.archived, message) if self.archived else None,
        )


def make_world(count: int, **changes: Any) -> World:
    """A row every ten seconds, its message 50 ms later, read and handled."""
    at = [BEGIN_MS + 10_000 * n for n in range(count)]
    keys = [str(n).encode() for n in range(count)]
    return World(
        rows=list(zip(keys, at, strict=True)),
        messages=[(k, t + 50, False, True) for k, t in zip(keys, at, strict=True)],
        consumed=changes.get("consumed", keys),
    )


def test_idle_windows_hold_zeros_and_no_windows_none(spark: SparkSession) -> None:
    empty = World([], [], [])
    found = empty.count(spark)
    assert len(found.windows) == 11
    assert {(w.rows, w.messages, w.handled, w.not_handled) for w in found.windows} == {(0, 0, 0, 0)}
    assert empty.count(spark, minutes=0).windows == ()
    assert found.pairs == ()
    world = make_world(60)
    del world.rows[12:40], world.messages[12:40]
    world.consumed = None
    found = world.count(spark)
    # Gone are 12:05:30 up to 12:10:10.
    assert [w.rows for w in found.windows] == [3, 6, 3, 0, 0, 0, 0, 5, 6, 6, 3]
    assert {(w.handled, w.not_handled) for w in found.windows} == {(None, None)}
    # 12:03:30 to 12:13:30 by whole minutes: the first and the last have half of one.
    assert [window.start for window in found.windows[:2]] == [BEGIN, BEGIN + MINUTE / 2]
    assert found.windows[-1].end == BEGIN + 10 * MINUTE


def test_what_cannot_be_placed_is_counted_apart(spark: SparkSession) -> None:
    world = make_world(6)
    world.rows += [(b"undated", None), (b"here", None), (None, BEGIN_MS), (None, None)]
    world.messages += [
        (b"here", BEGIN_MS, False, True),
        (None, BEGIN_MS, False, True),
        (None, None, True, False),
        (b"stranger", BEGIN_MS + MINUTE_MS, False, True),
        (b"timeless", None, False, True),
        (b"too early", BEGIN_MS - 1, False, True),
        (b"too late", BEGIN_MS + 10 * MINUTE_MS, False, True),
    ]
    found = world.count(spark)
    assert sum(window.rows for window in found.windows) == 6
    assert sum(window.messages for window in found.windows) == 6
    assert (found.unplaced_rows, found.without_identity, found.unknown_rows) == (3, 2, 1)
    assert [window.messages_without_row for window in found.windows[:3]] == [0, 1, 0]


def test_windows_that_follow_each_other_are_one_stretch(spark: SparkSession) -> None:
    world = make_world(60, consumed=None)
    del world.messages[50:52], world.messages[5:20]
    assert list_stretches(world.count(spark).windows, "rows_without_message") == [
        Stretch(BEGIN + 0.5 * MINUTE, BEGIN + 3.5 * MINUTE, 15),
        Stretch(BEGIN + 7.5 * MINUTE, BEGIN + 9.5 * MINUTE, 2),
    ]


def test_what_is_only_in_an_archive_waits_there(spark: SparkSession) -> None:
    """What was put back, or is handled, does not; and what is nowhere is missing all the same."""
    world = make_world(60, consumed=[str(n).encode() for n in (*range(12), *range(18, 60))])
    world.archived = [
        (key, at, ours, False) for key, at, ours, _ in world.messages[6:24] if key != b"14"
    ]
    put_back = [(b"15", world.rows[15][1], True, False)]
    world.messages = [*world.messages[:6], *put_back, *world.messages[24:]]
    found = world.count(spark)
    assert [window.archived for window in found.windows[:4]] == [0, 0, 2, 2]
    assert sum(window.messages for window in found.windows) == 43
    (only,) = list_stretches(found.windows, "rows_without_message")
    assert only == Stretch(BEGIN + 1.5 * MINUTE, BEGIN + 2.5 * MINUTE, 1)
    assert (found.repeats, found.put_back, found.unknown_rows) == (0, 1, 0)


def judge(world: World, minutes: int, width_ms: int) -> dict[int, Counter[str]]:
    """The same with dictionaries."""
    last = BEGIN_MS + minutes * MINUTE_MS
    times: dict[bytes, int | None] = {}
    for key, at in world.rows:
        if key is not None:
            known = times.get(key)
            times[key] = at if known is None else known if at is None else max(at, known)
    sent: dict[bytes, list[tuple[int | None, bool, bool]]] = {}
    for key, at, ours, read in world.messages:
        if key is not None:
            sent.setdefault(key, []).append((at, ours, read))
    handled = set(world.consumed or ())
    counts: dict[int, Counter[str]] = {}
    for key in times.keys() | sent.keys():
        own = [at for at, _, _ in sent.get(key, []) if at is not None]
        at = times[key] if key in times else min(own, default=None)
        if at is None or not BEGIN_MS <= at < last:
            continue
        count = counts.setdefault(at // width_ms, Counter())
        row, message = key in times, key in sent
        count["rows"] += row
        count["messages"] += row and message
        count["handled"] += row and key in handled
        count["rows_without_message"] += row and not message and key not in handled
        count["messages_without_row"] += message and not row
        is_read = any(read for _, _, read in sent.get(key, []))
        count["not_handled"] += row and is_read and key not in handled
        count["repeats"] += max(0, len(sent.get(key, [])) - 1)
        count["put_back"] += sum(ours for _, ours, _ in sent.get(key, []))
    return counts


@pytest.mark.parametrize("width", [MINUTE, timedelta(minutes=15)])
def test_random_tiers_have_the_counts_that_are_in_them(
    spark: SparkSession, width: timedelta
) -> None:
    chance = random.Random(20261124)
    world = World([], [], [])
    for number in range(20_000):
        key = str(number).encode()
        at = BEGIN_MS + chance.randint(-200_000, 3_800_000)
        if chance.random() < 0.95:
            world.rows.append((key, None if chance.random() < 0.01 else at))
            if chance.random() < 0.02:
                world.rows.append((key, at - chance.randint(0, 600_000)))
        if chance.random() < 0.95:
            for _ in range(chance.choice([1, 1, 1, 2, 3])):
                late = chance.choice([5, 50, 400_000, 5_000_000])
                told = None if chance.random() < 0.01 else at + late
                world.messages.append((key, told, chance.random() < 0.1, chance.random() < 0.8))
        if world.consumed is not None and chance.random() < 0.9:
            world.consumed += [key] * chance.choice([1, 2])
    wanted = judge(world, 60, width // timedelta(milliseconds=1))
    found = world.count(spark, 60, width)
    names = ["rows", "messages", "handled", "not_handled"]
    names += ["rows_without_message", "messages_without_row"]
    assert len(found.windows) == len(wanted) == (61 if width == MINUTE else 5)
    for window, (_, counts) in zip(found.windows, sorted(wanted.items()), strict=True):
        assert {name: getattr(window, name) for name in names} == {n: counts[n] for n in names}
    assert found.repeats == sum(count["repeats"] for count in wanted.values())
    assert found.put_back == sum(count["put_back"] for count in wanted.values())
    assert min(sum(count[name] for count in wanted.values()) for name in names) > 50


def test_a_healthy_stream_cut_anywhere_shows_nothing(spark: SparkSession) -> None:
    """Messages are late, come twice, and the group is anywhere."""
    chance = random.Random(5)
    complete = make_world(300)
    for _ in range(2):
        world = World(list(complete.rows), list(complete.messages), None)
        read = chance.randint(0, 300)
        world.messages = [
            (k, (t or 0) + chance.randint(0, 400_000), chance.random() < 0.1, n < read)
            for n, (k, t, _, _) in enumerate(world.messages)
        ]
        world.messages += chance.sample(world.messages, 20)
        world.consumed = [k for k, _ in world.rows[: chance.randint(read, 300)] if k is not None]
        found = world.count(spark, chance.randint(1, 40), choose_width(BEGIN, BEGIN + 9 * MINUTE))
        for name in ("rows_without_message", "messages_without_row", "not_handled"):
            assert list_stretches(found.windows, name) == []


@pytest.mark.parametrize(
    ("span", "width"),
    [
        (timedelta(0), MINUTE),
        (200 * MINUTE, MINUTE),
        (201 * MINUTE, timedelta(minutes=5)),
        (timedelta(hours=20), timedelta(minutes=15)),
        (timedelta(days=3), timedelta(hours=1)),
        (timedelta(days=200), timedelta(days=1)),
        (timedelta(days=3000), timedelta(days=15)),
    ],
)
def test_the_width_makes_about_200_windows(span: timedelta, width: timedelta) -> None:
    assert choose_width(BEGIN, BEGIN + span) == width
    assert span / width <= 200


def make_message(
    offset: int, at: int, headers: dict[str, bytes] | None = None, partition: int = 0, kind: int = 0
) -> tuple[Any, ...]:
    return (partition, offset, at, kind, b"key", b"v", list((headers or {}).items()))


def test_the_head_is_the_middle_one_of_the_first_few(spark: SparkSession) -> None:
    ours = {stamps.RECOVERY_ID: b"r-1"}
    messages = [
        make_message(4, 1, ours),  # of a recovery
        make_message(5, 2),  # came late
        *(make_message(offset, 1000 + offset) for offset in range(6, 30)),
        make_message(0, 77, partition=1),
        make_message(0, -1, partition=2, kind=-1),  # has no time
    ]
    frame = make_frame(spark, messages, ORIGINALS_SCHEMA).repartition(3)
    assert find_heads(frame) == {0: 1007, 1: 77}


def test_a_message_is_known_by_its_rule_and_dated_by_its_original(spark: SparkSession) -> None:
    stamped = {
        stamps.RECOVERY_ID: b"r-1",
        stamps.ORIGINAL_TIME: b"2026-11-20T12:00:00.000000Z",
        "order": b"9",
    }
    frame = make_frame(spark, [make_message(0, 1, stamped), make_message(1, 2)], ORIGINALS_SCHEMA)
    is_read = F.col("source_offset") < 1
    found = {bytes(r[0]) if r[0] else None: tuple(r)[1:] for r in
             as_tier(frame, "order", is_read).collect()}  # fmt: skip
    assert found == {b"9": (BEGIN_MS - 210_000, True, True), None: (2, False, False)}
    assert {bytes(row[0]) for row in as_tier(frame, None, is_read).collect()} == {b"key"}
