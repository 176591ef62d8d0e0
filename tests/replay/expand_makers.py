"""Stored expansions without Kafka, and what a run of one writes into the ledger."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from backlogctl.ledger.measurements import BurndownSample
from backlogctl.ledger.steps import StepRecord
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.kinds.expand.plan import ExpandPlan
from backlogctl.values import Recovery
from tests.kernel.ledger.makers import NOON
from tests.replay.makers import keep_plan, merge

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
