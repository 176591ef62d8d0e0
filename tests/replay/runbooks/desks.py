"""A stream with a source table and consumers, on a cluster that is not there; its recoveries."""

from __future__ import annotations

import getpass
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from backlog.manifest import hash_value
from backlog.values import Cause, Gap, Recovery, RecoveryState
from replay.approval import approve_plan
from replay.identity import Identity, acting_as
from replay.origins import AIRFLOW, describe_origin
from replay.workspace import Workspace
from tests.backlog.ledger.makers import make_gap
from tests.replay.expand_makers import make_expand_plan
from tests.replay.makers import make_plan, open_desk

S = RecoveryState
TOPIC_ID = "topic-id"
RUN = describe_origin("recover_backlog", "run-1", "INC-4711")
AIRFLOW_USER = Identity(AIRFLOW, "grace", "worker")
SHELL_USER = Identity("os", getpass.getuser(), "laptop")
SOURCE = {
    "database": "shop",
    "table": "orders",
    "primary_key": ["order_id"],
    "time_column": "updated_at",
    "message": {"key": "order_id", "value": {"json": ["order_id"]}},
    "identity": {"row": "order_id", "message": "key"},
    "stale": "restate",
}


def open_shop(directory: Path, guards: dict[str, Any] | None = None, **stream: Any) -> Workspace:
    """A workspace whose stream `orders` can be rebuilt and drained."""
    orders = {
        "cluster": "main",
        "topic": "orders",
        "group": "orders-service",
        "source": SOURCE,
        "consumers": {"launcher": "manual", "replicas": 3},
        **stream,
    }
    return open_desk(
        directory,
        sources={"shop": {"url": "sqlite:///shop.db", "timezone": "Asia/Shanghai"}},
        streams={"orders": {n: v for n, v in orders.items() if v is not None}},
        guards=guards or {},
    )


def lose(desk: Workspace, at: datetime | None = None, **changes: Any) -> Gap:
    """An open gap of the stream, found at that time."""
    cause = changes.pop("cause", Cause.EXPIRED)
    group = changes.pop("group", "orders-service")
    gap = replace(make_gap(cause=cause, **changes), group=group)
    return desk.ledger.gaps.record(replace(gap, detected_at=at or desk.ledger.now()))


def make_rebuild_plan(**changes: Any) -> dict[str, Any]:
    """As the planner makes it, with every figure that is shown."""
    plan = make_plan(planned_at="2026-11-21T12:00:00.000000Z", origin=RUN)
    plan["outcome"]["counts"] |= {"surviving": 0, "consumed": 0, "already_injected": 0}
    plan["outcome"]["proof"] |= {"matched": 4}
    return {**plan, **changes}


def store(desk: Workspace, kind: str = "rebuild", *gaps: str, **changes: Any) -> Recovery:
    """A planned recovery of `orders`, of the run `RUN` unless `origin` says otherwise."""
    if kind == "expand":
        plan = make_expand_plan(**{"origin": RUN, **changes})
    else:
        plan = make_rebuild_plan(**changes)
    return desk.ledger.recoveries.create(
        kind, "orders", "main", "orders", "orders-service", plan, hash_value(plan), gaps, "ada"
    )


def bring(desk: Workspace, recovery: Recovery, *states: RecoveryState, **detail: Any) -> Recovery:
    """Moves it on, the last state with the detail; whoever acts now is the actor."""
    from replay.identity import find_identity

    for number, state in enumerate(states, start=1):
        if state is S.APPROVED:
            recovery = approve_plan(desk.ledger, desk.config, recovery, by="Grace")
            continue
        told = detail if number == len(states) else {}
        recovery = desk.ledger.recoveries.advance(recovery.id, state, str(find_identity()), told)
    return recovery


def bring_by_airflow(
    desk: Workspace, recovery: Recovery, *states: RecoveryState, **detail: Any
) -> Recovery:
    """The same, by a task."""
    with acting_as(AIRFLOW_USER):
        return bring(desk, recovery, *states, **detail)
