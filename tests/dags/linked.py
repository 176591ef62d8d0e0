"""Prints what Airflow knows of the runbooks' links: a process of its own, without a database."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

import backlogctl.dags
from backlogctl.dags.links import RECOVERY_LINK, REPORT_LINK

RUNBOOKS = Path(backlogctl.dags.__file__).parent / "runbooks"


def list_heavy() -> list[str]:
    """What the plugin has each process of Airflow import, of what it should not."""
    import backlogctl.dags.plugin  # noqa: F401

    heavy = {"backlogctl.monitoring", "backlogctl.replay", "confluent_kafka", "pandas", "pyspark"}
    return sorted(heavy & set(sys.modules))


def list_links() -> dict[str, dict[str, str]]:
    """The links of each task, as the scheduler stores them."""
    found: dict[str, dict[str, str]] = {}
    for name in ("recover_backlog", "nightly_backfill"):
        for dag in runpy.run_path(str(RUNBOOKS / f"{name}.py")).values():
            if isinstance(dag, DAG):
                for task in DagSerialization.to_dict(dag)["dag"]["tasks"]:
                    item = task["__var"]
                    found[f"{dag.dag_id}.{item['task_id']}"] = item.get("_operator_extra_links", {})
    return found


def find_addresses() -> list[list[str]]:
    """Both links of a task, by what it left behind: its result, what it published, nothing."""
    from airflow.sdk.execution_time import xcom

    class Left:
        """What `XCom` would read."""

        values: dict[str, Any]

        @classmethod
        def get_value(cls, *, ti_key: Any, key: str) -> Any:
            return cls.values.get(key)

    xcom.XCom = Left
    key: Any = SimpleNamespace(dag_id="recover_backlog", run_id="manual__2026+00:00/1")
    addresses = []
    for Left.values in (
        {"return_value": {"recovery": "r-20261121-0007"}},
        {RECOVERY_LINK.xcom_key: "page", REPORT_LINK.xcom_key: "report"},
        {"return_value": ["rebuild.plan"]},
    ):
        addresses.append([link.get_link(None, ti_key=key) for link in (RECOVERY_LINK, REPORT_LINK)])
    return addresses


if __name__ == "__main__":
    heavy = list_heavy()
    print(json.dumps({"heavy": heavy, "links": list_links(), "addresses": find_addresses()}))
