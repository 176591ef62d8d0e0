"""Where the page's parts are, as people reach them."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from airflow.sdk.configuration import conf

NAME = "backlogctl"
PREFIX = f"/{NAME}"


def find_recovery_page(recovery_id: str) -> str:
    """The page of a recovery, in Airflow's own frame.

    Relative to this Airflow where its address (`[api] base_url`) is not known here.
    """
    return _frame(f"recoveries/{quote(recovery_id, safe='')}")


def find_run_page(dag_id: str, run_id: str) -> str:
    """The page of what a run planned, in Airflow's own frame."""
    return _frame(f"runs/{quote(dag_id, safe='')}/{quote(run_id, safe='')}")


def find_report(recovery_id: str) -> str:
    """The report of a recovery, a page without a frame: it is printed and kept."""
    return f"{_base()}{PREFIX}/reports/{quote(recovery_id, safe='')}"


def find_question(dag_id: str, run_id: str, task_id: str) -> str:
    """Where Airflow takes the answer to a task's question."""
    place = (
        f"{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}/tasks/{quote(task_id, safe='')}"
    )
    return f"{_base()}/dags/{place}/required_actions"


def _frame(path: str) -> str:
    # Airflow shows in the frame what stands behind the route: the whole path of the page.
    return f"{_base()}/plugin/{NAME}{urlsplit(_base()).path}{PREFIX}/{path}"


def _base() -> str:
    return str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
