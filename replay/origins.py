"""Where a plan came from: a run of a scheduler, or nobody but the person at the shell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backlog.ledger import Ledger
from backlog.values import Recovery

AIRFLOW = "airflow"


def describe_origin(dag_id: str, run_id: str, note: str | None = None) -> dict[str, Any]:
    """What a plan keeps of the Airflow run that made it, as `plan["origin"]`."""
    return {"scheduler": AIRFLOW, "dag_id": dag_id, "run_id": run_id, "note": note}


def find_dag(recovery: Recovery) -> str | None:
    """The DAG whose run planned it; None where no run of Airflow did."""
    origin = recovery.plan.get("origin")
    if not isinstance(origin, Mapping) or origin.get("scheduler") != AIRFLOW:
        return None
    dag_id = origin.get("dag_id")
    return dag_id if isinstance(dag_id, str) and dag_id else None


def list_recoveries_of_run(ledger: Ledger, dag_id: str, run_id: str) -> tuple[Recovery, ...]:
    """The recoveries that one run of Airflow planned, oldest first.

    Raises:
        LedgerError.
    """
    wanted = {"scheduler": AIRFLOW, "dag_id": dag_id, "run_id": run_id}
    return ledger.recoveries.list(origin=wanted)
