"""Plans as version 1 wrote them into ledgers, before plans were models: still shown and run."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from backlog.errors import Refused
from backlog.hashing import hash_value
from backlog.values import Recovery, RecoveryState
from replay.cli import main
from replay.console.page.app import make_page
from replay.kinds import KINDS
from replay.kinds.expand.plan import ExpandPlan
from replay.kinds.expand.planning import fingerprint_expansion
from replay.kinds.rebuild.plan import RebuildPlan
from replay.kinds.rebuild.planning import fingerprint_stream
from replay.recovery.approval import approve_plan, check_approval, check_hash
from replay.recovery.plan import find_changes
from replay.recovery.workspace import Workspace
from replay.telling.documents import describe_recovery, tell_plan
from replay.telling.plans import draw_plan
from tests.replay.expand_makers import make_expand_plan
from tests.replay.makers import make_recovery, open_desk
from tests.replay.report_makers import report

STORED = Path(__file__).parent / "stored"
NAMES = ("rebuild", "expand")
SOURCE = {
    "database": "shop",
    "table": "orders",
    "time_column": "updated_at",
    "mutable": False,
    "stale": "restate",
    "primary_key": ["order_id"],
    "identity": {"message": "key", "row": "order_id"},
    "message": {
        "key": "order_id",
        "value": {"json": ["order_id", "user_id", "status", "amount", "updated_at"]},
    },
    "consumed": {"database": "shop", "table": "processed", "column": "order_id"},
}
CONSUMERS = {
    "launcher": "process",
    "command": ["python", "-m", "order_service", "--topic", "{topic}"],
    "replicas": 2,
    "environment": {"DB_PASSWORD": "${env:DB_PASSWORD}"},
    "directory": "/srv/shop",
}


def load(kind: str) -> dict[str, Any]:
    """`plan` and `plan_hash` as they are in a ledger."""
    document: dict[str, Any] = json.loads((STORED / f"{kind}-1.json").read_text())
    return document


def keep(desk: Workspace, kind: str) -> Recovery:
    """The plan in a ledger, as it was stored."""
    document = load(kind)
    traits = desk.kinds.get(kind).traits
    return desk.ledger.recoveries.create(
        kind,
        "orders",
        "main",
        "orders",
        "service",
        document["plan"],
        document["plan_hash"],
        (),
        "os:ada@ops-1",
        stops_consumers=traits.stops_consumers,
        holds_when_failed=traits.holds_when_failed,
    )


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace whose stream is configured as it was when the plans were made."""
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    stream = {
        "cluster": "main",
        "topic": "orders",
        "group": "service",
        "deliver": "topic",
        "source": SOURCE,
        "consumers": CONSUMERS,
    }
    sources = {"shop": {"url": "sqlite:///shop.db"}}
    return open_desk(tmp_path, sources=sources, streams={"orders": stream})


@pytest.mark.parametrize("kind", NAMES)
def test_the_model_reads_it_and_the_hash_holds_on_the_stored_text(
    desk: Workspace, kind: str
) -> None:
    document, recovery = load(kind), keep(desk, kind)
    stored = desk.ledger.recoveries.get(recovery.id)
    assert dict(stored.plan) == document["plan"]
    assert hash_value(dict(stored.plan)) == document["plan_hash"] == stored.plan_hash
    check_hash(stored)
    plan = desk.plan_of(stored)
    assert plan.version == 1
    assert str(plan.planned_by) == "os:ada@ops-1"
    with pytest.raises(Refused, match="not the one its hash was made of"):
        check_hash(replace(stored, plan={**stored.plan, "topic": "others"}))


def test_a_rebuild_keeps_what_it_says(desk: Workspace) -> None:
    stored = load("rebuild")["plan"]
    assert "rate" in stored["outcome"]["proof"], "what newer plans do not have"
    assert "seconds" not in stored["outcome"], "what newer plans do have"
    plan = desk.plan_of(keep(desk, "rebuild"))
    assert isinstance(plan, RebuildPlan)
    assert plan.outcome.proof.rate == stored["outcome"]["proof"]["rate"]
    assert plan.outcome.counts.shortfall == 2
    assert plan.slots == (0, 1, 2)
    assert plan.topic_end_offsets == {0: 93, 1: 69, 2: 78}
    assert plan.ledger_topic is not None
    assert plan.ledger_topic.ends == {0: 4, 1: 0}
    assert str(plan.off_peak) == "00:30–06:00 Asia/Shanghai"
    assert plan.allowed == ("ledger",)
    assert plan.origin is not None
    assert (plan.origin.scheduler, plan.origin.dag_id) == ("airflow", "recover_backlog")
    assert [(gap.partition, gap.start, gap.end) for gap in plan.gaps] == [
        (0, 27, 60),
        (1, 20, 45),
        (2, 13, 45),
    ]
    added = (
        *("evidence", "uncertain", "displacement", "slots", "partitions"),
        "counts.outside",
    )
    assert differ(stored, plan.dump()) == {
        "others_unknown",
        "target",
        "gaps",
        "options.to",
        "outcome.proof.rate",
        "outcome.seconds",
        *(f"outcome.{name}" for name in added),
    }


def test_an_expansion_keeps_what_it_says(desk: Workspace) -> None:
    stored = load("expand")["plan"]
    plan = desk.plan_of(keep(desk, "expand"))
    assert isinstance(plan, ExpandPlan)
    assert (plan.lag, plan.consumers, plan.temporary.partitions) == (680, 20, 30)
    assert plan.canary.partitions == {0: 291, 1: 142, 2: 67}
    assert (plan.partitions[2].committed, plan.partitions[2].oldest_unread_at) == (None, None)
    assert plan.hold.changes["retention.ms"].to == "-1"
    assert plan.off_peak is None
    assert differ(stored, plan.dump()) == {
        "off_peak",
        "options.try_one",
        "others_unknown",
        "tried",
    }


def differ(before: Any, after: Any, at: str = "") -> set[str]:
    """Where two documents differ."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return set() if before == after else {at}
    found = set()
    for name in before.keys() | after.keys():
        here = f"{at}.{name}" if at else name
        if name in before and name in after:
            found |= differ(before[name], after[name], here)
        else:
            found.add(here)
    return found


@pytest.mark.parametrize("kind", NAMES)
def test_it_is_shown_everywhere(
    desk: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    recovery = keep(desk, kind)
    told = {
        "rebuild": ("short: 2 lost offsets have no rebuilt message", "98.9% of 90 survivors"),
        "expand": ("drained in 2 s, by 20 consumers", "retention.ms of orders from 1 d"),
    }[kind]
    out = io.StringIO()
    Console(file=out, width=100).print(draw_plan(recovery, tell_plan(desk, recovery)))
    page = TestClient(make_page(desk, board=None)).get(f"/recoveries/{recovery.id}").text
    document, printed = report(desk, recovery)
    assert document["record"]["plan_holds"]
    for sentence in told:
        assert sentence in out.getvalue()
        assert sentence in page
        assert sentence.removeprefix("short: ") in printed.text
    described = describe_recovery(desk, recovery)
    assert "problem" not in described
    assert described["plan_hash"] == load(kind)["plan_hash"]
    assert described["planned_by"] == {"kind": "os", "user": "ada", "host": "ops-1"}
    monkeypatch.chdir(tmp_path)
    assert main(["show", recovery.id]) == 0
    assert told[0] in capfd.readouterr().out


@pytest.mark.parametrize("kind", NAMES)
def test_it_is_approved_and_may_run(desk: Workspace, kind: str) -> None:
    planned = keep(desk, kind)
    approved = approve_plan(desk, planned, by="grace")
    check_approval(approved)
    assert approved.approved_hash == load(kind)["plan_hash"]
    plan = desk.plan_of(approved)
    stream = desk.config.streams["orders"]
    now = (
        fingerprint_stream(stream)
        if kind == "rebuild"
        else fingerprint_expansion(desk.config, stream)
    )
    assert find_changes(plan.configuration, now) == [], "it is not stale by itself"
    running = desk.ledger.recoveries.advance(approved.id, RecoveryState.RUNNING, "os:ada@ops-1")
    assert KINDS.find(running).read_plan(running) == plan


class PlanOfBefore(ExpandPlan):
    """As a version before this one kept it: with the speed under another name."""

    version: int = 0
    speed: float


def test_a_plan_of_an_older_version_is_read_by_its_own_model(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And refused by name where that model is not there, or does not fit."""
    stored = {**make_expand_plan().dump(), "version": 0, "speed": 5.0}
    old = replace(make_recovery(make_expand_plan()), plan=stored)
    with pytest.raises(Refused, match="it has version 0, and this program knows 1"):
        desk.plan_of(old)
    monkeypatch.setattr(type(desk.kind_of(old)), "older_models", {0: PlanOfBefore})
    found = desk.plan_of(old)
    assert isinstance(found, PlanOfBefore)
    assert (found.version, found.speed) == (0, 5.0)
    assert type(desk.plan_of(make_recovery(make_expand_plan()))) is ExpandPlan
    with pytest.raises(Refused, match="speed is required"):
        desk.plan_of(replace(old, plan={n: v for n, v in stored.items() if n != "speed"}))
