"""Airflow's API server with rights by name: a process of its own, on an empty database."""

from __future__ import annotations

import socket
from typing import Any
from uuid import uuid4

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

from backlogctl.dags.policies import RECOVER

# Users who may read these DAGs only; all others as their role says.
LIMITED = {"tokyo": {"nights_in_tokyo"}, "stranger": {"of_another_team"}}


class NamedRights(SimpleAuthManager):
    """The simple auth manager's roles cannot tell one DAG from another."""

    def is_authorized_dag(self, *, user: Any, details: Any = None, **asked: Any) -> bool:
        """As the role says, but for the limited."""
        allowed = LIMITED.get(user.username)
        if allowed is not None and (details is None or details.id not in allowed):
            return False
        return super().is_authorized_dag(user=user, details=details, **asked)


# A run that had nothing to do, and what came of it.
NOTED = "manual__2026-11-21T12:00:00+00:00"
NOTE = "nothing to do: orders reads; the action `expand` drains what is <b>unread</b> all the same"


# One that waits for the answer to its question.
ASKED = "manual__2026-11-21T10:00:00+00:00"


def _keep_runs() -> None:
    from airflow.models.dagrun import DagRun
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import insert

    with create_session() as session:
        runs = {
            run_id: DagRun(dag_id=RECOVER, run_id=run_id, run_type="manual", state=state)
            for run_id, state in ((NOTED, DagRunState.SUCCESS), (ASKED, DagRunState.RUNNING))
        }
        session.add_all(runs.values())
        runs[NOTED].note = NOTE
        session.flush()
        task = {"dag_id": RECOVER, "run_id": ASKED, "task_id": "rebuild.approve", "id": uuid4()}
        session.execute(insert(TaskInstance).values(state="deferred", pool="default_pool", **task))
        session.add(HITLDetail(ti_id=task["id"], options=["Approve", "Reject"], subject="a plan"))


def serve() -> None:
    """Prints the port, then serves until it is stopped."""
    import uvicorn
    from airflow.utils.db import initdb

    initdb()
    _keep_runs()
    from airflow.api_fastapi.main import app

    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"port {listener.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app, log_level="warning")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    serve()
