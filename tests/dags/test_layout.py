"""Tasks of `recover_backlog`, what is told to Airflow, and kinds that are not known."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import (
    AirflowFailException,
)

import backlogctl.dags.bundle
from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.dags import detection, nights, recoveries
from backlogctl.dags.layout import ApprovePlan
from backlogctl.dags.local.standalone import make_airflow_environment, make_users
from backlogctl.dags.policies import APPROVE, EXPAND_POOL, REJECT, SPARK_POOL
from backlogctl.dags.task_context import (
    RunbookError,
    RunbookRefusal,
    opened,
    translated_errors,
)
from backlogctl.replay import kinds as registered
from backlogctl.replay.engine.brakes import CANARY, INTERRUPTED, PausedBecause
from backlogctl.replay.engine.kind import Kind, Registry, Workspace
from backlogctl.replay.engine.next_commands import LOOKED_AHEAD
from backlogctl.replay.kinds import KINDS, OFFLOAD
from backlogctl.replay.kinds.expand.kind import ExpandKind
from backlogctl.replay.kinds.rebuild.kind import Rebuild
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.runbooks.nights import Tonight
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Recovery, RecoveryState
from tests.conftest import MakeTopic
from tests.dags.airflow import no_such_run
from tests.kit.kafka import publish
from tests.replay.runbooks.desks import (
    MYSTERY,
    RUN,
    bring_by_airflow,
    lose,
    name_states,
    store,
    store_unknown,
)

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
    asks = {"hold.approve"} if len(kinds) > 1 else set()
    expected |= {"hold.approve", "hold.carry_out"} if asks else set()
    assert set(dag.task_ids) == expected

    names = [kind.name for kind in kinds]
    # A branch chooses among what comes right after it.
    assert dag.get_task("choose").downstream_task_ids == asks | {f"{name}.plan" for name in names}
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
    assert action.schema["enum"] == ["auto", "hold", "expand", "rebuild", "redrive", "siphon"]


def test_an_offload_has_a_dag_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
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


def load_dags(program: str, directory: Path, *files: str) -> Any:
    """What a program has found that loads them in a process and an Airflow home of its own."""
    own = {
        "AIRFLOW_HOME": str(directory / "home"),
        "BACKLOG_CONFIG": str(directory / "none.yaml"),
    }
    done = subprocess.run(
        [sys.executable, "-c", program, *files],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("FOUND")[1])


def test_dags_load_whatever_the_file_is_like(tmp_path: Path) -> None:
    good = write(
        tmp_path / "good.yaml",
        {"streams": {"a": night("Asia/Tokyo"), "b": night("Europe/Berlin"), "c": _STREAM}},
    )
    no_yaml = write(tmp_path / "bad.yaml", "streams: [")
    empty = write(tmp_path / "empty.yaml", {"streams": {}})
    missing = str(tmp_path / "missing.yaml")
    told = load_dags(_LOAD, tmp_path, good, no_yaml, empty, missing)
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


@pytest.mark.timeout(900)
def test_a_detection_is_tried_without_a_scheduler(
    kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """`airflow dags test`, in an Airflow that has nothing but its tables."""
    name = topic(partitions=1, name="orders")
    publish({"bootstrap.servers": kafka.bootstrap}, name, {0: 3})
    document = {
        "ledger": f"sqlite:///{tmp_path}/ledger.db",
        "clusters": {"main": {"bootstrap.servers": kafka.bootstrap}},
        "streams": {"orders": {**_STREAM, "topic": name, "auto_plan": True}},
    }
    file = Path(write(tmp_path / "backlog.yaml", document))
    home = tmp_path / "home"
    home.mkdir()
    environment = make_airflow_environment(home, (0, 0), file, make_users())
    for words in (["db", "migrate"], ["dags", "test", "detect_backlog"]):
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    ledger = open_workspace(load_config(file)).ledger
    assert ledger.samples.latest("orders") is not None, "it looked"


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


def test_a_slow_canary_is_not_tried_again() -> None:
    """It would be as slow, over and over, while nobody reads the topic."""
    told = r"recovery r-1: it is slow. It ends here, and the layout is given back"
    with pytest.raises(RunbookRefusal, match=told), translated_errors():
        raise PausedBecause(CANARY, "it is slow", subject="recovery r-1", hint="resume it")


def test_an_interrupted_task_is_tried_again() -> None:
    with pytest.raises(RunbookError, match="it stopped"), translated_errors():
        raise PausedBecause(INTERRUPTED, "it stopped", subject="recovery r-1")


S = RecoveryState
STATES: tuple[tuple[S, ...], ...] = (
    (),
    (S.APPROVED,),
    (S.APPROVED, S.RUNNING),
    (S.APPROVED, S.RUNNING, S.FAILED),
    (S.APPROVED, S.RUNNING, S.VERIFIED),
)


def ask(mystery_context: Any, recovery: Recovery) -> Any:
    return _make_question(recovery).execute(mystery_context)


def answer(option: str) -> Callable[[Any, Recovery], Any]:
    def give(mystery_context: Any, recovery: Recovery) -> Any:
        event = {
            "chosen_options": [option],
            "params_input": {},
            "responded_at": utc_now(),
            "responded_by_user": {"id": "bob", "name": "bob"},
        }
        return _make_question(recovery).execute_complete(mystery_context, event)

    return give


def _make_question(recovery: Recovery) -> ApprovePlan:
    plan = {"recovery": recovery.id, "plan_hash": recovery.plan_hash}
    return ApprovePlan(task_id="approve", plan=plan)


def named(act: Callable[[], Any]) -> Callable[[Any, Recovery], Any]:
    """A task whose form names the recovery."""

    def call(mystery_context: Any, recovery: Recovery) -> Any:
        mystery_context["params"]["recovery"] = recovery.id
        return act()

    return call


GIVEN: dict[str, Callable[[Any, Recovery], Any]] = {
    "choose": named(lambda: recoveries.choose(["expand", "rebuild"])),
    "plan": named(lambda: recoveries.plan("expand")),
    "report what the form names": named(recoveries.report),
    "report what the run planned": lambda _, recovery: recoveries.report(),
    "ask": ask,
    "approve": answer(APPROVE),
    "reject": answer(REJECT),
    "carry out": lambda _, recovery: recoveries.run_approved({"recovery": recovery.id}),
    "restore": named(lambda: recoveries.restore(MYSTERY)),
    "put back": lambda _, recovery: nights.put_back(
        {"action": Tonight.RUN, "stream": "orders", "recovery": recovery.id, "why": ""}
    ),
}


@pytest.mark.parametrize("states", STATES, ids=name_states)
@pytest.mark.parametrize("name", GIVEN)
def test_a_task_that_is_given_it_fails_at_once(
    desk: Workspace, mystery_context: dict[str, Any], name: str, states: tuple[S, ...]
) -> None:
    """Without another try, and without a change."""
    recovery = store_unknown(desk, *states)
    before = read(desk, recovery)
    mystery_context["ti"].xcom_pull.return_value = ["expand.plan"] if name == "plan" else None
    told = f"recovery {recovery.id}: this program does not know the kind {MYSTERY}"
    with pytest.raises(RunbookRefusal, match=told):
        GIVEN[name](mystery_context, recovery)
    assert read(desk, recovery) == before


PASSING: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "look": (lambda: detection.sample_and_judge("orders"), "starts", False),
    "night": (lambda: nights.plan_night("orders"), "action", "nothing"),
    "left open": (lambda: {"restored": detection.restore_left_open()}, "restored", []),
}


@pytest.mark.parametrize("states", STATES[:-1], ids=name_states)
@pytest.mark.parametrize("name", PASSING)
def test_a_task_that_passes_it_by_leaves_it_alone(
    desk: Workspace, name: str, states: tuple[S, ...]
) -> None:
    recovery = store_unknown(desk, *states)
    lose(desk)
    before = read(desk, recovery)
    act, key, expected = PASSING[name]
    assert act()[key] == expected
    assert read(desk, recovery) == before


def test_fault_138_another_airflows_run_is_not_taken_for_deleted(
    desk: Workspace, mystery_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is not known here may be at work there; one of this Airflow is gone."""
    restored: list[str] = []
    monkeypatch.setattr(detection, "restore_layout", lambda _, one, **__: restored.append(one))
    mystery_context["ti"].get_dagrun_state.side_effect = no_such_run()
    theirs, mine = (
        bring_by_airflow(
            desk,
            store(desk, "expand", origin=RUN.model_copy(update=changes), topic=topic, group=topic),
            S.APPROVED,
        )
        for topic, changes in (("one", {"deployment": "green"}), ("two", {}))
    )
    assert detection.restore_left_open() == restored == [mine.id]
    assert desk.ledger.recoveries.get(theirs.id).state is S.APPROVED


def read(desk: Workspace, recovery: Recovery) -> tuple[Any, ...]:
    """All that the ledger has of it."""
    lines = desk.ledger.events.list(recovery.id)
    # A look changes nothing.
    done = tuple(line for line in lines if line.action != LOOKED_AHEAD)
    return desk.ledger.recoveries.get(recovery.id), done


# What docs/runbook-airflow.md has an installation add to the DAGs, word for word.

_POLICIES = """
import json
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
from backlogctl.dags.bundle import RUNBOOKS

bag = DagBag(str(RUNBOOKS), bundle_name="backlogctl")
stored = {name: bool(DagSerialization.to_dict(dag)) for name, dag in bag.dags.items()}
tasks = [task for dag in bag.dags.values() for task in dag.tasks]
told = {
    "errors": list(bag.import_errors.values()),
    "stored": stored,
    "called": sorted({task.dag_id for task in tasks if task.on_failure_callback}),
    "asked": {t.task_id: t.assigned_users for t in tasks if t.task_id.endswith(".approve")},
    "notified": sorted({t.task_id for t in tasks if getattr(t, "notifiers", None)}),
    "late": [dag.dag_id for dag in bag.dags.values() if dag.deadline],
}
print("FOUND" + json.dumps(told))
"""


def test_an_installation_adds_callbacks_people_and_deadlines(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "runbook-airflow.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    settings = tmp_path / "home" / "config" / "airflow_local_settings.py"
    settings.parent.mkdir(parents=True)
    settings.write_text(code)
    told = load_dags(_POLICIES, tmp_path)
    assert told["errors"] == []
    assert len(told["stored"]) == 5
    assert told["called"] == sorted(set(told["stored"]) - {"detect_backlog"})
    people = [{"id": "ada", "name": "Ada"}, {"id": "bob", "name": "Bob"}]
    assert told["asked"]
    assert all(one == people for one in told["asked"].values())
    assert told["notified"] == sorted(told["asked"])
    assert told["late"] == ["recover_backlog"]
