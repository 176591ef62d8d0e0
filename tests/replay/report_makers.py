"""Recoveries in ledgers filled by hand, and the reports on them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

from rich.console import Console, RenderableType

from backlogctl.ledger.measurements import BurndownSample
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.kind import STEP_COMPLETED, STEP_STARTED, Workspace
from backlogctl.replay.present.report import make_report
from backlogctl.replay.present.report_page import render_page
from backlogctl.values import Chunk, GapState, PartitionSample, Recovery, RecoveryState, Sample
from tests.kernel.ledger.makers import make_gap
from tests.replay.expand_makers import store_expand_plan
from tests.replay.makers import keep_plan, make_rebuild_plan

S = RecoveryState


class Page(HTMLParser):
    """The page as a browser would read it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def report(desk: Workspace, recovery: Recovery | str) -> tuple[dict[str, Any], Page]:
    name = recovery if isinstance(recovery, str) else recovery.id
    document = make_report(desk, name)
    json.dumps(document)
    return document, Page(render_page(document))


def lose(desk: Workspace) -> tuple[str, ...]:
    """Two gaps of five messages, detected."""
    ledger = desk.ledger
    return tuple(ledger.gaps.record(make_gap(100, 105, partition=number)).id for number in range(2))


def plan_lost(desk: Workspace, **changes: Any) -> Recovery:
    gaps = lose(desk)
    rows = [
        {
            "id": gap,
            "partition": number,
            "start": 100,
            "end": 105,
            "cause": "expired",
            "certainty": "exact",
        }
        for number, gap in enumerate(gaps)
    ]
    plan = make_rebuild_plan(gaps=rows, group="orders-service", **changes)
    return keep_plan(desk, plan, gaps)


def put_back(desk: Workspace, **changes: Any) -> Recovery:
    """A rebuild that was carried out: two chunks of five, read back."""
    ledger = desk.ledger
    planned = plan_lost(desk, **changes)
    recovery = approve_plan(desk, planned, by="Grace").id
    chunks = [Chunk(n, 0, 5, 9, "ab", "messages/x", "ids/x") for n in range(2)]
    ledger.chunks.add_all(recovery, chunks)
    ledger.recoveries.advance(recovery, S.RUNNING, "os:root@vm", {"runner": "vm:1"})
    start_step(desk, recovery, "inject")
    for number in range(2):
        ledger.chunks.mark_injected(recovery, number, 0, 900 + number, 904 + number)
    complete_step(desk, recovery, "inject")
    for state in (GapState.STAGED, GapState.INJECTED, GapState.VERIFIED):
        ledger.gaps.advance(ledger.recoveries.gap_ids(recovery), state, recovery)
    found = {"exact": True, "staged": 10, "matched": 10, "ids": {"missing": ["secret-id"]}}
    found |= dict.fromkeys(("missing", "doubled", "different", "unexpected"), 0)
    note(desk, recovery, "read back", **found)
    return ledger.recoveries.advance(recovery, S.VERIFIED, "os:root@vm", {"verified": found})


def drain(desk: Workspace, counted: Mapping[str, int] = {}, **changes: Any) -> Recovery:
    """An expansion that was carried out; `counted` is what was not 1,200,007."""
    ledger = desk.ledger
    planned = store_expand_plan(desk, **changes)
    recovery = approve_plan(desk, planned, by="Grace").id
    ledger.recoveries.advance(recovery, S.RUNNING, "os:root@vm", {"runner": "vm:1"})
    now = ledger.now()
    for second in range(5):
        left = 1_200_000 - 300_000 * second
        at = now + timedelta(seconds=second)
        ledger.burndown.add(
            BurndownSample(recovery, at, "drain", left // 2, left // 2, 0, 1_200_000 - left, 30)
        )
    whole = dict.fromkeys(("relayed", "written", "handled"), 1_200_007) | dict(counted)
    handled = whole.pop("handled")
    verified = {**whole, "partitions": {"0": 400_007}}
    for step in ("stop_consumers", "drain", "restore", "verify"):
        start_step(desk, recovery, step)
        complete_step(desk, recovery, step, **(verified if step == "verify" else {}))
    counts = {"relayed": whole["relayed"], "handled": handled, "drained_per_second": 1379.4}
    detail = {"verified": verified, "counts": counts}
    return ledger.recoveries.advance(recovery, S.VERIFIED, "os:root@vm", detail)


def note(desk: Workspace, recovery: str, action: str, **detail: Any) -> None:
    desk.ledger.events.append(recovery, "os:root@vm", action, detail)


def start_step(desk: Workspace, recovery: str, step: str) -> None:
    desk.ledger.steps.start(recovery, step)
    note(desk, recovery, STEP_STARTED, step=step)


def complete_step(desk: Workspace, recovery: str, step: str, **detail: Any) -> None:
    desk.ledger.steps.complete(recovery, step, detail)
    note(desk, recovery, STEP_COMPLETED, step=step, **detail)


def sample(desk: Workspace, seconds: float, lag: int) -> None:
    at = desk.ledger.now() + timedelta(seconds=seconds)
    part = PartitionSample(0, 0, 10_000 - lag, 10_000, 10_000)
    desk.ledger.samples.add(Sample("orders", "main", "orders", "service", "topic-id", at, (part,)))


def print_text(part: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]
