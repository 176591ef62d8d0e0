"""Which holes are told, from round to round; nothing here reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backlogctl_delivery.sequenced.checker import Hole
from replay.console.sequences.settling import Round, Settled, Settling

HOLE = Hole("orders", 0, "shop", 1, 3, 9)
GRACE, KEEP = 300.0, 3_600.0


def make_round(now: float, **changed: object) -> Round:
    """Partition 0 is read up to now, and was for long."""
    return replace(Round(now, {0: now}, {0}, ()), **changed)  # type: ignore[arg-type]


@pytest.fixture
def settling() -> Settling:
    return Settling(GRACE, KEEP)


def told(seen: Settled) -> tuple[int, int, int]:
    return seen.lost, seen.suspect, seen.waiting


def test_a_hole_is_told_after_the_grace_and_no_sooner(settling: Settling) -> None:
    assert told(settling.update([HOLE], make_round(1_000))) == (0, 0, 7)
    assert told(settling.update([HOLE], make_round(1_299))) == (0, 0, 7)
    seen = settling.update([HOLE], make_round(1_300))
    assert told(seen) == (7, 0, 0)
    assert seen.holes == (HOLE,)


def test_what_comes_late_closes_its_part_and_the_rest_is_as_old(settling: Settling) -> None:
    settling.update([HOLE], make_round(1_000))
    rest = [replace(HOLE, last=4), replace(HOLE, first=8)]
    assert told(settling.update(rest, make_round(1_300))) == (4, 0, 0)
    assert told(settling.update([], make_round(1_400))) == (0, 0, 0)


def test_the_grace_counts_what_was_read_and_not_the_time(settling: Settling) -> None:
    """A reader that cannot follow has the retry before it."""
    settling.update([HOLE], make_round(1_000))
    assert told(settling.update([HOLE], make_round(9_000, reached={0: 1_100}))) == (0, 0, 7)
    assert told(settling.update([HOLE], make_round(9_000, reached={}))) == (0, 0, 7)


def test_a_hole_at_the_head_is_never_told(settling: Settling) -> None:
    """A retry of a message from before the reading shows numbers whose fellows were not read."""
    settling.update([HOLE], make_round(1_000, warm=()))
    assert told(settling.update([HOLE], make_round(5_000))) == (0, 0, 0)


@pytest.mark.parametrize("reason", [{"blurred": {0}}, {"has_forgotten": True}])
def test_what_may_be_something_else_is_suspect(settling: Settling, reason: object) -> None:
    settling.update([HOLE], make_round(1_000))
    settling.update([HOLE], make_round(1_100, **reason))  # type: ignore[arg-type]
    assert told(settling.update([HOLE], make_round(1_400))) == (0, 7, 0)


def test_an_unreadable_message_does_not_blur_what_is_told(settling: Settling) -> None:
    settling.update([HOLE], make_round(1_000))
    settling.update([HOLE], make_round(1_300))
    assert told(settling.update([HOLE], make_round(1_400, blurred={0}))) == (7, 0, 0)


def test_what_is_told_outlives_a_reader_that_begins_anew(settling: Settling) -> None:
    settling.update([HOLE, replace(HOLE, partition=1)], make_round(1_000, warm={0, 1}))
    settling.update([HOLE], make_round(1_300))
    settling.leave(0)
    assert told(settling.update([], make_round(1_400))) == (7, 0, 0)


def test_a_hole_is_told_for_as_long_as_it_is_news(settling: Settling) -> None:
    settling.update([HOLE], make_round(1_000))
    settling.update([HOLE], make_round(1_300))
    assert told(settling.update([HOLE], make_round(1_300 + KEEP))) == (7, 0, 0)
    assert told(settling.update([HOLE], make_round(1_301 + KEEP))) == (0, 0, 0)
