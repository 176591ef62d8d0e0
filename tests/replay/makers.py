"""Stored recoveries without Kafka or Spark, for tests of what surrounds the injection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy

from backlog.config import load_config
from backlog.errors import LeaseHeld
from backlog.kafka.ledger_topic import LedgerSnapshot
from backlog.ledger import Owner
from backlog.manifest import hash_value
from backlog.values import Recovery
from replay.approval import approve_plan
from replay.workspace import Workspace

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
    return Workspace.open(load_config(write_config(directory, **document)))


def make_plan(**changes: Any) -> dict[str, Any]:
    """A plan of ten messages in partitions 0 and 1."""
    partition = {"expected": 5, "rebuilt": 5}
    counts = {"expected": 10, "candidates": 10, "rebuilt": 10, "quarantined": 0, "surplus": 0}
    proof = {"rate": 1.0, "compared": 4, "equal_values": 4, "mutable": False}
    return {
        "outcome": {
            "verdict": "exact",
            "reasons": [],
            "counts": counts,
            "partitions": [{"partition": 0, **partition}, {"partition": 1, **partition}],
            "proof": proof,
            "quarantine": {"reasons": {}},
            "fidelity": "restated",
            "chunks": 1,
            "bytes": 1,
        },
        "warnings": [],
        "gaps": [],
        "other_groups": [],
        "deliver": None,
        "options": {"allow": []},
        "approval": "named",
        "off_peak": None,
        "limits": {},
        "ledger_topic": LEDGER.to_json(),
        "transactional_prefix": "frozen",
        "planned_by": {"kind": "os", "user": "planner", "host": "here"},
        **changes,
    }


def store_plan(workspace: Workspace, topic: str = "orders", **changes: Any) -> Recovery:
    """A planned recovery of the stream `orders`."""
    plan = make_plan(**changes)
    return workspace.ledger.recoveries.create(
        "rebuild", "orders", "main", topic, "service", plan, hash_value(plan), (), "ada"
    )


def store_approved(workspace: Workspace, **changes: Any) -> Recovery:
    """An approved recovery."""
    planned = store_plan(workspace, **changes)
    return approve_plan(workspace.ledger, workspace.config, planned, by="ada")


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
