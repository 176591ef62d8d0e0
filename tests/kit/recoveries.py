"""Plans, recoveries and reports of every kind, made without brokers."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import sqlalchemy
from pydantic import BaseModel
from rich.console import Console, RenderableType

from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.errors import LeaseHeld
from backlogctl.ledger import Owner
from backlogctl.ledger.measurements import BurndownSample
from backlogctl.ledger.steps import StepRecord
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.guards import store_plan as store
from backlogctl.replay.engine.kind import STEP_COMPLETED, STEP_STARTED, Workspace
from backlogctl.replay.engine.next_commands import LOOKED_AHEAD
from backlogctl.replay.engine.plan import Plan
from backlogctl.replay.kinds.expand.plan import ExpandPlan
from backlogctl.replay.kinds.rebuild.plan import RebuildPlan
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.present.report import make_report
from backlogctl.replay.present.report_page import render_page
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.spark_backfill.request import CandidateCounts, PartitionOutcome, Proof
from backlogctl.values import Chunk, GapState, PartitionSample, Recovery, RecoveryState, Sample
from tests.kit.ledger import NOON, make_gap

LEDGER = LedgerSnapshot("ledger", "ledger-id", 2, {0: 0, 1: 0})
PAST = "2026-01-01T00:00:00.000000Z"


def write_config(directory: Path, **document: Any) -> Path:
    """A configuration of one stream on a cluster that is not there; JSON is YAML."""
    path = directory / "backlog.yaml"
    stream = {"cluster": "main", "topic": "orders", "group": "service"}
    whole = {
        "ledger": "sqlite:///ledger.db",
        "clusters": {"main": {"bootstrap.servers": "127.0.0.1:1"}},
        "streams": {"orders": stream},
        **document,
    }
    path.write_text(json.dumps(whole))
    return path


def open_desk(directory: Path, **document: Any) -> Workspace:
    """A workspace on `write_config`."""
    return open_workspace(load_config(write_config(directory, **document)))


def make_rebuild_plan(**changes: Any) -> RebuildPlan:
    """A plan of ten messages in partitions 0 and 1.

    A change that is a mapping is merged into what is there: `outcome={"verdict": "short"}`.
    """
    rows = [asdict(PartitionOutcome(number, 5, 5, 0, 0, 0, 0, 0)) for number in range(2)]
    plan = {
        "version": 1,
        "kind": "rebuild",
        "stream": "orders",
        "cluster": "main",
        "topic": "orders",
        "topic_id": "topic-id",
        "partition_count": 2,
        "group": "service",
        "outcome": {
            "recovery_id": "r-20261121-0001",
            "verdict": "exact",
            "reasons": [],
            "counts": asdict(CandidateCounts(expected=10, candidates=10, rebuilt=10)),
            "partitions": rows,
            "proof": asdict(Proof(4, 4, 4, 4, 4, False)),
            "quarantine": {"count": 0, "reasons": {}, "sample": [], "path": "quarantine"},
            "warnings": [],
            "manifest_sha256": "ab",
            "chunks": 1,
            "bytes": 1,
            "fidelity": "restated",
            "bounds": [None, None],
            "log_start": {},
            "log_end": {},
        },
        "manifest_sha256": "ab",
        "topic_end_offsets": {"0": 900, "1": 900},
        "configuration": {"isolation": "read_committed"},
        "warnings": [],
        "gaps": [],
        "other_groups": [],
        "deliver": None,
        "options": {"since": None, "until": None, "gaps": [], "allow": []},
        "approval": "named",
        "off_peak": None,
        "limits": {},
        "ledger_topic": LEDGER.to_json(),
        "transactional_prefix": "frozen",
        "planned_by": {"kind": "os", "user": "planner", "host": "here"},
        "planned_at": "2026-11-21T12:00:00.000000Z",
    }
    return RebuildPlan.read(merge(plan, changes))


def merge(plan: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The plan's data with the changes; models and times in them become plain JSON."""
    merged = dict(plan)
    for name, value in changes.items():
        before = merged.get(name)
        if isinstance(value, BaseModel):
            value = value.model_dump(mode="json")
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = merge(before, value) if both else value  # type: ignore[arg-type]
    return merged


def make_recovery(plan: Plan, **changes: Any) -> Recovery:
    """A recovery of that plan that no ledger has."""
    made = Recovery(
        id="r-20261121-0001",
        kind=plan.kind,
        stream=plan.stream,
        cluster=plan.cluster,
        topic=plan.topic,
        group=plan.group,
        state=RecoveryState.PLANNED,
        plan_hash=plan.hash(),
        plan=plan.dump(),
        created_at=plan.planned_at,
    )
    return replace(made, **changes)


def keep_plan(
    workspace: Workspace, plan: Plan, gap_ids: Iterable[str] = (), recovery_id: str | None = None
) -> Recovery:
    """Puts a plan on record."""
    new_id = recovery_id or workspace.ledger.recoveries.next_id(utc_now())
    return store(workspace, new_id, plan, gap_ids)


def store_plan(workspace: Workspace, topic: str = "orders", **changes: Any) -> Recovery:
    """A planned rebuild of the stream `orders`."""
    return keep_plan(workspace, make_rebuild_plan(topic=topic, **changes))


def store_approved(workspace: Workspace, **changes: Any) -> Recovery:
    """An approved recovery."""
    planned = store_plan(workspace, **changes)
    return approve_plan(workspace, planned, by="ada")


def change_ledger(workspace: Workspace, statement: str, **values: Any) -> None:
    """Goes past our code: the ways of clocks and of other hosts."""
    engine = sqlalchemy.create_engine(workspace.config.ledger_url(), connect_args={"timeout": 60})
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(statement), values)
    engine.dispose()


def take_over(workspace: Workspace, recovery_id: str) -> Owner:
    """Another runner takes the lease, as if the one that has it had slept for long."""
    owner = Owner.current()
    while True:
        change_ledger(workspace, f"UPDATE backlog_recoveries SET lease_until = '{PAST}'")
        try:
            workspace.ledger.leases.acquire(recovery_id, owner, timedelta(hours=1))
        except LeaseHeld:
            continue  # its thread renewed it in between
        return owner


def read_actions(workspace: Workspace, recovery_id: str) -> list[str]:
    """What the record says was done; a look changes nothing."""
    actions = [event.action for event in workspace.ledger.events.list(recovery_id)]
    return [action for action in actions if action != LOOKED_AHEAD]


def find_detail(workspace: Workspace, recovery_id: str, action: str) -> Mapping[str, Any]:
    """The detail of the last line of that action."""
    lines = [e for e in workspace.ledger.events.list(recovery_id) if e.action == action]
    return lines[-1].detail


ID = "r-20261121-0001"


def make_expand_plan(**changes: Any) -> ExpandPlan:
    """A plan of 1.2 million messages in three partitions."""
    rows = [
        {
            "partition": number,
            "log_start": 1_000_000,
            "committed": 1_200_000 if number else None,
            "end": 1_600_000,
            "lag": 400_000,
            "lost": 0,
            "start": 1_200_000,
            "oldest_unread_at": "2026-11-20T22:15:00.000000Z",
        }
        for number in range(3)
    ]
    temporary = f"orders.recovery.{ID}"
    plan = {
        "version": 1,
        "kind": "expand",
        "stream": "orders",
        "cluster": "main",
        "topic": "orders",
        "topic_id": "topic-id",
        "group": "service",
        "partition_count": 3,
        "partitions": rows,
        "lag": 1_200_000,
        "lost": 0,
        "temporary": {"topic": temporary, "partitions": 30, "replication": 3},
        "recovery_group": f"service.recovery.{ID}",
        "order": "key",
        "partitioner": "murmur2",
        "isolation": "read_committed",
        "configuration": {"isolation": "read_committed"},
        "other_topics": [],
        "factor": 10,
        "replicas": 3,
        "consumers": 30,
        "rate_per_consumer": 50.0,
        "rate_source": "measured over 15 min from samples",
        "consumed_per_second": 150.0,
        "produced_per_second": 120.0,
        "seconds_to_drain_now": 40_000.0,
        "seconds_to_drain_expanded": 870.0,
        "seconds_to_loss": 36_900.0,
        "loss_by": "time",
        "wins": True,
        "smallest_factor": 2,
        "canary": {"messages": 500, "partitions": {"0": 167, "1": 167, "2": 166}},
        "hold": {"needed": True, "changes": {"retention.ms": {"from": "86400000", "to": "-1"}}},
        "disk": {"needed": 10**9, "usable": 10**11, "enough": True, "told": "1.0 GB of 100.0 GB"},
        "members": ["order-service at 10.0.0.7"],
        "stopped": ["the consumers of group service: local processes `python -m order_service`"],
        "created": [f"topic {temporary}: 30 partitions, 3 copies of each, deletes nothing"],
        "raised": ["retention.ms of orders from 1 d to unlimited"],
        "given_back": [f"topic {temporary} is deleted"],
        "max_lag_at_cutover": 1000,
        "other_groups": ["audit"],
        "launch": {"launcher": "process", "replicas": 3},
        "transactional_prefix": "backlog",
        "approval": "named",
        "options": {"rate": None, "factor": None, "order": None, "start": "earliest", "allow": []},
        "warnings": [],
        "planned_by": {"kind": "os", "user": "planner", "host": "here"},
        "planned_at": "2026-11-21T12:00:00.000000Z",
    }
    return ExpandPlan.read(merge(plan, changes))


def store_expand_plan(workspace: Workspace, **changes: Any) -> Recovery:
    """A planned expansion of the stream `orders`."""
    return keep_plan(workspace, make_expand_plan(**changes))


def make_step(name: str, began: float, took: float | None, *, attempts: int = 1) -> StepRecord:
    """A step that began so many seconds after noon; None is still at it."""
    start = NOON + timedelta(seconds=began)
    end = None if took is None else start + timedelta(seconds=took)
    return StepRecord(ID, name, start, start, end, attempts, {})


def make_burndown(
    seconds: int, *, relayed: int = 4000, handled: int = 1000
) -> list[BurndownSample]:
    """One sample a second of 100,000 messages that are relayed and handled at these rates."""

    def take(second: int) -> BurndownSample:
        moved = min(100_000, relayed * second)
        done = min(moved, handled * second)
        return BurndownSample(
            ID, _after(second), "relay", 100_000 - moved, moved - done, moved, done, 30
        )

    return [take(second) for second in range(seconds + 1)]


def _after(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


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
