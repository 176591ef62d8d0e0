"""Tables, facts and sentences at any width: every word, figure and command stands whole."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Group
from rich.live import Live

from backlogctl.replay.present.layout import (
    Bar,
    Facts,
    Folded,
    Framed,
    Table,
    Text,
    WholeConsole,
    make_line,
    print_wrapped,
    spin,
)

WORDS = st.text("abc1,.-日", min_size=1, max_size=30)
SENTENCES = st.lists(WORDS, max_size=12).map(" ".join)
WIDTHS = st.integers(10, 220)


def draw(thing: Any, width: int) -> str:
    console = WholeConsole(file=io.StringIO(), width=width, force_terminal=False)
    console.print(thing)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def list_words(drawn: str) -> list[str]:
    return re.sub(r"[│╭╮╰╯─]", " ", drawn).split()


@given(st.lists(st.tuples(WORDS, WORDS, SENTENCES), min_size=1, max_size=5), WIDTHS)
def test_a_table_keeps_every_word_at_any_width(
    rows: list[tuple[str, str, str]], width: int
) -> None:
    table = Table("=id", "#at most", "what is told")
    for row in rows:
        table.add(*row)
    drawn = draw(table, width)
    words = list_words(drawn)
    wanted = [word for row in rows for cell in row for word in cell.split()]
    for word in set(wanted):
        assert words.count(word) >= wanted.count(word)
    longest = max(cell_len(word) for word in wanted)
    if longest + 2 <= width:
        assert all(cell_len(line.rstrip()) <= width for line in drawn.splitlines())


@given(st.lists(st.tuples(WORDS, SENTENCES), min_size=1, max_size=5), WIDTHS)
def test_facts_in_a_frame_keep_every_word_at_any_width(
    lines: list[tuple[str, str]], width: int
) -> None:
    facts = Facts()
    for line in lines:
        facts.add(*line)
    drawn = draw(Framed(Text("a title"), [facts], 98), width)
    words = list_words(drawn)
    for word in {word for line in lines for part in line for word in part.split()}:
        assert word in words
    if "╭" in drawn:
        assert len({cell_len(line) for line in drawn.splitlines()}) == 1, "the frame is whole"


@given(SENTENCES, WIDTHS)
def test_sentences_are_only_broken_between_words(text: str, width: int) -> None:
    console = WholeConsole(width=width)
    lines = Text(text, hang=2).wrap(console, width)
    assert " ".join(" ".join(line.plain for line in lines).split()) == " ".join(text.split())
    assert all(line.cell_len <= width or " " not in line.plain.strip() for line in lines)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_commands_and_figures_with_units_are_not_broken(width: int) -> None:
    command = "`kafka-consumer-groups.sh --bootstrap-server HOST:PORT --group g --execute`"
    figures = (
        "13 h 10 min",
        "1.2 M",
        "11-25 08:03:36Z",
        "98.9 %",
        "6 d 23 h",
        "3 min 5 s",
        "76.9 GB",
    )
    text = f"then set it with {command}: " + ", ".join(f"it is {one} now" for one in figures)
    for thing in (Text(text), Text(text, hang=2)):
        lines = draw(thing, width).splitlines()
        for whole in (command, *figures):
            assert sum(whole in line for line in lines) == 1, whole


def test_a_wide_table_has_columns_and_a_narrow_one_is_a_list() -> None:
    table = Table("=gap", "#lost at most", "why")
    table.add("g-20261121-0001", "1,000", "expired, exact")
    table.add("g-20261121-0002", "2", "")
    assert [line.strip() for line in draw(table, 60).splitlines() if "g-" in line] == [
        "g-20261121-0001         1,000  expired, exact",
        "g-20261121-0002             2",
    ]
    assert draw(table, 36).split("\n") == [
        "",
        "gap: g-20261121-0001",
        "  lost at most: 1,000",
        "  why: expired, exact",
        "gap: g-20261121-0002",
        "  lost at most: 2",
        "",
        "",
    ]


def test_a_header_is_broken_before_the_table_is() -> None:
    table = Table("#lost at most", "#kept for")
    table.add("1", "2 d")
    names = [line.split() for line in draw(table, 22).splitlines() if line.strip()][:2]
    assert names == [["lost", "at", "kept"], ["most", "for"]]


def test_cells_of_a_row_begin_on_its_first_line() -> None:
    table = Table("=when", "what is told of it")
    table.add("noon", "several words that need more than a line")
    lines = [line.rstrip() for line in draw(table, 36).splitlines() if line.strip()]
    assert lines[2].split()[:2] == ["noon", "several"]
    assert not lines[3].strip().startswith("noon")


def test_lines_without_a_name_go_with_the_one_before() -> None:
    facts = Facts()
    facts.add("creates", "a topic")
    facts.add("", "`a command of some length`")
    facts.add("stops", "nothing")
    assert draw(facts, 39).splitlines() == [
        "creates",
        "  a topic",
        "  `a command of some length`",
        "stops         nothing",
    ]


def test_a_terminal_gets_whole_words_and_a_pipe_one_line() -> None:
    text = "could not read it: " + "word " * 20 + "hint"
    for is_terminal in (True, False):
        file = io.StringIO()
        console = WholeConsole(file=file, width=30, force_terminal=is_terminal, color_system=None)
        print_wrapped(console, Text(text))
        lines = file.getvalue().splitlines()
        assert (len(lines) > 1) is is_terminal
        assert " ".join(lines).split() == text.split()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_progress_is_not_cut(width: int) -> None:
    file = io.StringIO()
    console = WholeConsole(file=file, width=width, force_terminal=True, color_system=None)
    bar = Bar(console, 12_345_678)
    bar.start()
    bar.say("reading back")
    bar.move(4_345_678, rate=121_345, eta=47_000)
    bar.stop()
    with spin(console) as say:
        say("looking at the topics and groups of a cluster with three brokers, one by one")
    text = " ".join(file.getvalue().split())
    assert "…" not in text
    for whole in ("reading back", "4,345,678 of 12,345,678", "121,345/s", "13 h 3 min left"):
        assert whole in text
    assert "with three brokers, one by one" in text


def test_a_live_view_folds_what_is_longer_than_a_line() -> None:
    command = "backlogctl plan rebuild a-stream-with-a-long-name --allow surplus"
    file = io.StringIO()
    console = WholeConsole(file=file, width=30, force_terminal=True, color_system=None)
    with Live(Folded(Group(Text("one two"), make_line(Text(command)), Text())), console=console):
        pass
    lines = [line.rpartition("\x1b")[2].removeprefix("[2K") for line in file.getvalue().split("\n")]
    assert command in "".join(lines)
    assert all(len(line) <= 30 for line in lines)


def test_what_is_longer_than_a_line_is_copied_whole() -> None:
    name = "a-" * 60
    for thing in (Text(name), Text(f"see {name}", hang=2)):
        assert name in draw(thing, 40)
