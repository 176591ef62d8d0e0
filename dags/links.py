"""Links of tasks to their recovery and its report.

Airflow asks for a link when the task has ended, in the task's process, and keeps it as an XCom.
A task that takes hours, or waits for its approval, gives its links before: `publish_links`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from airflow.sdk import DAG, BaseOperatorLink, conf

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


# A task says in what it returns which recovery it worked on: {"recovery": "r-20261121-0007-…"}.
RECOVERY = "recovery"


class RecoveryLink(BaseOperatorLink):
    """The recovery's page; what the run planned, where the task named no recovery."""

    name = "Recovery"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        if recovery_id := _find_recovery(ti_key):
            return find_recovery_page(recovery_id)
        return _find_published(self, ti_key) or find_run_page(ti_key.dag_id, ti_key.run_id)


class ReportLink(BaseOperatorLink):
    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address; "", which shows no link, where the task named no recovery."""
        if recovery_id := _find_recovery(ti_key):
            return find_report(recovery_id)
        return _find_published(self, ti_key)


RECOVERY_LINK, REPORT_LINK = RecoveryLink(), ReportLink()
LINKS = (RECOVERY_LINK, REPORT_LINK)


def add_links(place: Any) -> Any:
    """Gives both links to a task (an operator, or what calling a `@task` function gave), or to
    each task that a DAG has so far; hands it back.
    """
    for task in place.tasks if isinstance(place, DAG) else [getattr(place, "operator", place)]:
        own = [link for link in task.operator_extra_links if link not in LINKS]
        task.operator_extra_links = (*own, *LINKS)
    return place


def publish_links(task_instance: Any, recovery_id: str) -> None:
    """Shows the links of this task from now on."""
    task_instance.xcom_push(key=RECOVERY_LINK.xcom_key, value=find_recovery_page(recovery_id))
    task_instance.xcom_push(key=REPORT_LINK.xcom_key, value=find_report(recovery_id))


def _find_recovery(ti_key: Any) -> str | None:
    returned = _read(ti_key, "return_value")
    found = returned.get(RECOVERY) if isinstance(returned, Mapping) else None
    return found if isinstance(found, str) and found else None


def _find_published(link: BaseOperatorLink, ti_key: Any) -> str:
    """What a task that failed had published: asking again must not take it back."""
    found = _read(ti_key, link.xcom_key)
    return found if isinstance(found, str) else ""


def _read(ti_key: Any, key: str) -> Any:
    from backlogctl.dags.airflow_internals import XCom

    return XCom.get_value(ti_key=ti_key, key=key)
