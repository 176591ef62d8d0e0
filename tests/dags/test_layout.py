"""The tasks of `recover_backlog`: a group for each kind, one kind after the other."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowFailException

import backlogctl.dags.bundle
from backlogctl.dags.policies import EXPAND_POOL, SPARK_POOL
from backlogctl.dags.task_context import opened
from backlogctl.replay import kinds as registered
from backlogctl.replay.engine.kind import Kind, Registry
from backlogctl.replay.kinds import KINDS, OFFLOAD
from backlogctl.replay.kinds.expand.kind import ExpandKind
from backlogctl.replay.kinds.rebuild.kind import Rebuild

FILE = backlogctl.dags.bundle.RUNBOOKS / "recover_backlog.py"


class Siphon(ExpandKind):
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


# Every DAG loads, whatever backlogctl.yaml is like; the first task then says what is wrong.

# One process for all files: Airflow takes seconds to import.
_LOAD = """
import json, os, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
from backlogctl.dags.bundle import RUNBOOKS

found = {}
for file in sys.argv[1:]:
    os.environ["BACKLOG_CONFIG"] = file
    bag = DagBag(str(RUNBOOKS), bundle_name="backlogctl")
    form = bag.dags["recover_backlog"].params.get_param("stream") if bag.dags else None
    found[file] = {
        "errors": list(bag.import_errors.values()),
        "dags": sorted(bag.dags),
        "streams": form.schema.get("enum") if form else None,
        "told": form.schema.get("description_md") if form else None,
        "stored": [bool(DagSerialization.to_dict(dag)) for dag in bag.dags.values()],
    }
# Airflow imports SQLAlchemy itself; our ledger is what would use it.
heavy = {"backlogctl.ledger", "confluent_kafka", "numpy", "pandas", "psycopg", "pyarrow", "pyspark"}
heavy &= set(sys.modules)
print("FOUND" + json.dumps({"files": found, "heavy": sorted(heavy)}))
"""
_STREAM = {"cluster": "main", "topic": "orders", "group": "g"}


def write(path: Path, document: object) -> str:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def night(zone: str) -> dict[str, Any]:
    return {**_STREAM, "source": {}, "off_peak": {"from": "01:00", "to": "05:00", "timezone": zone}}


def test_dags_load_whatever_the_file_is_like(tmp_path: Path) -> None:
    good = write(
        tmp_path / "good.yaml",
        {"streams": {"a": night("Asia/Tokyo"), "b": night("Europe/Berlin"), "c": _STREAM}},
    )
    no_yaml = write(tmp_path / "bad.yaml", "streams: [")
    empty = write(tmp_path / "empty.yaml", {"streams": {}})
    missing = str(tmp_path / "missing.yaml")
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, good, no_yaml, empty, missing],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.split("FOUND")[1])
    assert told["heavy"] == [], "the scheduler reads the files again and again"
    found = told["files"]
    usual = [
        *("detect_backlog", "emergency_offload"),
        *("nightly_audit", "nightly_backfill", "recover_backlog"),
    ]
    for file in (good, no_yaml, empty, missing):
        assert not found[file]["errors"]
        assert found[file]["dags"] == usual, "ids for ever: a new one would come up paused"
    for file in (no_yaml, empty, missing):
        assert found[file]["streams"] is None
    assert "missing.yaml" in found[missing]["told"]
    assert "not YAML" in found[no_yaml]["told"]
    assert found[good]["streams"] == ["a", "b", "c"]
    assert all(stored for one in found.values() for stored in one["stored"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no such file"),
        ("streams: [", "not YAML"),
        ('{"strems": {}}', "the nearest is `streams`|streams"),
    ],
)
def test_the_first_task_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str
) -> None:
    """Without another try: it would say the same."""
    file = tmp_path / "backlog.yaml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("BACKLOG_CONFIG", str(file))
    run = SimpleNamespace(dag_id="recover_backlog", run_id="r", triggering_user_name="ada")
    with (
        pytest.raises(AirflowFailException, match=message) as told,
        opened(cast("Context", {"dag_run": run, "ti": MagicMock(try_number=1, max_tries=2)})),
    ):
        pass
    assert str(file) in str(told.value)
