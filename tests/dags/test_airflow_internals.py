"""What the runbooks use of Airflow beside its public interface, and Airflows they were not made for."""

from __future__ import annotations

import ast
import importlib
import logging
import re
import runpy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import structlog
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG, Context
from airflow.serialization.serialized_objects import DagSerialization
from packaging.version import Version
from sqlalchemy.orm import make_transient_to_detached

from backlogctl.dags import airflow_internals, notes, plugin
from backlogctl.dags.airflow_internals import (
    LOWEST,
    NEWEST,
    PARTS,
    Side,
    find_airflow,
    find_unsuited,
)
from backlogctl.dags.bundle import RUNBOOKS
from backlogctl.dags.task_context import RunbookRefusal
from backlogctl.dags.tasks import refuse_unsuited
from tests.dags.conftest import task_log
from tests.kit.processes import ROOT

# What Airflow's "Public Interface" names; of providers, their operators and hooks.
PUBLIC = ("sdk", "sdk.exceptions", "plugins_manager", "listeners", "triggers.base")
OF_PROVIDERS = re.compile(r"airflow\.providers\.[a-z.]+\.(operators|hooks)\.")
ADAPTER = ROOT / "dags" / "airflow_internals.py"


def list_imports(source: str) -> dict[str, str]:
    """Names taken from Airflow, with the modules they are of."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("airflow."):
            found |= {alias.name: str(node.module) for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found |= {name: name for name in names if f"{name}.".startswith("airflow.")}
    return found


def list_private(source: str) -> list[str]:
    public = {f"airflow.{name}" for name in PUBLIC}
    return sorted(
        f"{module}.{name}"
        for name, module in list_imports(source).items()
        if module not in public and not OF_PROVIDERS.match(module)
    )


def test_one_file_has_all_private_parts() -> None:
    for path in sorted((ROOT / "dags").rglob("*.py")):
        if path != ADAPTER:
            private = list_private(path.read_text())
            assert not private, f"{path}: {private}; take them from {ADAPTER.name}"


def test_a_private_part_is_noticed_wherever_it_is() -> None:
    source = """
import airflow.settings
from airflow.sdk import DAG
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.providers.standard.triggers.hitl import HITLTrigger
def ask():
    from airflow.models.dagrun import DagRun
"""
    private = ["models.dagrun.DagRun", "providers.standard.triggers.hitl.HITLTrigger"]
    assert list_private(source) == [
        f"airflow.{name}" for name in [*private, "settings.airflow.settings"]
    ]


def test_this_airflow_has_every_part_that_the_table_names() -> None:
    assert list_imports(ADAPTER.read_text()) == {name: part.module for name, part in PARTS.items()}
    assert {side: find_unsuited(side) for side in Side} == dict.fromkeys(Side, "")
    assert Version(LOWEST) <= Version(find_airflow()) <= Version(NEWEST)
    for name, part in PARTS.items():
        assert Version(part.since) <= Version(LOWEST)
        assert part.made_late or getattr(airflow_internals, name) is not None


def test_the_ranges_are_those_of_the_package() -> None:
    package = (ROOT / "pyproject.toml").read_text()
    lowest = LOWEST.removesuffix(".0")
    assert f'"apache-airflow>={lowest},<4"' in package
    page = (ROOT / "docs" / "deployment.md").read_text()
    assert LOWEST in page
    assert NEWEST in page


# An Airflow that has not what is needed.


def lose_part(monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    """As a later version would have it; the name in full."""
    part = PARTS[name]
    gone = SimpleNamespace(**{other: None for other in PARTS if other != name})
    known = importlib.import_module
    monkeypatch.setattr(
        airflow_internals,
        "import_module",
        lambda asked: gone if asked == part.module else known(asked),
    )
    return f"{part.module}.{name}"


def be(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(airflow_internals, "find_airflow", lambda: version)


def make_task_context() -> Context:
    return cast("Context", {"ti": MagicMock(try_number=1, max_tries=2)})


def find_hook(task: Any) -> Any:
    """What a task does before its work."""
    mapped = getattr(task, "partial_kwargs", None)
    return mapped["pre_execute"] if mapped else task._pre_execute_hook


def run_hook(hook: Any) -> str:
    """What the log of a task says that does not come to its work."""
    with task_log() as out:
        try:
            hook(make_task_context())
        except RunbookRefusal:
            structlog.get_logger().exception("Task failed with exception")
    return out.getvalue()


def load_runbooks() -> dict[str, DAG]:
    dags = [runpy.run_path(str(file))["dag"] for file in sorted(RUNBOOKS.glob("*.py"))]
    return {dag.dag_id: dag for dag in dags}


TooOld = Callable[[pytest.MonkeyPatch], Any]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda patch: be(patch, "3.2.2"), "Airflow 3.2.2 is too old"),
        (lambda patch: lose_part(patch, "CreateHITLDetailPayload"), "asks a person about a plan"),
        (
            lambda patch: patch.delattr(airflow_internals.HITLTrigger, "_handle_timeout"),
            "HITLTrigger._handle_timeout",
        ),
    ],
    ids=["old", "without a function", "without a method"],
)
def test_fault_154_with_an_unsuited_airflow_no_task_works(
    monkeypatch: pytest.MonkeyPatch, change: TooOld, told: str
) -> None:
    change(monkeypatch)
    dags = load_runbooks()
    assert len(dags) == 5
    for dag in dags.values():
        assert DagSerialization.to_dict(dag)
        for task in dag.tasks:
            if task.task_id.endswith(".restore_layout"):
                continue  # whoever was stopped is started by any Airflow
            said = run_hook(find_hook(task))
            assert told in said, task.task_id
            assert f"Airflow {LOWEST}" in said
            assert "Traceback" not in said


def test_fault_154_consumers_are_started_by_any_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, "3.2.2")
    task = load_runbooks()["recover_backlog"].get_task("expand.restore_layout")
    assert find_hook(task) is None


def test_fault_154_a_newer_airflow_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    be(monkeypatch, "3.9.0")
    refuse_unsuited(make_task_context())
    assert f"Airflow 3.9.0 is newer than {NEWEST}" in caplog.text
    caplog.clear()
    runpy.run_path(str(ROOT / "dags" / "tasks.py"))
    assert f"Airflow 3.9.0 is newer than {NEWEST}" in caplog.text, "the DAG processor says it too"


def test_fault_154_without_its_parts_there_is_no_page_and_no_note(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost = lose_part(monkeypatch, "requires_access_dag")
    page = cast("Any", plugin._make_app())
    assert page.status_code == 503
    assert f"has no {lost}, with which the API server asks who may see" in page.body.decode()
    monkeypatch.undo()

    lost = lose_part(monkeypatch, "XComModel")
    caplog.set_level(logging.WARNING)
    notes.on_dag_run_failed(
        dag_run=cast("Any", SimpleNamespace(dag_id="recover_backlog", run_id="r"))
    )
    assert f"no note of run r: Airflow {find_airflow()} has no {lost}" in caplog.text
    with pytest.raises(ImportError, match=f"has no {lost}"):
        airflow_internals.XComModel  # noqa: B018


def test_a_run_that_no_scheduler_ends_has_no_note() -> None:
    """`airflow dags test` ends it without a session: no fault of ours is in its output."""
    run = DagRun(dag_id="nightly_audit", run_id="r")
    make_transient_to_detached(run)
    notes.on_dag_run_success(dag_run=run)
