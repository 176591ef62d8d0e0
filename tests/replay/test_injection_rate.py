"""The rate of an injection is one number: of the last minute, on the terminal, page, bar, in JSON."""

from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from backlog.ledger import ChunkRecord
from backlog.values import Chunk, ChunkState, RecoveryState
from replay.injection.steps import inject
from replay.recovery.approval import approve_plan
from replay.telling.burndown import draw_progress
from replay.telling.progress import describe_progress, find_share
from spark_backfill.injection.brakes import InjectionProgress
from spark_backfill.injection.writer import ChunkResult, Outcome
from tests.backlog.ledger.makers import NOON
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

    share = find_share(desk.ledger.recoveries.get(recovery.id), document)
    assert share is not None
    assert (share.rate, share.eta) == (RATE, 60)

    console = Console(file=io.StringIO(), width=100)
    console.print(draw_progress(document))
    assert "100/s, done in about 1 min" in console.file.getvalue()  # type: ignore[attr-defined]

    moved: dict[str, Any] = {}
    bar = SimpleNamespace(say=lambda _: None, move=lambda done, **told: moved.update(told))
    marks = SimpleNamespace(chunks=SimpleNamespace(mark_injected=lambda *_: True))
    workspace = SimpleNamespace(ledger=marks)
    context: Any = SimpleNamespace(workspace=workspace, recovery=recovery, found={}, bar=bar)
    tracker = inject._Tracker(context)
    for number, (at, count) in enumerate(done):
        monkeypatch.setattr(inject, "utc_now", lambda at=at: NOON + at)
        tracker.note_chunk(ChunkResult(0, number, count, Outcome.INJECTED))
    monkeypatch.setattr(inject, "utc_now", lambda: NOON)
    total = sum(count for _, count in done)
    tracker.note_progress(InjectionProgress(injected=total, skipped=0, total=total + 6_000))
    assert moved == {"rate": RATE, "eta": 60}
