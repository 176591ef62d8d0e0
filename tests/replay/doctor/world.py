"""A workspace around one topic and group, to be examined."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from backlogctl.config import load_config
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
from backlogctl.replay.doctor.stream import examine_stream
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.opening import open_workspace

SOURCE: dict[str, Any] = {
    "database": "shop",
    "table": "orders",
    "primary_key": ["order_id"],
    "time_column": "updated_at",
    "message": {"key": "order_id", "value": {"json": ["order_id"]}},
    "identity": {"row": "order_id", "message": "key"},
}


def make_workspace(
    directory: Path,
    properties: Mapping[str, str],
    topic: str = "orders",
    group: str = "service",
    *,
    source: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Workspace:
    """One stream, `orders`."""
    stream: dict[str, Any] = {"cluster": "main", "topic": topic, "group": group}
    if source is not None:
        stream["source"] = dict(source)
    document: dict[str, Any] = {
        "ledger": f"sqlite:///{directory}/ledger.db",
        "clusters": {"main": dict(properties)},
        "sources": {"shop": {"url": f"sqlite:///{directory}/shop.db"}},
        "streams": {"orders": stream},
        **sections,
    }
    (directory / "backlog.yaml").write_text(json.dumps(document))
    return open_workspace(load_config(directory / "backlog.yaml"))


def make_table(directory: Path, *statements: str) -> None:
    """The source's database."""
    with closing(sqlite3.connect(directory / "shop.db")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def examine(workspace: Workspace) -> dict[str, CheckFinding]:
    """By check; of several the worst."""
    found: dict[str, CheckFinding] = {}
    for one in examine_stream(workspace, workspace.config.stream("orders")).findings:
        found.setdefault(one.check, one)
    return found


def list_levels(found: Mapping[str, CheckFinding]) -> dict[str, CheckLevel]:
    return {name: one.level for name, one in found.items()}
