"""The tasks of `recover_backlog`: a group for each kind, one kind after the other."""

from __future__ import annotations

import runpy
from itertools import pairwise
from typing import Any

import pytest
from airflow.sdk import DAG

import backlogctl_airflow.bundle
from backlogctl_airflow.policies import EXPAND_POOL, SPARK_POOL
from replay import kinds as registered
from replay.kinds import KINDS, OFFLOAD
from replay.kinds.expand.kind import Expand
from replay.kinds.rebuild.kind import Rebuild
from replay.recovery.kind import Kind, Registry

FILE = backlogctl_airflow.bundle.RUNBOOKS / "recover_backlog.py"


class Siphon(Expand):
    """A third kind, which stops consumers."""

    name = "siphon"


class Mirror(Rebuild):
    """A third kind, which stops nobody."""

    name = "mirror"


def load(monkeypatch: pytest.MonkeyPatch, kinds: Registry) -> DAG:
    monkeypatch.setattr(registered, "KINDS", kinds)
    dag = runpy.run_path(str(FILE))["dag"]
    assert isinstance(dag, DAG)
    return dag


@pytest.mark.parametrize(
    "kinds",
    [
        tuple(KINDS),
        (*KINDS, Siphon()),
        (*KINDS, Mirror()),
        (Siphon(), *reversed(tuple(KINDS))),
        (Mirror(),),
    ],
    ids=lambda kinds: "-".join(kind.name for kind in kinds),
)
def test_every_kind_has_its_tasks_after_those_of_the_kind_before(
    monkeypatch: pytest.MonkeyPatch, kinds: tuple[Kind[Any, Any], ...]
) -> None:
    dag = load(monkeypatch, Registry(kinds))
    kinds = tuple(kind for kind in kinds if kind.name != OFFLOAD.name)
    stopping = [kind.name for kind in kinds if kind.traits.stops_consumers]
    expected = {
        f"{kind.name}.{task}" for kind in kinds for task in ("plan", "approve", "carry_out")
    }
    expected |= {f"{name}.restore_layout" for name in stopping} | {"choose", "report"}
    assert set(dag.task_ids) == expected

    names = [kind.name for kind in kinds]
    # A branch chooses among what comes right after it.
    assert dag.get_task("choose").downstream_task_ids == {f"{name}.plan" for name in names}
    rules = [dag.get_task(f"{name}.plan").trigger_rule.value for name in names]
    assert rules == ["all_success", *["none_failed"] * (len(names) - 1)]
    for before, after in pairwise(names):
        assert f"{before}.carry_out" in dag.get_task(f"{after}.plan").upstream_task_ids
    for name in names:
        approve, work = dag.get_task(f"{name}.approve"), dag.get_task(f"{name}.carry_out")
        assert approve.upstream_task_ids == {f"{name}.plan"}
        assert f"{name}.approve" in work.upstream_task_ids
        assert approve.is_setup == (name in stopping)
    for name in stopping:
        restore = dag.get_task(f"{name}.restore_layout")
        assert restore.is_teardown
        assert restore.on_failure_fail_dagrun
        assert restore.upstream_task_ids == {f"{name}.approve", f"{name}.carry_out"}
    report = dag.get_task("report")
    assert report.is_teardown
    left = {f"{name}.restore_layout" for name in stopping}
    assert report.upstream_task_ids >= left | {f"{names[-1]}.carry_out"}


def test_the_form_has_the_same_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    dag = load(monkeypatch, Registry([*KINDS, Siphon()]))
    action = dag.params.get_param("action")
    assert action.schema["enum"] == ["auto", "expand", "rebuild", "redrive", "siphon"]


def test_a_offload_has_a_dag_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may trigger recoveries need not be allowed to delete messages. It needs a Spark's room,
    though it stops consumers."""
    monkeypatch.setenv(SPARK_POOL, "spark")
    monkeypatch.setenv(EXPAND_POOL, "expand")
    recover = runpy.run_path(str(FILE))["dag"]
    assert not [name for name in recover.task_ids if name.startswith("offload.")]
    assert "discard" not in recover.params
    dag = runpy.run_path(str(FILE.with_name("emergency_offload.py")))["dag"]
    own = {f"offload.{task}" for task in ("plan", "approve", "carry_out", "restore_layout")}
    assert set(dag.task_ids) == own | {"choose", "report"}
    assert dag.get_task("offload.restore_layout").is_teardown
    action = dag.params.get_param("action")
    assert (action.value, action.schema["enum"]) == ("offload", ["offload"])
    assert {"discard", "allow"} < set(dag.params)
    assert "since" not in dag.params
    for task in ("offload.plan", "offload.carry_out"):
        assert dag.get_task(task).pool == "spark"
    pools = {name: recover.get_task(f"{name}.plan").pool for name in ("expand", "redrive")}
    assert pools == {"expand": "expand", "redrive": "spark"}
