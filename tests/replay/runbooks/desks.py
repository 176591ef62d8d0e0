"""A stream with a source table and consumers, on a cluster that is not there; its recoveries."""

from __future__ import annotations

import getpass
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import (
    AIRFLOW,
    Approver,
    RunOrigin,
    acting_as,
    find_identity,
    name_origin,
)
from backlogctl.replay.kinds.expand.plan import ExpandPlan
from backlogctl.replay.kinds.rebuild.plan import RebuildPlan
from backlogctl.values import Cause, Gap, Recovery, RecoveryState
from tests.kit.ledger import create_recovery, make_gap
from tests.kit.recoveries import keep_plan, make_expand_plan, make_rebuild_plan, open_desk

S = RecoveryState
TOPIC_ID = "topic-id"
GROUP = "orders-service"
# The name of a kind that another version of this program knows.
MYSTERY = "mystery"
RUN = name_origin("recover_backlog", "run-1", "INC-4711")
AIRFLOW_USER = Approver(AIRFLOW, "grace", "worker")
SHELL_USER = Approver("os", getpass.getuser(), "laptop")
# The rest of an entry of `status` of a group that reads, where nothing is unread.
QUIET: dict[str, Any] = {
    "group_state": "stable",
    "partitions": [],
    "rhythm": None,
    "unseen": [],
    "seconds_to_drain": None,
    "retention_seconds": None,
    "retention_bytes": None,
}
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
    """A workspace whose stream `orders` can be rebuilt and offloaded."""
    orders = {
        "cluster": "main",
        "topic": "orders",
        "group": GROUP,
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
    group = changes.pop("group", GROUP)
    gap = replace(make_gap(cause=cause, **changes), group=group)
    return desk.ledger.gaps.record(replace(gap, detected_at=at or desk.ledger.now()))


def make_rebuild(**changes: Any) -> RebuildPlan:
    """Of the run `RUN`, as the planner makes it."""
    return make_rebuild_plan(**{"group": GROUP, "origin": RUN, **changes})


def make_expand(**changes: Any) -> ExpandPlan:
    """Of the run `RUN`, as the planner makes it."""
    return make_expand_plan(**{"group": GROUP, "origin": RUN, **changes})


def store(desk: Workspace, kind: str = "rebuild", *gaps: str, **changes: Any) -> Recovery:
    """A planned recovery of `orders`, of the run `RUN` unless `origin` says otherwise."""
    make = make_expand if kind == "expand" else make_rebuild
    return keep_plan(desk, make(**changes), gaps)


def store_unknown(
    desk: Workspace,
    *states: RecoveryState,
    kind: str = MYSTERY,
    origin: RunOrigin | None = RUN,
    **detail: Any,
) -> Recovery:
    """A recovery of `orders` of a kind that this program does not know, in the last state.

    Or of one that it knows, which stops consumers, where nothing reads its plan.
    """
    plan = {} if origin is None else {"origin": origin.model_dump()}
    recovery = create_recovery(desk.ledger, kind, group=GROUP, plan=plan)
    for number, state in enumerate(states, start=1):
        who = str(find_identity())
        if state is S.APPROVED:
            expires = desk.ledger.now() + timedelta(hours=1)
            recovery = desk.ledger.recoveries.approve(
                recovery.id,
                by="Grace",
                identity=who,
                plan_hash=recovery.plan_hash,
                expires_at=expires,
            )
            continue
        told = detail if number == len(states) else {}
        recovery = desk.ledger.recoveries.advance(recovery.id, state, who, told)
    return recovery


def name_states(states: tuple[RecoveryState, ...]) -> str:
    """The id of a case: the state that these lead to."""
    return str(states[-1]) if states else "planned"


def bring(desk: Workspace, recovery: Recovery, *states: RecoveryState, **detail: Any) -> Recovery:
    """Moves it on, the last state with the detail; whoever acts now is the actor."""
    for number, state in enumerate(states, start=1):
        if state is S.APPROVED:
            recovery = approve_plan(desk, recovery, by="Grace")
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
