"""When a detection starts a recovery again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from replay.runbooks.retrying import Came, Started, decide_start

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def last(ago: timedelta, tries: int = 1, occasion: str = "g-1") -> Started:
    return Started(occasion, "run", NOW - ago, tries)


def decide(before: Started | None, came: Came = Came.ENDED) -> Started | None:
    return decide_start("orders", "g-1", before, came, NOW)


def test_the_first_one_is_named_by_stream_occasion_and_day() -> None:
    started = decide(None)
    assert started == Started("g-1", "detect__orders__g-1__20261121", NOW)
    assert started == decide(last(MINUTE, occasion="g-0")), "another loss is another occasion"


@pytest.mark.parametrize("occasion", ["g-1", "g-0"])
def test_never_two_at_once(occasion: str) -> None:
    assert decide(last(99 * HOUR, occasion=occasion), Came.OPEN) is None


def test_what_ended_waits_for_a_day() -> None:
    assert decide(last(23 * HOUR)) is None
    assert decide(last(24 * HOUR)) is not None


@pytest.mark.parametrize(
    ("tries", "pause"),
    [(1, 10 * MINUTE), (2, 20 * MINUTE), (5, 160 * MINUTE), (7, 6 * HOUR), (999, 6 * HOUR)],
)
def test_a_technical_failure_is_tried_again_after_a_pause(tries: int, pause: timedelta) -> None:
    assert decide(last(pause - MINUTE, tries), Came.BROKEN) is None
    again = decide(last(pause, tries), Came.BROKEN)
    assert again is not None
    assert again.tries == tries + 1
    assert again.run_id == f"detect__orders__g-1__20261121__{tries + 1}"


def test_it_is_kept_as_plain_data() -> None:
    started = last(HOUR, 3)
    assert Started.read(started.to_json()) == started
    for wrong in (None, "", {}, {"at": "soon"}, {"occasion": "x", "at": "2026-11-21T00:00:00Z"}, 7):
        assert Started.read(wrong) is None
