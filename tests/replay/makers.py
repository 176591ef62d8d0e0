"""Stored recoveries without Kafka or Spark, for tests of what surrounds the injection."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy
from pydantic import BaseModel

from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.errors import LeaseHeld
from backlogctl.ledger import Owner
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.guards import store_plan as store
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import Plan
from backlogctl.replay.kinds.rebuild.plan import RebuildPlan
from backlogctl.replay.opening import open_workspace
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.spark_backfill.request import CandidateCounts, PartitionOutcome, Proof
from backlogctl.values import Recovery, RecoveryState

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
    """What the record says was done."""
    return [event.action for event in workspace.ledger.events.list(recovery_id)]


def find_detail(workspace: Workspace, recovery_id: str, action: str) -> Mapping[str, Any]:
    """The detail of the last line of that action."""
    lines = [e for e in workspace.ledger.events.list(recovery_id) if e.action == action]
    return lines[-1].detail
