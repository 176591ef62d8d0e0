"""Approvals in Airflow, and restores where no teardown will run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock
from uuid import uuid4

import pytest
from airflow.providers.standard.triggers import hitl
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.dags import questions
from backlogctl.dags.layout import ApprovePlan
from backlogctl.dags.policies import APPROVE, REJECT
from backlogctl.dags.task_context import translated_errors
from backlogctl.fanout.launchers import Role
from backlogctl.replay.engine.approval import approve_plan, check_approval, reject_plan
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import Approver, acting_as
from backlogctl.replay.kinds.rebuild.plan import PlannedGap
from backlogctl.replay.observe.stream import sample_stream
from backlogctl.replay.opening import open_workspace
from backlogctl.values import GapState, Recovery, RecoveryState
from tests.dags.airflow import Airflow, DagRun
from tests.dags.conftest import TakeWorld
from tests.dags.expansion import RESTORE, relaying, start
from tests.dags.slots import Slots
from tests.kit.ledger import make_gap
from tests.kit.recoveries import (
    PAST,
    change_ledger,
    keep_plan,
    make_rebuild_plan,
    open_desk,
    read_actions,
    store_plan,
)
from tests.replay.expand.oracle import judge

S = RecoveryState
FORM = "recover_backlog"


@dataclass(frozen=True)
class Asked:
    """A plan that waits, of a stream of its own, for a gap of its own."""

    workspace: Workspace
    stream: str
    gap: str
    first: str

    @classmethod
    def take(cls, slots: Slots) -> Asked:
        workspace = open_workspace(load_config(slots.config, dict(os.environ)))
        stream = slots.take("asked")
        gap = workspace.ledger.gaps.record(make_gap(stream=stream, topic_id=f"id-{stream}"))
        asked = cls(workspace, stream, gap.id, "")
        return replace(asked, first=asked.plan().id)

    def plan(self) -> Recovery:
        """A plan; it takes the place of the one before."""
        lost = PlannedGap.freeze(self.workspace.ledger.gaps.get(self.gap))
        made = make_rebuild_plan(
            stream=self.stream,
            topic=self.stream,
            group=f"of-{self.stream}",
            gaps=[lost.model_dump()],
        )
        return keep_plan(self.workspace, made, [self.gap])

    def read(self) -> Recovery:
        return self.workspace.ledger.recoveries.get(self.first)

    def trigger(self, airflow: Airflow, **form: Any) -> DagRun:
        fields = {"stream": self.stream, "action": "rebuild", "recovery": self.first}
        return airflow.trigger(FORM, {**fields, **form})


def check_nothing_done(airflow: Airflow, run: DagRun, report: str) -> None:
    """The run carried nothing out; it ends well where a person wanted that."""
    airflow.await_run(run, {report})
    states = airflow.read_states(run)
    assert states["rebuild.approve"] == "skipped"
    assert states["rebuild.carry_out"] == "skipped"
    assert states["report"] == report


def test_no_no_answer_and_an_answer_elsewhere(airflow: Airflow, slots: Slots) -> None:
    """Who says no is on record; nobody's answer in time is a no as well, and the gaps are open.
    Faults 44 and 63: what was answered in the shell counts; the parked task goes on in seconds."""
    refused, forgotten, shell = (Asked.take(slots) for _ in range(3))
    late = forgotten.trigger(airflow, answer_within="6s")
    no = refused.trigger(airflow)
    elsewhere = shell.trigger(airflow)
    airflow.answer(no, "rebuild.approve", "Reject", user="second")
    airflow.await_question(elsewhere, "rebuild.approve")
    airflow.await_parked(elsewhere, "rebuild.approve")
    reject_plan(shell.workspace, shell.read(), by="shell", reason="not tonight")
    check_nothing_done(airflow, elsewhere, "success")
    assert f"{shell.first} was rejected by shell" in airflow.xcom(elsewhere, "report", "reason")

    for asked, run, by, why, state, told in (
        (refused, no, "second", "rejected", "success", "rejected by second"),
        (forgotten, late, "nobody", "nobody answered in time", "failed", "nobody answered in time"),
    ):
        check_nothing_done(airflow, run, state)
        found = asked.read()
        assert (found.state, found.detail) == (S.REJECTED, {"by": by, "reason": why})
        assert asked.workspace.ledger.gaps.get(asked.gap).state is GapState.OPEN
        assert read_actions(asked.workspace, asked.first) == ["planned", "rejected"]
        assert told in airflow.xcom(run, "rebuild.approve", "reason")
        assert told in airflow.xcom(run, "report", "reason")


# The rest is the operator without Airflow around it.


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    opened = open_desk(tmp_path)

    @contextmanager
    def open_it(context: Context, person: Approver | None = None) -> Iterator[Workspace]:
        with translated_errors(), acting_as(person) if person else nullcontext():
            yield opened

    monkeypatch.setattr(questions, "opened", open_it)
    monkeypatch.setattr(questions, "load", lambda: load_config(tmp_path / "backlog.yaml"))
    return opened


def answer(
    recovery: Recovery, option: str = APPROVE, plan_hash: str = "", **user: str
) -> Mapping[str, Any]:
    """What the operator does with an answer; without a user it is that of the timeout."""
    event = {
        "chosen_options": [option],
        "params_input": {},
        "responded_at": utc_now(),
        "responded_by_user": user or None,
    }
    return complete(recovery, event, plan_hash)


def complete(recovery: Recovery, event: dict[str, Any], plan_hash: str = "") -> Mapping[str, Any]:
    """What the operator does with an event of its trigger."""
    plan = {"recovery": recovery.id, "plan_hash": plan_hash or recovery.plan_hash}
    found: Mapping[str, Any] = ApprovePlan(task_id="approve", plan=plan).execute_complete(
        cast("Context", {"ti": MagicMock(try_number=1, max_tries=20)}), event
    )
    return found


def wait(recovery: Recovery, monkeypatch: pytest.MonkeyPatch, within: float) -> dict[str, Any]:
    """The event with which a parked task goes on; nobody answers in Airflow."""
    nothing = SimpleNamespace(response_received=False, chosen_options=None, responded_at=utc_now())
    for name in ("get_hitl_detail_content_detail", "update_hitl_detail_response"):
        monkeypatch.setattr(hitl, name, lambda **_: nothing)
    trigger = questions.AnswerTrigger(
        recovery_id=recovery.id,
        ti_id=uuid4(),
        options=[APPROVE, REJECT],
        defaults=[REJECT],
        params={},
        timeout_datetime=utc_now() + timedelta(seconds=within),
        poke_interval=0.01,
    )

    async def await_event() -> dict[str, Any]:
        event = await anext(trigger.run())
        await trigger.cleanup()
        found: dict[str, Any] = event.payload
        return found

    return asyncio.run(await_event())


def expire(desk: Workspace, recovery: Recovery) -> Recovery:
    change_ledger(desk, f"UPDATE backlog_recoveries SET approval_expires_at = '{PAST}'")
    return desk.ledger.recoveries.get(recovery.id)


def test_one_person_is_one_person_where_ids_are_numbers(desk: Workspace) -> None:
    """Airflow names who triggered a run by name; some user databases have numbers as ids."""
    planner = {"kind": "airflow", "user": "alice", "host": "scheduler"}
    planned = store_plan(desk, approval="second_person", planned_by=planner)
    with pytest.raises(AirflowException, match=r"another person must approve.*asked again"):
        answer(planned, id="7", name="alice")
    assert desk.ledger.recoveries.get(planned.id).state is S.PLANNED
    found = answer(planned, id="8", name="bob")
    assert found["approved_by"] == "bob"
    assert found["approved_identity"].startswith("airflow:bob@")


@pytest.mark.parametrize("option", [APPROVE, REJECT])
def test_fault_44_of_two_at_once_one_wins(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """The shell is faster by a hair: after the look at the state, and before the change."""
    planned = store_plan(desk)
    verb = "approve_plan" if option == APPROVE else "reject_plan"
    real = getattr(questions, verb)

    def be_late(*words: Any, **named: Any) -> Recovery:
        approve_plan(desk, planned, by="shell")
        late: Recovery = real(*words, **named)
        return late

    monkeypatch.setattr(questions, verb, be_late)
    if option == APPROVE:
        assert answer(planned, id="bob", name="bob")["approved_by"] == "shell"
    else:
        with pytest.raises(AirflowSkipException, match="approved by shell; this run leaves it"):
            answer(planned, REJECT, id="bob", name="bob")
    assert read_actions(desk, planned.id) == ["planned", "approved"]
    assert desk.ledger.recoveries.get(planned.id).approved_by == "shell"


def test_fault_44_an_answer_in_the_shell_stands(desk: Workspace) -> None:
    """Nobody answers here any more: the run goes on with what was said there."""
    approved = store_plan(desk)
    approve_plan(desk, approved, by="shell")
    assert answer(approved, REJECT)["approved_by"] == "shell"
    desk.ledger.recoveries.advance(approved.id, S.CANCELLED, "ada")
    with pytest.raises(AirflowSkipException, match="was cancelled"):
        answer(approved, REJECT)
    with pytest.raises(AirflowException, match="was cancelled; nothing was approved"):
        answer(approved, id="bob", name="bob")


def test_fault_44_a_parked_task_goes_on_with_what_was_said_elsewhere(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Approved in the shell, rejected there, or replaced by a newer plan."""
    refused = store_plan(desk)
    reject_plan(desk, refused, by="shell", reason="not tonight")
    event = wait(refused, monkeypatch, 60)
    assert event == {questions.ELSEWHERE: True}
    with pytest.raises(AirflowSkipException, match=f"{refused.id} was rejected by shell"):
        complete(refused, event)
    old = store_plan(desk)
    newer = store_plan(desk)
    assert wait(old, monkeypatch, 60) == event
    told = f"{old.id} was superseded: {newer.id} took its place"
    with pytest.raises(AirflowSkipException, match=told):
        complete(old, event)
    approve_plan(desk, newer, by="shell")
    assert wait(newer, monkeypatch, 60) == event
    assert complete(newer, event)["approved_by"] == "shell"


def test_fault_63_nobodys_answer_in_time_is_a_no(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = store_plan(desk)
    with pytest.raises(AirflowSkipException, match="nobody answered in time"):
        complete(planned, wait(planned, monkeypatch, 0.1))
    found = desk.ledger.recoveries.get(planned.id)
    assert (found.state, found.detail["by"]) == (S.REJECTED, "nobody")
    assert read_actions(desk, planned.id) == ["planned", "rejected"]


def test_fault_44_another_recovery_is_in_the_way(desk: Workspace) -> None:
    """It is told by name, and tried no more."""
    first = store_plan(desk)
    approve_plan(desk, first, by="shell")
    second = store_plan(desk)
    with pytest.raises(AirflowException, match=first.id):
        answer(second, id="bob", name="bob")
    assert desk.ledger.recoveries.get(second.id).state is S.PLANNED


def test_fault_63_an_answer_is_for_the_plan_that_was_shown(desk: Workspace) -> None:
    planned = store_plan(desk)
    with pytest.raises(AirflowException, match="for another plan than the stored one"):
        answer(planned, plan_hash="0" * 64, id="bob", name="bob")
    assert desk.ledger.recoveries.get(planned.id).state is S.PLANNED


def test_fault_63_an_expired_approval_is_asked_for_again(desk: Workspace) -> None:
    """A yes renews it; no answer leaves it expired; a no ends it."""
    planned = store_plan(desk)
    approve_plan(desk, planned, by="shell")
    expired = expire(desk, planned)
    assert answer(expired, id="bob", name="bob")["approved_by"] == "bob"
    renewed = desk.ledger.recoveries.get(planned.id)
    check_approval(renewed, utc_now() + timedelta(minutes=1))

    expired = expire(desk, planned)
    with pytest.raises(AirflowSkipException, match="nobody answered in time"):
        answer(expired, REJECT)
    assert desk.ledger.recoveries.get(planned.id).state is S.APPROVED
    with pytest.raises(AirflowSkipException, match="rejected by bob; nothing was changed"):
        answer(expired, REJECT, id="bob", name="bob")
    assert desk.ledger.recoveries.get(planned.id).state is S.CANCELLED


@contextmanager
def paused(airflow: Airflow, dag_id: str) -> Iterator[None]:
    """The scheduler leaves the DAG alone meanwhile."""
    path = f"/api/v2/dags/{dag_id}"
    assert airflow.client().patch(path, json={"is_paused": True}).is_success
    try:
        yield
    finally:
        assert airflow.client().patch(path, json={"is_paused": False}).is_success


def test_a_paused_dag_whose_run_is_marked_failed(airflow: Airflow, take_world: TakeWorld) -> None:
    """Its teardown is never scheduled. It is said at once, and the next look gives all back."""
    world = take_world()
    one = start(airflow, world)
    with relaying(one), paused(airflow, FORM):
        process = one.find_process()
        process.suspend()  # it does not see the mark
        airflow.mark(one.run, "failed")
        process.kill()
        assert world.list_pids(Role.ORIGINAL) == []
        workspace = world.open()
        entry = sample_stream(workspace, workspace.config.stream(world.stream))[1]
        assert entry["verdict"] in ("stop", "warn")
        assert f"its consumers are stopped by expand {one.recovery.id}" in entry["sentence"]
        assert f"only in {one.recovery.plan['temporary']['topic']}" in entry["sentence"]

        one.go_on()
        look = airflow.trigger("detect_backlog", {"streams": [world.stream]})
        airflow.await_state(look, "restore_left_open", {"success"}, within=300)
        told = airflow.logs(look, "restore_left_open")
        assert f"{one.recovery.id}: no task works on it, or will" in told
        assert airflow.read_states(one.run)[RESTORE] != "success"
    assert judge(world, one.recovery, state="cancelled") == []
    airflow.await_run(look, {"success", "failed"})
