"""What a pipe gets while work is done: lines with done and total, rate, and time left."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from replay.kinds.expand.view import BurndownView
from replay.telling.bars import Bar, spin
from tests.replay.expand_makers import make_burndown
from tests.replay.makers import open_desk, store_plan


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
