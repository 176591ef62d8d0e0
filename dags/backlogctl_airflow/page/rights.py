"""Who may look: Airflow's user, with the right to read the DAG that recovers.

Airflow does not ask for a login before what a plugin serves: each route asks here.
"""

from __future__ import annotations

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from starlette.exceptions import HTTPException
from starlette.requests import Request

from backlog.errors import BacklogError
from backlogctl_airflow.policies import RECOVER
from replay.recovery.origins import find_origin

require_user = get_user
# All streams and recoveries: for those who may read the DAG of all recoveries.
require_page = requires_access_dag("GET", param_dag_id=RECOVER)
# What a run of the DAG in the path planned: for those who may read its runs.
require_run = requires_access_dag("GET", DagAccessEntity.RUN)


def require_recovery(request: Request, recovery_id: str, user: GetUserDep) -> None:
    """The right to the page, or to the runs of the DAG that planned this one recovery.

    Raises:
        HTTPException: 403; it does not reveal whether the recovery exists.
    """
    try:
        require_page(request, user)
    except HTTPException:
        dag_id = _find_dag(request, recovery_id)
        if dag_id is None:
            raise
        requires_access_dag("GET", DagAccessEntity.RUN, param_dag_id=dag_id)(request, user)


def _find_dag(request: Request, recovery_id: str) -> str | None:
    try:
        ledger = request.app.state.cache.open().workspace.ledger
        origin = find_origin(ledger.recoveries.get(recovery_id))
        return None if origin is None else origin.dag_id
    except BacklogError:
        return None
