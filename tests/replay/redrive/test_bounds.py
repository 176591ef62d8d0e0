"""What `--offsets` and `--key` say, read and cut to what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from backlogctl.errors import UsageError
from backlogctl.replay.kinds.redrive.plan import RedriveOptions, read_keys
from backlogctl.replay.kinds.redrive.sources import (
    choose_ranges,
    parse_offsets,
    require_bounds,
    skip_before,
)
from backlogctl.values import OffsetRange


def test_both_ends_are_included_and_overlaps_are_one() -> None:
    said = parse_offsets(["1:7", "0:5-9", "0:8-12", "0:13", "0:20–21"], 2)
    assert said == (OffsetRange(0, 5, 14), OffsetRange(0, 20, 22), OffsetRange(1, 7, 8))


@pytest.mark.parametrize("text", ["", "5-9", "0:", "0:-5", "0:5-4", "2:1", "a:1-2", "0:1-2-3"])
def test_what_is_no_range_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_offsets([text], 2)
    assert caught.value.subject == f"--offsets {text}"


def test_what_is_not_there_is_told() -> None:
    there = [OffsetRange(0, 10, 20), OffsetRange(1, 5, 5), OffsetRange(2, 0, 9)]
    assert choose_ranges((), there) == ((OffsetRange(0, 10, 20), OffsetRange(2, 0, 9)), [])
    said = parse_offsets(["0:5-12", "1:0-3", "2:4-"], 3)
    ranges, warnings = choose_ranges(said, there)
    assert ranges == (OffsetRange(0, 10, 13), OffsetRange(2, 4, 9))
    assert warnings == [
        "5 of the offsets 5–12 of partition 0 are not there; 10–19 are",
        "4 of the offsets 0–3 of partition 1 are not there; none are",
    ]


def test_a_range_may_span_several_of_an_archive() -> None:
    there = [OffsetRange(0, 0, 10), OffsetRange(0, 20, 30)]
    ranges, warnings = choose_ranges(parse_offsets(["0:5-24"], 1), there)
    assert ranges == (OffsetRange(0, 5, 10), OffsetRange(0, 20, 25))
    assert warnings == ["10 of the offsets 5–24 of partition 0 are not there; 0–9, 20–29 are"]


def test_what_is_older_than_a_time_is_skipped() -> None:
    ranges = [OffsetRange(0, 0, 10), OffsetRange(0, 20, 30), OffsetRange(1, 0, 5)]
    assert skip_before(ranges, {0: 7, 1: -1}) == (OffsetRange(0, 7, 10), OffsetRange(0, 20, 30))
    assert skip_before(ranges, {0: 30, 1: 0}) == (OffsetRange(1, 0, 5),)


def test_a_filter_alone_is_no_bound() -> None:
    with pytest.raises(UsageError):
        require_bounds(RedriveOptions(source="log", where="key = 'a'"))
    require_bounds(RedriveOptions(source="log", key=("a",)))
    require_bounds(RedriveOptions(source="log", everything=True))


def test_keys_are_said_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"b\r\n\xff\n\nb\n")
    assert read_keys(["a", f"@{file}", "a"]) == (b"a", b"b", b"\xff")
    assert read_keys([]) == ()
    file.write_bytes(b"\n")
    for word in (f"@{file}", f"@{tmp_path / 'nowhere'}"):
        with pytest.raises(UsageError) as caught:
            read_keys([word])
        assert caught.value.subject == f"--key {word}"
