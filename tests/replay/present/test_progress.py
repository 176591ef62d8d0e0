"""The rate of an injection is one number: of the last minute, on the terminal, page, bar, in JSON."""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from backlogctl.ledger import ChunkRecord
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.injection import steps
from backlogctl.replay.present.burndown import BurndownView
from backlogctl.replay.present.layout import Bar, spin
from backlogctl.replay.present.progress import describe_progress, find_share
from backlogctl.replay.present.terminal import render_progress
from backlogctl.spark_backfill.injection.brakes import InjectionProgress
from backlogctl.spark_backfill.injection.transactional import ChunkResult, CommitOutcome
from backlogctl.values import Chunk, ChunkState, RecoveryState
from tests.kernel.ledger.makers import NOON
from tests.replay.expand_makers import make_burndown
from tests.replay.makers import open_desk, store_plan

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
