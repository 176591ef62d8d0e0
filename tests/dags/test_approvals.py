"""Approvals in Airflow, and restores where no teardown will run."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from airflow.sdk import BaseNotifier, Context
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, TaskDeferred

from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.dags import airflow_internals, questions
from backlogctl.dags.layout import ApprovePlan
from backlogctl.dags.policies import APPROVE, REJECT
from backlogctl.dags.task_context import RunbookError, RunbookRefusal, translated_errors
from backlogctl.errors import KafkaFailure, LedgerError
from backlogctl.fanout.launchers import Role
from backlogctl.replay.engine.approval import approve_plan, check_approval, reject_plan
from backlogctl.replay.engine.cancelling import cancel_work
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import Approver, acting_as, name_origin
from backlogctl.replay.kinds.rebuild.plan import PlannedGap
from backlogctl.replay.observe.stream import sample_stream
from backlogctl.replay.opening import open_workspace
from backlogctl.values import GapState, Recovery, RecoveryState
from tests.dags.airflow import Airflow, DagRun, TaskStates
from tests.dags.conftest import TakeWorld
from tests.dags.expansion import RESTORE, relaying, start
from tests.dags.slots import Slots
from tests.kit.kafka import wait_until
from tests.kit.ledger import make_gap
from tests.kit.recoveries import (
    PAST,
    change_ledger,
    keep_plan,
    make_rebuild_plan,
    open_desk,
    read_actions,
    store_expand_plan,
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
    Faults 44 and 63: what was answered in the shell counts; the parked task goes on in seconds.
    Fault 140: a yes that comes a moment after a no is refused."""
    refused, forgotten, shell = (Asked.take(slots) for _ in range(3))
    late = forgotten.trigger(airflow, answer_within="6s")
    no = refused.trigger(airflow)
    elsewhere = shell.trigger(airflow)
    answers = (("Reject", "second"), ("Approve", "oncall"))
    assert answer_at_once(airflow, no, "rebuild.approve", *answers) == [200, 409]
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


def answer_at_once(
    airflow: Airflow, run: DagRun, task_id: str, *answers: tuple[str, str]
) -> list[int]:
    """Options and who gives them, each 30 ms after the one before; what Airflow says."""
    airflow.await_question(run, task_id)
    airflow.await_parked(run, task_id)
    path, begin = f"{run.task(task_id)}/-1/hitlDetails", time.monotonic() + 5

    def give(number: int) -> int:
        option, user = answers[number]
        body = {"chosen_options": [option], "params_input": {}}
        airflow.get(path, user)  # opens the connection
        time.sleep(max(0.0, begin + 0.03 * number - time.monotonic()))
        return airflow.client(user).patch(path, json=body).status_code

    with ThreadPoolExecutor() as people:
        return list(people.map(give, range(len(answers))))


def test_an_answer_outlives_the_try_that_was_to_count_it(airflow: Airflow, slots: Slots) -> None:
    """Fault 139. Airflow took the answer; the task that goes on with it is killed before it could
    write it down."""
    asked = Asked.take(slots)
    run = asked.trigger(airflow)
    airflow.await_question(run, "rebuild.approve")
    with sqlite3.connect(slots.directory / "ledger.db", isolation_level=None) as ledger:
        ledger.execute("BEGIN IMMEDIATE")
        airflow.answer(run, "rebuild.approve")
        airflow.find_task(run, "rebuild.approve").kill()
        airflow.await_another_try(run, "rebuild.approve", 1)
        ledger.execute("ROLLBACK")
    wait_until(lambda: asked.read().state is S.APPROVED, 60, "its answer counts")
    assert asked.read().approved_by == "second"
    cancel_work(asked.workspace, asked.first, wait=60)
    airflow.mark(run, "failed")


def test_another_airflows_run_is_left_alone(airflow: Airflow, slots: Slots) -> None:
    """Fault 138. It is approved there, and waits for its window."""
    desk = open_workspace(load_config(slots.config, dict(os.environ)))
    stream = slots.take("asked")
    origin = name_origin(FORM, "manual__2026-11-21T12:00:00+00:00", deployment="green")
    changes = {"stream": stream, "topic": stream, "group": stream, "origin": origin}
    theirs = store_expand_plan(desk, **changes)
    with acting_as(Approver("airflow", "bob", "green")):
        approve_plan(desk, theirs, by="bob")
    before = read_actions(desk, theirs.id)
    look = airflow.trigger("detect_backlog", {"streams": [stream]})
    airflow.await_state(look, "restore_left_open", {"success"}, within=300)
    assert read_actions(desk, theirs.id) == before
    told = f"{theirs.id} is approved, and left to another Airflow (green), run {origin.run_id}"
    assert told in airflow.logs(look, "restore_left_open")
    assert airflow.xcom(look, "restore_left_open") == []
    cancel_work(desk, theirs.id, wait=0)


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


def complete(
    recovery: Recovery,
    event: dict[str, Any],
    plan_hash: str = "",
    states: TaskStates | None = None,
) -> Mapping[str, Any]:
    """What the operator does with an event of its trigger."""
    plan = {"recovery": recovery.id, "plan_hash": plan_hash or recovery.plan_hash}
    found: Mapping[str, Any] = ApprovePlan(task_id="approve", plan=plan).execute_complete(
        make_context(states), event
    )
    return found


def make_context(states: TaskStates | None) -> Context:
    task = MagicMock(try_number=1, max_tries=20)
    kept = TaskStates() if states is None else states
    return cast("Context", {"ti": task, "task_state_store": kept})


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


@pytest.mark.parametrize(("option", "after"), [(APPROVE, S.APPROVED), (REJECT, S.CANCELLED)])
def test_fault_44_of_two_at_once_one_wins(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, option: str, after: S
) -> None:
    """The shell is faster by a hair: after the look at the state, and before the change. A no in
    Airflow counts all the same, as nothing was begun (fault 140)."""
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
        told = "rejected by bob, whom the approval by shell does not overrule; nothing was changed"
        with pytest.raises(AirflowSkipException, match=told):
            answer(planned, REJECT, id="bob", name="bob")
    found = desk.ledger.recoveries.get(planned.id)
    assert (found.state, found.approved_by) == (after, "shell")


def test_fault_140_a_no_to_what_was_begun_is_too_late(desk: Workspace) -> None:
    """It is said what ends it; the run does not go on."""
    planned = store_plan(desk)
    approve_plan(desk, planned, by="shell")
    desk.ledger.recoveries.advance(planned.id, S.RUNNING, "ada")
    told = "approved by shell; this run leaves it alone, `backlogctl cancel"
    with pytest.raises(AirflowSkipException, match=told):
        answer(planned, REJECT, id="bob", name="bob")
    assert read_actions(desk, planned.id) == ["planned", "approved", "running"]


def ask(recovery: Recovery, states: TaskStates, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Parks the question's task; each question that was put to people."""
    put: list[object] = []

    def note(*words: object) -> bool:
        put.append(words)
        return True

    monkeypatch.setattr(questions, "put_question", note)
    plan = {"recovery": recovery.id, "plan_hash": recovery.plan_hash}
    with pytest.raises(TaskDeferred):
        ApprovePlan(task_id="approve", plan=plan).execute(make_context(states))
    return put


def test_fault_139_an_answer_outlives_the_try_that_was_to_count_it(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask anew would wipe it. Once it counts, or was refused, it is asked anew."""
    states = TaskStates()
    planner = {"kind": "airflow", "user": "alice", "host": "scheduler"}
    planned = store_plan(desk, approval="second_person", planned_by=planner)
    event = {
        "chosen_options": [APPROVE],
        "params_input": {},
        "responded_at": utc_now(),
        "responded_by_user": {"id": "7", "name": "alice"},
    }
    assert len(ask(planned, states, monkeypatch)) == 1
    assert ask(planned, states, monkeypatch) == []
    with monkeypatch.context() as away:
        away.setattr(questions, "approve_plan", MagicMock(side_effect=LedgerError("away")))
        with pytest.raises(RunbookError, match="away"):
            complete(planned, event, states=states)
    assert ask(planned, states, monkeypatch) == []
    with pytest.raises(RunbookError, match="asked again"):
        complete(planned, event, states=states)
    assert len(ask(planned, states, monkeypatch)) == 1
    event["responded_by_user"] = {"id": "8", "name": "bob"}
    assert complete(planned, event, states=states)["approved_by"] == "bob"
    expire(desk, planned)
    assert len(ask(planned, states, monkeypatch)) == 1
    newer = store_plan(desk)
    assert len(ask(newer, states, monkeypatch)) == 1, "another plan is another question"


class Note(BaseNotifier):
    """Tells `told` what a question is about; one without it is out of order."""

    def __init__(self, told: list[str] | None = None) -> None:
        super().__init__()
        self.told = told

    def notify(self, context: Context) -> None:
        assert self.told is not None, "no such channel"
        self.told.append(cast("Any", context)["task"].subject)


class Broken(Note):
    """One that fails before it sends anything, such as by its template."""

    def __call__(self, *_: Any) -> None:
        raise RuntimeError("no such field")


def test_a_question_is_told_by_its_notifiers_once(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Airflow's own operator, once it is there to be answered. One that fails keeps neither
    the others nor the question away."""
    planned, states, told = store_plan(desk), TaskStates(), list[str]()

    def put(*_: object) -> bool:
        told.append("asked")
        return True

    monkeypatch.setattr(questions, "put_question", put)
    look = MagicMock(side_effect=KafkaFailure("away", subject="main"))
    monkeypatch.setattr("backlogctl.replay.runbooks.detection.sample_stream", look)
    plan = {"recovery": planned.id, "plan_hash": planned.plan_hash}
    task = ApprovePlan(task_id="approve", plan=plan)
    task.notifiers = [Broken(), Note(), Note(told)]  # as a `task_policy` sets them
    context = cast("Context", {**make_context(states), "task": task})
    for _ in range(2):
        with pytest.raises(TaskDeferred):
            task.execute(context)
    assert len(told) == 2
    assert told[0] == "asked"
    assert planned.id in told[1]


def test_fault_158_nobody_is_asked_under_the_text_of_another_plan(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Airflow answers has the subject that it shows."""
    planned, sent = store_plan(desk), []

    def keep(payload: Any) -> Any:
        sent.append(payload)
        return SimpleNamespace(subject="Put 10 messages back into orders (r-20261121-0009)")

    comms = SimpleNamespace(send=keep)
    monkeypatch.setattr(airflow_internals, "SUPERVISOR_COMMS", comms, raising=False)
    plan = {"recovery": planned.id, "plan_hash": planned.plan_hash}
    context = make_context(TaskStates())
    context["ti"].id = uuid4()
    with pytest.raises(RunbookRefusal, match=f"new run with \\*existing plan\\* {planned.id}"):
        ApprovePlan(task_id="approve", plan=plan).execute(context)
    assert planned.id in sent[0].subject
    assert desk.ledger.recoveries.get(planned.id).state is S.PLANNED


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


def test_a_paused_dag_whose_run_is_marked_failed(airflow: Airflow, take_world: TakeWorld) -> None:
    """Its teardown is never scheduled. It is said at once, and the next look gives all back."""
    world = take_world()
    one = start(airflow, world)
    with relaying(one), airflow.paused(FORM):
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
