"""Tables, sentences and messages at any width; the rate of an injection is one number."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live

from backlogctl.ledger import ChunkRecord
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.injection import steps
from backlogctl.replay.present.burndown import BurndownView
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
from backlogctl.replay.present.messages import (
    HIDDEN,
    Form,
    Mask,
    mask_message,
    render_message,
    show_part,
)
from backlogctl.replay.present.progress import describe_progress, find_share
from backlogctl.replay.present.terminal import render_progress
from backlogctl.spark_backfill.injection.brakes import InjectionProgress
from backlogctl.spark_backfill.injection.transactional import ChunkResult, CommitOutcome
from backlogctl.values import Chunk, ChunkState, RecoveryState
from tests.kit.ledger import NOON
from tests.kit.recoveries import make_burndown, open_desk, store_plan

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


NONE = Mask()
EMAIL = Mask.read(["email"])


@pytest.mark.parametrize(
    ("raw", "form", "lines"),
    [
        (None, Form.NULL, ["null"]),
        (b"", Form.EMPTY, ["empty"]),
        (b"plain", Form.TEXT, ["plain"]),
        ("schön\n☂".encode(), Form.TEXT, ["schön\\n☂"]),
        (b"\x1b[2J", Form.TEXT, ["\\x1b[2J"]),
        (b"{broken", Form.TEXT, ["{broken"]),
        (b'{"a":1}', Form.JSON, ['{"a": 1}']),
        (b"\x00\x00\x00\x00\x2a\xff", Form.BINARY, ["00000000 2aff"]),
        (b"\x00" * 4, Form.BINARY, ["00000000"]),
    ],
)
def test_each_form(raw: bytes | None, form: Form, lines: list[str]) -> None:
    shown = show_part(raw, NONE)
    assert (shown.form, shown.list_lines()) == (form, lines)


def test_long_ones_are_cut_for_people_and_whole_in_the_document() -> None:
    bytes_ = show_part(bytes(range(200, 250)) * 4, NONE)
    assert bytes_.list_lines()[1] == "… of 200 B"
    assert len(bytes_.text.replace(" ", "")) == 128, "the first 64 bytes"
    text = show_part(b"x" * 10_000, NONE)
    assert len(text.list_lines()[0]) == 4000
    assert len(text.text) == 10_000
    assert text.fold(20) == f"{'x' * 19}…"
    lines = show_part(json.dumps({"order": "o" * 40, "city": "c" * 40}).encode(), NONE)
    assert lines.list_lines() == ["{", f'  "order": "{"o" * 40}",', f'  "city": "{"c" * 40}"', "}"]


def test_numbers_are_shown_as_they_are_written() -> None:
    value = '{"a": 12.50, "b": [1234567890123456789012345678.10, 1e3], "a": -0.0, "email": "a@b"}'
    assert show_part(value.encode(), NONE).text == value
    lines = show_part(value.encode(), EMAIL).list_lines()
    assert "".join(line.strip() for line in lines) == (
        '{"a": 12.50,"b": [1234567890123456789012345678.10,1e3],"a": -0.0,"email": "***"}'
    )


def test_fields_are_hidden_at_any_depth() -> None:
    value = {
        "email": "ada@example.org",
        "orders": [{"email": ["a@b"], "id": 1}, {"to": {"email": {"x": 1}}}],
        "payload": json.dumps({"email": "inner@example.org", "n": 2}),
        "null": None,
    }
    shown = show_part(json.dumps(value).encode(), EMAIL, is_open=False)
    assert "@" not in shown.text
    seen = json.loads(shown.text)
    assert seen["orders"] == [{"email": HIDDEN, "id": 1}, {"to": {"email": HIDDEN}}]
    assert json.loads(seen["payload"]) == {"email": HIDDEN, "n": 2}


@pytest.mark.parametrize("raw", [b"ada@example.org", b"{broken: ada@", b"\x00\x01ada@example.org"])
def test_a_value_that_cannot_be_looked_into_is_hidden_whole(raw: bytes) -> None:
    shown = mask_message(EMAIL, partition=0, offset=1, timestamp=1, key=b"k", value=raw)
    assert shown.value.form is Form.HIDDEN
    assert "ada" not in json.dumps(shown.to_json())
    assert shown.key.text == "k", "a plain key is no value"


def test_key_value_and_headers_are_hidden_by_name() -> None:
    mask = Mask.read(["key", "value", "header:user"])
    shown = mask_message(
        mask,
        partition=2,
        offset=70_000,
        timestamp=1_760_000_000_000,
        key=b"secret-1",
        value=b'{"a": "secret-2"}',
        headers=[("user", b"secret-3"), ("user", None), ("trace", b"abc")],
    )
    assert "secret" not in json.dumps(shown.to_json())
    assert [part.form for _, part in shown.headers] == [Form.HIDDEN, Form.NULL, Form.TEXT]
    out = io.StringIO()
    WholeConsole(file=out, width=100).print(render_message(shown))
    assert "secret" not in out.getvalue()
    assert "partition 2, offset 70,000" in out.getvalue()
    assert "2025-10-09 08:53:20Z" in out.getvalue()


@pytest.mark.parametrize("length", [20, 200])
def test_lines_of_json_keep_their_indent(length: int) -> None:
    value = json.dumps({"id": 650, "deep": {"note": "y" * length}, "more": "z" * 60}).encode()
    shown = mask_message(
        NONE, partition=0, offset=0, timestamp=-1, key=b"k", value=value, headers=[]
    )
    out = io.StringIO()
    WholeConsole(file=out, width=80).print(render_message(shown))
    lines = out.getvalue().replace("value", "     ").splitlines()
    (opened,) = (line.index("{") for line in lines if line.strip() == "{")
    assert opened == lines[-1].index("}")


@given(key=st.binary(), value=st.binary(), name=st.text(), header=st.none() | st.binary())
def test_nothing_in_a_message_moves_the_cursor(
    key: bytes, value: bytes, name: str, header: bytes | None
) -> None:
    for mask in (NONE, EMAIL):
        shown = mask_message(
            mask,
            partition=0,
            offset=0,
            timestamp=-1,
            key=key,
            value=value,
            headers=[(name, header)],
        )
        out = io.StringIO()
        WholeConsole(file=out, width=80).print(render_message(shown))
        for char in out.getvalue().replace("\n", ""):
            # Spaces other than the common one are let through.
            assert char.isprintable() or unicodedata.category(char) == "Zs"


@pytest.mark.parametrize("masked", ["email", "key", "value"])
def test_what_tells_an_error_may_quote_what_is_masked(masked: str) -> None:
    names = (
        "kafka_dlt-exception-message", "kafka_dlt-exception-stacktrace",
        "__connect.errors.exception.message", "__connect.errors.exception.stacktrace",
        "x-exception-message",
    )  # fmt: skip
    for name in names:
        assert Mask.read([masked]).hides_header(name)
        assert not Mask.read(["header:other"]).hides_header(name)
    for name in ("trace", "kafka_dlt-exception-fqcn", "kafka_dlt-original-offset"):
        assert not Mask.read([masked]).hides_header(name)
    message = mask_message(
        Mask.read([masked]), partition=0, offset=0, timestamp=None, key=None, value=None,
        headers=[(names[0], b"bad: u7@x.org")],
    )  # fmt: skip
    assert "u7@x.org" not in str(message.to_json())


# A slow night: 100 messages a minute for an hour, then 6,000 in the last 30 seconds.
SLOW = [(timedelta(minutes=-number), 100) for number in range(60, 1, -1)]
FAST = [(timedelta(seconds=-number), 200) for number in range(30, 0, -1)]
RATE = 6_000 / 60


def make_chunk(number: int, count: int) -> Chunk:
    return Chunk(0, number, count, count, "", "", "")


def test_everybody_shows_the_same_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = open_desk(tmp_path)
    recovery = store_plan(desk)
    approve_plan(desk, recovery, by="ada")
    desk.ledger.recoveries.advance(recovery.id, RecoveryState.RUNNING, "ada")
    done = [*SLOW, *FAST]
    chunks = [
        ChunkRecord(make_chunk(n, count), ChunkState.INJECTED, injected_at=NOON + at)
        for n, (at, count) in enumerate(done)
    ]
    chunks.append(ChunkRecord(make_chunk(len(done), 6_000), ChunkState.STAGED))
    document = describe_progress((), (), NOON, chunks=chunks)
    assert document["injection"]["injected_per_second"] == RATE
    assert document["injection"]["eta_seconds"] == 60

    share = find_share(desk.ledger.recoveries.get(recovery.id).state, document)
    assert share is not None
    assert (share.rate, share.eta) == (RATE, 60)

    console = Console(file=io.StringIO(), width=100)
    console.print(render_progress(document))
    assert "100/s, done in about 1 min" in console.file.getvalue()  # type: ignore[attr-defined]

    moved: dict[str, Any] = {}
    bar = SimpleNamespace(say=lambda _: None, move=lambda done, **told: moved.update(told))
    marks = SimpleNamespace(chunks=SimpleNamespace(mark_injected=lambda *_: True))
    workspace = SimpleNamespace(ledger=marks)
    context: Any = SimpleNamespace(workspace=workspace, recovery=recovery, found={}, bar=bar)
    tracker = steps._Tracker(context)
    for number, (at, count) in enumerate(done):
        monkeypatch.setattr(steps, "utc_now", lambda at=at: NOON + at)
        tracker.note_chunk(ChunkResult(0, number, count, CommitOutcome.INJECTED))
    monkeypatch.setattr(steps, "utc_now", lambda: NOON)
    total = sum(count for _, count in done)
    tracker.note_progress(InjectionProgress(injected=total, skipped=0, total=total + 6_000))
    assert moved == {"rate": RATE, "eta": 60}


# What a pipe gets while work is done: lines with done and total, rate, and time left.


@dataclass
class Clock:
    """A clock that a test moves."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def make_pipe() -> Console:
    return Console(file=io.StringIO(), width=40)


def read_lines(console: Console) -> list[str]:
    return str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined]


def test_a_bar_tells_a_pipe_rate_and_time_left() -> None:
    console, clock = make_pipe(), Clock()
    bar = Bar(console, 1_000, clock=clock)
    bar.say("injecting")
    bar.move(952, rate=480.0, eta=1.2)
    bar.print_line()
    bar.move(960, rate=4.24, eta=None)
    bar.print_line()
    assert read_lines(console) == [
        "952 of 1,000 messages, 480/s, 1 s left",
        "960 of 1,000 messages, 4.2/s",
    ]


def test_a_bar_tells_no_rate_that_is_old_and_no_count_of_another_phase() -> None:
    console, clock = make_pipe(), Clock()
    bar = Bar(console, 1_000, clock=clock)
    bar.say("starting Spark")
    clock.now += 20
    bar.print_line()
    bar.say("injecting")
    bar.move(10, rate=2.0, eta=495.0)
    clock.now += 90
    bar.print_line()
    bar.say("reading back")
    clock.now += 10
    bar.print_line()
    assert read_lines(console) == [
        "starting Spark, 20 s",
        "10 of 1,000 messages, none for 1 min 30 s",
        "reading back, 10 s",
    ]


def test_a_pipe_is_told_each_phase_of_a_plan() -> None:
    console = make_pipe()
    with spin(console) as say:
        say("reading candidates from [orders] of a table: 12 of 48 tasks, 40 s")
    assert read_lines(console) == [
        "reading candidates from [orders] of a table: 12 of 48 tasks, 40 s"
    ]


def test_an_expansion_tells_a_pipe_what_is_handled_or_how_long_a_step_takes(
    tmp_path: Path,
) -> None:
    console, clock = make_pipe(), Clock()
    desk = open_desk(tmp_path)
    view = BurndownView(console, desk.ledger, store_plan(desk), clock=clock)
    view.note_step("stop_consumers")
    clock.now += 10
    view.print_line()
    view.note_step("relay")
    for sample in make_burndown(20):
        view.note_sample(sample)
    view.print_line()
    clock.now += 10
    view.print_line()
    assert read_lines(console) == [
        "stop consumers",
        "stop consumers, 10 s",
        "relay",
        "20,000 of 100,000 handled, 20,000 to relay, 1,000/s, 1 min 20 s left",
        "relay, 10 s",
    ]
