"""A DAG for the tests of the tests' own client: it asks, then it works."""

from __future__ import annotations

import time

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, task


@task
def work(seconds: str) -> str:
    """Waits."""
    print("it works", flush=True)
    time.sleep(float(seconds))
    return "worked"


with DAG("trial", schedule=None, params={"seconds": 0}) as dag:
    ApprovalOperator(task_id="ask", subject="May it?") >> work("{{ params.seconds }}")
