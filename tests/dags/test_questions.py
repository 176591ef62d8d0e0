"""What a question shows is what its answer counts for, however often the same run asks."""

from __future__ import annotations

import os

from backlogctl.config import load_config
from backlogctl.dags.policies import DEPLOYMENT
from backlogctl.replay.engine.approval import reject_plan
from backlogctl.replay.engine.plan import name_origin
from backlogctl.replay.opening import open_workspace
from backlogctl.values import RecoveryState
from tests.dags.airflow import Airflow, DagRun
from tests.dags.slots import Slots
from tests.kit.recoveries import keep_plan, make_rebuild_plan

ASK = "rebuild.approve"


def read_deployment(airflow: Airflow) -> str:
    """The id that this Airflow has: its scheduler made it."""
    return str(airflow.get(f"/api/v2/variables/{DEPLOYMENT}")["value"])


def test_a_run_that_is_cleared_does_not_ask_about_another_plan_under_the_first_ones_text(
    airflow: Airflow, slots: Slots
) -> None:
    """Airflow never writes a question's text again; a new run asks."""
    workspace = open_workspace(load_config(slots.config, dict(os.environ)))
    stream, run = slots.take("asked"), DagRun("recover_backlog", "asked-twice")
    origin = name_origin(run.dag_id, run.run_id, deployment=read_deployment(airflow))
    names = {"stream": stream, "topic": stream, "group": f"of-{stream}", "origin": origin}
    first = keep_plan(workspace, make_rebuild_plan(**names))
    body = {
        "dag_run_id": run.run_id,
        "logical_date": None,
        "conf": {"stream": stream, "action": "rebuild"},
    }
    begun = airflow.client("oncall").post(f"/api/v2/dags/{run.dag_id}/dagRuns", json=body)
    assert begun.is_success, begun.text
    assert first.id in airflow.await_question(run, ASK)["subject"]
    airflow.await_parked(run, ASK)
    reject_plan(workspace, workspace.ledger.recoveries.get(first.id), by="ada", reason="no")
    # With SQLite a clear can end the scheduler while it is at work on the same tasks.
    airflow.await_run(run, {"success", "failed"})

    second = keep_plan(workspace, make_rebuild_plan(**names))
    airflow.clear(run, "rebuild.plan")
    airflow.await_another_try(run, ASK, 1)
    airflow.await_state(run, ASK, {"failed"})
    told = airflow.xcom(run, ASK, "reason")
    assert told.startswith(f"recovery {second.id}: ")
    assert f"Trigger a new run with *existing plan* {second.id}" in told
    assert workspace.ledger.recoveries.get(second.id).state is RecoveryState.PLANNED
