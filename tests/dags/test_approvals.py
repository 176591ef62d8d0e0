"""Approvals in Airflow: what an answer changes, what it cannot change, and whose it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from backlog.clock import utc_now
from backlog.config import load_config
from backlog.values import GapState, Recovery, RecoveryState
from backlogctl_airflow import approval
from backlogctl_airflow.acting import translated_errors
from backlogctl_airflow.approval import APPROVE, REJECT, ApprovePlan
from replay.kinds.rebuild.plan import PlannedGap
from replay.opening import open_workspace
from replay.recovery.approval import approve_plan, check_approval
from replay.recovery.identity import Identity, acting_as
from replay.recovery.workspace import Workspace
from tests.backlog.ledger.makers import make_gap
from tests.dags.airflow import Airflow, DagRun
from tests.dags.slots import Slots
from tests.replay.makers import (
    PAST,
    change_ledger,
    keep_plan,
    make_rebuild_plan,
    open_desk,
    read_actions,
    store_plan,
)

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

    def read_gap(self) -> GapState:
        return self.workspace.ledger.gaps.get(self.gap).state

    def trigger(self, airflow: Airflow, **form: Any) -> DagRun:
        fields = {"stream": self.stream, "action": "rebuild", "recovery": self.first}
        return airflow.trigger(FORM, {**fields, **form})


def check_nothing_done(airflow: Airflow, run: DagRun) -> None:
    """The run has ended well, and carried nothing out."""
    airflow.await_run(run, {"success"})
    states = airflow.read_states(run)
    assert states["rebuild.approve"] == "skipped"
    assert states["rebuild.carry_out"] == "skipped"
    assert states["report"] == "success"


def test_no_and_no_answer_change_nothing(airflow: Airflow, slots: Slots) -> None:
    """Who says no is on record; nobody's answer in time is a no as well. The gaps are open."""
    refused, forgotten = Asked.take(slots), Asked.take(slots)
    late = forgotten.trigger(airflow, answer_within="6s")
    no = refused.trigger(airflow)
    airflow.answer(no, "rebuild.approve", "Reject", user="second")
    for asked, run, by, why in (
        (refused, no, "second", "rejected"),
        (forgotten, late, "nobody", "nobody answered in time"),
    ):
        check_nothing_done(airflow, run)
        found = asked.read()
        assert (found.state, found.detail) == (S.REJECTED, {"by": by, "reason": why})
        assert asked.read_gap() is GapState.OPEN
        assert read_actions(asked.workspace, asked.first) == ["planned", "rejected"]
        told = airflow.xcom(run, "report")["outcomes"]
        assert [(one["recovery"], one["state"]) for one in told] == [(asked.first, "rejected")]


def test_faults_44_63_answers_that_come_too_late(airflow: Airflow, slots: Slots) -> None:
    """A no after an approval in the shell, and a yes to a plan that another took the place of."""
    taken, old = Asked.take(slots), Asked.take(slots)
    runs = taken.trigger(airflow), old.trigger(airflow)
    for run in runs:
        airflow.await_question(run, "rebuild.approve")
    approve_plan(taken.workspace, taken.read(), by="shell")
    newer = old.plan()
    airflow.answer(runs[0], "rebuild.approve", "Reject")
    airflow.answer(runs[1], "rebuild.approve", "Approve")

    airflow.await_state(runs[0], "rebuild.approve", {"skipped"})
    told = airflow.logs(runs[0], "rebuild.approve")
    assert f"{taken.first} is approved, approved by shell; this run leaves it alone" in told
    assert (taken.read().state, taken.read().approved_by) == (S.APPROVED, "shell")
    # The report says that it is not at an end, and the run does not end well.
    airflow.await_run(runs[0], {"failed"})
    assert f"not at an end: {taken.first}" in airflow.logs(runs[0], "report")

    airflow.await_run(runs[1], {"failed"})
    told = airflow.logs(runs[1], "rebuild.approve")
    assert f"{old.first} was rejected: {newer.id} took its place; nothing was approved" in told
    assert airflow.read_task(runs[1], "rebuild.approve")["try_number"] == 1
    assert old.read().state is S.REJECTED
    assert old.workspace.ledger.recoveries.get(newer.id).state is S.PLANNED
    assert "approved" not in read_actions(old.workspace, old.first)


# The rest is the operator without Airflow around it.


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    opened = open_desk(tmp_path)

    @contextmanager
    def open_it(context: Context, person: Identity | None = None) -> Iterator[Workspace]:
        assert person is not None
        with translated_errors(), acting_as(person):
            yield opened

    monkeypatch.setattr(approval, "opened", open_it)
    return opened


def answer(
    recovery: Recovery, option: str = APPROVE, plan_hash: str = "", **user: str
) -> Mapping[str, Any]:
    """What the operator does with an answer; without a user it is that of the timeout."""
    plan = {"recovery": recovery.id, "plan_hash": plan_hash or recovery.plan_hash}
    event = {
        "chosen_options": [option],
        "params_input": {},
        "responded_at": utc_now(),
        "responded_by_user": user or None,
    }
    found: Mapping[str, Any] = ApprovePlan(task_id="approve", plan=plan).execute_complete(
        cast("Context", {}), event
    )
    return found


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
    real = getattr(approval, verb)

    def be_late(*words: Any, **named: Any) -> Recovery:
        approve_plan(desk, planned, by="shell")
        late: Recovery = real(*words, **named)
        return late

    monkeypatch.setattr(approval, verb, be_late)
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
    with pytest.raises(AirflowSkipException, match="rejected; nothing was changed"):
        answer(expired, REJECT, id="bob", name="bob")
    assert desk.ledger.recoveries.get(planned.id).state is S.CANCELLED
