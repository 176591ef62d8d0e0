"""Plots as inline SVG: colours of the page, no ids, texts that stay texts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as Tree
from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.monitoring.plots import (
    Label,
    Mark,
    Series,
    Threshold,
    Unit,
    choose_ticks,
    draw_lines,
    label_ticks,
    place_labels,
)

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
HOSTILE = '<script>alert("& $x^2$\x00\u202e</script> $\\frac'


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def make_series(name: str = "lag", *values: float | None) -> Series:
    return Series(name, [(after(60 * n), v) for n, v in enumerate(values or (5, 3, None, 1))])


def read_texts(svg: str) -> list[str]:
    return [element.text or "" for element in Tree.fromstring(svg).iter() if "text" in element.tag]


def test_an_element_for_inside_a_page() -> None:
    svg = draw_lines([make_series()], y="messages", title="Lag of orders")
    root = Tree.fromstring(svg)
    assert svg.startswith("<svg")
    assert root.get("role") == "img"
    assert root.get("aria-label") == "Lag of orders"
    assert root.get("viewBox")
    assert root.get("width") is None
    assert root[0].text == "Lag of orders"
    assert "<style" not in svg
    assert "<metadata" not in svg


def test_colours_are_the_pages() -> None:
    svg = draw_lines(
        [make_series("a"), make_series("b", 1, 2)],
        marks=[Mark(after(60), "run")],
        threshold=Threshold(6, "limit"),
        y="messages",
        title="t",
    )
    used = set(re.findall(r"var\((--[a-z0-9-]+), #[0-9a-f]{6}\)", svg))
    assert used == {"--plot-ink", "--plot-grid", "--plot-1", "--plot-2", "--plot-alarm"}
    assert not re.findall(r"(?<!, )#[0-9a-f]{6}\b", svg), "a colour that no page can change"
    assert "font-family: inherit" in svg
    assert "DejaVu" not in svg


def test_the_same_twice_and_no_ids_that_another_plot_may_have() -> None:
    svg = draw_lines([make_series("a", 1, 2)], y="rate", title="one")
    assert svg == draw_lines([make_series("a", 1, 2)], y="rate", title="one")
    assert not re.search(r' id="|url\(|href', svg)


def test_hostile_names_are_text() -> None:
    svg = draw_lines(
        [make_series(HOSTILE), make_series("b")],
        marks=[Mark(after(0), HOSTILE)],
        threshold=Threshold(4, HOSTILE),
        y="messages",
        title=HOSTILE,
    )
    assert "<script" not in svg
    assert sum("<script>alert(" in text for text in read_texts(svg)) == 3
    assert any("$x^2$" in text for text in read_texts(svg)), "no mathematics"
    assert "\x00" not in svg
    assert "\u202e" not in svg


@pytest.mark.parametrize(
    ("values", "lines", "dots"),
    [((1, 2, 3, 4, 3), 1, 0), ((1, 2, None, 4, 3), 2, 0), ((1, 2, None, 4), 1, 1)],
)
def test_none_breaks_the_line_and_a_lone_point_is_seen(
    values: tuple[float | None, ...], lines: int, dots: int
) -> None:
    svg = draw_lines([make_series("a", *values)], y="messages", title="t")
    assert svg.count("fill: none; stroke: var(--plot-1") == lines
    assert svg.count("<circle") == dots


def test_without_points_it_says_so() -> None:
    for series in ([], [Series("a", [])], [make_series("a", None, None)]):
        svg = draw_lines(series, y="seconds", title="t", marks=[Mark(NOON, "run")])
        assert read_texts(svg) == ["no data yet"]


def test_a_limit_out_of_sight_is_told_in_words() -> None:
    def draw(limit: float) -> list[str]:
        threshold = Threshold(limit, "retention")
        return read_texts(
            draw_lines([make_series("a", 0, 60)], y="seconds", title="t", threshold=threshold)
        )

    assert "retention: 2 min" in draw(120)
    assert "retention: 7 d, above what is drawn" in draw(7 * 86400)


@pytest.mark.parametrize(
    ("top", "unit", "labels"),
    [
        (0, "messages", ["0", "1"]),
        (3, "messages", ["0", "1", "2", "3"]),
        (1_200_000, "messages", ["0", "500,000", "1 M", "1.5 M"]),
        (11_400, "seconds", ["0", "1 h", "2 h", "3 h", "4 h"]),
        (0.4, "seconds", ["0", "0.1 s", "0.2 s", "0.3 s", "0.4 s"]),
        (86400 * 9, "seconds", ["0", "5 d", "10 d"]),
        (3_900, "rate", ["0", "1,000/s", "2,000/s", "3,000/s", "4,000/s"]),
        (0.7, "rate", ["0", "0.2/s", "0.4/s", "0.6/s", "0.8/s"]),
    ],
)
def test_ticks_are_what_people_say(top: float, unit: Unit, labels: list[str]) -> None:
    assert label_ticks(choose_ticks(top, unit, 4), unit) == labels


@given(st.floats(0, 1e15), st.sampled_from(["messages", "seconds", "rate"]), st.integers(2, 6))
def test_ticks_begin_at_zero_and_hold_everything(top: float, unit: Unit, most: int) -> None:
    ticks = choose_ticks(top, unit, most)
    assert ticks[0] == 0
    assert ticks[-1] >= top * (1 - 1e-6)
    assert 2 <= len(ticks) <= most + 1
    names = label_ticks(ticks, unit)
    assert len(set(names)) == len(names)


@given(
    st.lists(st.tuples(st.floats(0, 600), st.text("abc ", min_size=1, max_size=20)), max_size=14)
)
def test_labels_never_cover_each_other(wanted: list[tuple[float, str]]) -> None:
    placed = place_labels(sorted(wanted), right=640, character=6, rows=4, near=3)
    assert bool(placed) == bool(wanted)
    for one, other in combinations(placed, 2):
        if one.row == other.row:
            assert not overlap(one, other)
        low, high = sorted((one, other), key=lambda label: label.row)
        if low.row < high.row:  # the line up to the higher one is not behind the lower one's text
            assert not low.left < high.x < low.left + low.width
    if len(placed) > 1:
        assert max(label.row for label in placed) < 4


def overlap(one: Label, other: Label) -> bool:
    return one.left < other.left + other.width and other.left < one.left + one.width


def read_times(svg: str) -> list[tuple[float, str]]:
    """The texts below a plot and where they are centred."""
    texts = Tree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    centred = [text for text in texts if "middle" in text.get("style", "")]
    return [(float(text.get("x", "")), text.text or "") for text in centred]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("seconds", [2, 45, 120, 150, 180, 900, 7200, 86400, 30 * 86400])
def test_times_never_cover_each_other(seconds: float, wide: bool) -> None:
    # Names of the upright axis are long: little room is left.
    points = [(after(17), 1.0), (after(17 + seconds), 85.0)]
    svg = draw_lines([Series("a", points)], y="seconds", title="t", wide=wide)
    times = read_times(svg)
    assert len(times) >= 2
    for (x, text), (next_x, next_text) in pairwise(times):
        assert next_x - x > (len(text) + len(next_text)) / 2 * 6.4, times
    assert "UTC" in svg
