"""A recovery of a kind that this program does not know: tasks refuse it, or leave it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from airflow.sdk import Context

from backlogctl.clock import utc_now
from backlogctl.dags import detection, nights, questions, recoveries
from backlogctl.dags.layout import ApprovePlan
from backlogctl.dags.policies import APPROVE, REJECT
from backlogctl.dags.task_context import RunbookRefusal, translated_errors
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import Approver, acting_as
from backlogctl.replay.runbooks.nights import Tonight
from backlogctl.values import Recovery, RecoveryState
from tests.replay.runbooks.desks import (
    AIRFLOW_USER,
    MYSTERY,
    RUN,
    TOPIC_ID,
    lose,
    name_states,
    open_shop,
    store_unknown,
)

S = RecoveryState
STATES: tuple[tuple[S, ...], ...] = (
    (),
    (S.APPROVED,),
    (S.APPROVED, S.RUNNING),
    (S.APPROVED, S.RUNNING, S.FAILED),
    (S.APPROVED, S.RUNNING, S.VERIFIED),
)


@pytest.fixture
def context() -> dict[str, Any]:
    """Of the run `RUN`, for every task."""
    instance = MagicMock(try_number=1, max_tries=2, map_index=-1)
    instance.xcom_pull.return_value = None
    instance.get_task_states.return_value = {}
    instance.get_dagrun_state.return_value = "failed"
    run = SimpleNamespace(
        dag_id=RUN.dag_id,
        run_id=RUN.run_id,
        triggering_user_name="grace",
        conf={},
        run_type="manual",
    )
    return {"ti": instance, "dag_run": run, "params": {"stream": "orders"}}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: dict[str, Any]) -> Workspace:
    """Tasks without Airflow around them, whose looks need no Kafka."""
    workspace = open_shop(tmp_path, auto_plan=True)

    @contextmanager
    def open_it(_: Context, person: Approver | None = None) -> Iterator[Workspace]:
        with translated_errors(), acting_as(person or AIRFLOW_USER):
            yield workspace

    def look(desk: Workspace, stream: Any) -> tuple[Any, dict[str, Any]]:
        seen = SimpleNamespace(sample=SimpleNamespace(topic_id=TOPIC_ID))
        words = {"verdict": "ok", "course": "ok", "sentence": "told", "warnings": []}
        return seen, {**words, "lag": 0, "lost": None, "seconds_to_loss": None}

    for module in (recoveries, nights, detection, questions, detection):
        monkeypatch.setattr(module, "opened", open_it)
    for module in (recoveries, nights, detection, detection):
        monkeypatch.setattr(module, "get_current_context", lambda: context)
    monkeypatch.setattr("backlogctl.replay.runbooks.detection.sample_stream", look)
    variables = MagicMock()
    variables.get.return_value = ""
    monkeypatch.setattr(detection, "Variable", variables)
    context["outlet_events"] = MagicMock()
    return workspace


def ask(context: Any, recovery: Recovery) -> Any:
    return _make_question(recovery).execute(context)


def answer(option: str) -> Callable[[Any, Recovery], Any]:
    def give(context: Any, recovery: Recovery) -> Any:
        event = {
            "chosen_options": [option],
            "params_input": {},
            "responded_at": utc_now(),
            "responded_by_user": {"id": "bob", "name": "bob"},
        }
        return _make_question(recovery).execute_complete(context, event)

    return give


def _make_question(recovery: Recovery) -> ApprovePlan:
    plan = {"recovery": recovery.id, "plan_hash": recovery.plan_hash}
    return ApprovePlan(task_id="approve", plan=plan)


def named(act: Callable[[], Any]) -> Callable[[Any, Recovery], Any]:
    """A task whose form names the recovery."""

    def call(context: Any, recovery: Recovery) -> Any:
        context["params"]["recovery"] = recovery.id
        return act()

    return call


GIVEN: dict[str, Callable[[Any, Recovery], Any]] = {
    "choose": named(lambda: recoveries.choose(["expand", "rebuild"])),
    "plan": named(lambda: recoveries.plan("expand", ["expand.plan"])),
    "report what the form names": named(recoveries.report),
    "report what the run planned": lambda _, recovery: recoveries.report(),
    "ask": ask,
    "approve": answer(APPROVE),
    "reject": answer(REJECT),
    "carry out": lambda _, recovery: recoveries.run_approved({"recovery": recovery.id}),
    "restore": lambda _, recovery: recoveries.restore({"recovery": recovery.id}),
    "put back": lambda _, recovery: nights.put_back(
        {"action": Tonight.RUN, "stream": "orders", "recovery": recovery.id, "why": ""}
    ),
}


@pytest.mark.parametrize("states", STATES, ids=name_states)
@pytest.mark.parametrize("name", GIVEN)
def test_a_task_that_is_given_it_fails_at_once(
    desk: Workspace, context: dict[str, Any], name: str, states: tuple[S, ...]
) -> None:
    """Without another try, and without a change."""
    recovery = store_unknown(desk, *states)
    before = read(desk, recovery)
    told = f"recovery {recovery.id}: this program does not know the kind {MYSTERY}"
    with pytest.raises(RunbookRefusal, match=told):
        GIVEN[name](context, recovery)
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


def read(desk: Workspace, recovery: Recovery) -> tuple[Any, ...]:
    """All that the ledger has of it."""
    return desk.ledger.recoveries.get(recovery.id), desk.ledger.events.list(recovery.id)
