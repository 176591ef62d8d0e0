"""A constant shift between messages and rows is told as a wrong zone; anything else is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from backlogctl.spark_backfill.proof import ZoneShift, describe_shift, find_shift

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
Pairs = list[tuple[datetime, datetime]]


def make_pairs(shift: timedelta, delays: list[float]) -> Pairs:
    """Rows a minute apart, each message so many seconds after its row, the rows read wrongly."""
    rows = [NOON + timedelta(minutes=n) for n in range(len(delays))]
    return [(r + timedelta(seconds=d), r - shift) for r, d in zip(rows, delays, strict=True)]


@pytest.mark.parametrize("minutes", [480, -480, 345, 30, -210])
def test_another_zone_is_found(minutes: int) -> None:
    shift = timedelta(minutes=minutes)
    pairs = make_pairs(shift, [0.1, 2, 5, 0.4, 60, 1])
    assert find_shift(pairs) == ZoneShift(shift, 6)


def test_some_rows_that_changed_since_hide_nothing() -> None:
    pairs = make_pairs(timedelta(hours=8), [1] * 20)
    changed = [(log, row + timedelta(days=3)) for log, row in pairs[:6]]
    assert find_shift([*changed, *pairs[6:]]) == ZoneShift(timedelta(hours=8), 20)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        make_pairs(timedelta(hours=8), [1] * 4),
        make_pairs(timedelta(0), [1] * 20),
        make_pairs(timedelta(minutes=15), [1] * 20),
        make_pairs(timedelta(minutes=67), [1] * 20),
        make_pairs(timedelta(hours=1), [n * 180.0 for n in range(20)]),
    ],
    ids=["none", "few", "right", "a quarter", "no zone", "a batch each hour"],
)
def test_what_is_no_zone_is_not_told(pairs: Pairs) -> None:
    assert find_shift(pairs) is None


def test_it_names_the_key_and_the_offset() -> None:
    told = describe_shift(ZoneShift(timedelta(hours=-8), 20), "shop", "UTC", NOON)
    assert "8 h after those of their messages" in told
    assert "`sources.shop.timezone`" in told
    assert "it is UTC, and the rows look like UTC+08:00" in told
    told = describe_shift(ZoneShift(timedelta(hours=6), 20), "shop", "Asia/Shanghai", NOON)
    assert told.endswith("it is Asia/Shanghai, and the rows look like UTC+02:00")
