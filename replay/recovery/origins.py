"""Where a plan came from: a run of a scheduler, or nobody but the person at the shell."""

from __future__ import annotations

from pydantic import ValidationError

from backlog.ledger import Ledger
from backlog.values import Recovery
from replay.recovery.plan import Origin

AIRFLOW = "airflow"


def name_origin(dag_id: str, run_id: str, note: str | None = None) -> Origin:
    """What a plan keeps of the Airflow run that made it."""
    return Origin(scheduler=AIRFLOW, dag_id=dag_id, run_id=run_id, note=note)


def find_origin(recovery: Recovery) -> Origin | None:
    """The run of Airflow that planned it, whatever its kind; None where none did."""
    try:
        found = Origin.model_validate(recovery.plan.get("origin"))
    except ValidationError:
        return None
    return found if found.scheduler == AIRFLOW and found.dag_id else None


def list_recoveries_of_run(ledger: Ledger, dag_id: str, run_id: str) -> tuple[Recovery, ...]:
    """The recoveries that one run of Airflow planned, oldest first.

    Raises:
        LedgerError.
    """
    wanted = {"scheduler": AIRFLOW, "dag_id": dag_id, "run_id": run_id}
    return ledger.recoveries.list(origin=wanted)
