"""A person's mark on a task or a run leaves nothing for the next task, and a plan or a layout open."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.dags import detection, nights, recoveries
from backlogctl.dags.layout import ApprovePlan, AskForApproval, AskForHold
from backlogctl.dags.policies import CHOSEN, REASON, RECOVER
from backlogctl.dags.recoveries import UNANSWERED
from backlogctl.dags.task_context import ENDED, RunbookError, RunbookRefusal
from backlogctl.errors import BacklogError
from backlogctl.formats import format_moment
from backlogctl.ledger import OPERATOR as OPERATOR_HOLDS
from backlogctl.replay.engine.approval import NOBODY
from backlogctl.replay.engine.brakes import INTERRUPTED, OPERATOR, PausedBecause
from backlogctl.replay.engine.kind import Traits, Workspace
from backlogctl.replay.kinds.expand.kind import ExpandKind
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.present.report import make_report
from backlogctl.replay.runbooks.detection import Started
from backlogctl.replay.runbooks.work import MARKED
from backlogctl.values import Recovery, RecoveryState, to_document
from tests.dags.airflow import Airflow, DagRun
from tests.dags.slots import Slots
from tests.kit.recoveries import keep_plan, make_expand_plan, make_rebuild_plan, read_actions
from tests.replay.runbooks.desks import RUN, bring_by_airflow, store

S = RecoveryState
Left = Mapping[tuple[str, str], Any]


@pytest.fixture
def context(mystery_context: dict[str, Any]) -> dict[str, Any]:
    return mystery_context


def leave(context: dict[str, Any], left: Left, **states: str) -> None:
    """What the tasks of the run have left, by task and key, and how they ended."""

    def pull(*, task_ids: Any, key: str, **_: Any) -> Any:
        if isinstance(task_ids, list):
            return [left.get((task_id, key)) for task_id in task_ids]
        return left.get((task_ids, key))

    context["ti"].xcom_pull.side_effect = pull
    found = {name.replace("__", "."): state for name, state in states.items()}
    context["ti"].get_task_states.return_value = {RUN.run_id: found}


GIVEN_NOTHING: dict[str, Callable[[Context], Any]] = {
    "plan": lambda _: recoveries.plan("rebuild"),
    "approve": lambda context: ApprovePlan(task_id="approve", plan=None).execute(context),
    "carry out": lambda _: recoveries.run_approved(cast("Any", None)),
    "put back": lambda _: nights.put_back(cast("Any", None)),
    "ask": lambda context: AskForApproval(task_id="ask", work=None).execute(context),
    "ask for a hold": lambda context: AskForHold(
        task_id="approve", subject="", defaults=["Reject"]
    ).execute(context),
    "hold": lambda _: recoveries.hold(cast("Any", None)),
}


@pytest.mark.parametrize("name", GIVEN_NOTHING)
def test_fault_142_after_a_task_that_was_marked_nothing_is_done(
    desk: Workspace, context: dict[str, Any], name: str
) -> None:
    """Without a fault of the program, and without another try."""
    planned = store(desk)
    with pytest.raises(AirflowSkipException):
        GIVEN_NOTHING[name](cast("Context", context))
    assert REASON in {call.kwargs["key"] for call in context["ti"].xcom_push.mock_calls}
    assert read_actions(desk, planned.id) == ["planned"]


@pytest.mark.parametrize(
    "states", [(), (S.APPROVED,), (S.APPROVED, S.RUNNING), (S.APPROVED, S.RUNNING, S.FAILED)]
)
def test_fault_142_what_is_open_is_given_back(
    desk: Workspace,
    context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    states: tuple[S, ...],
) -> None:
    """The ledger knows what the run has begun, whatever its tasks have left; of its kind only."""
    monkeypatch.setattr(ExpandKind, "close", lambda *_, **named: None)
    begun = bring_by_airflow(desk, store(desk, "expand"), *states)
    recoveries.restore("siphon")
    assert desk.ledger.recoveries.get(begun.id).state is begun.state
    recoveries.restore("expand")
    assert desk.ledger.recoveries.get(begun.id).state is (S.CANCELLED if states else S.PLANNED)


@pytest.mark.parametrize("marked", ["success", "failed", "skipped", "upstream_failed"])
@pytest.mark.parametrize("failed", [None, "choose", "rebuild.plan", "rebuild.approve"])
def test_fault_142_a_plan_that_nobody_will_ask_about_is_closed(
    desk: Workspace, context: dict[str, Any], marked: str, failed: str | None
) -> None:
    """What failed by itself can be cleared, and asks again: its plan waits."""
    planned = store(desk)
    left: dict[tuple[str, str], Any] = {("choose", CHOSEN): ["rebuild.plan"]}
    if failed:
        left |= {(failed, ENDED): True, (failed, REASON): "no broker"}
    leave(context, left, choose="success", rebuild__approve=marked)
    with pytest.raises(RunbookRefusal) as told:
        recoveries.report()
    found = desk.ledger.recoveries.get(planned.id)
    if failed:
        assert found.state is S.PLANNED
        assert f"`backlogctl approve {planned.id}`" in str(told.value)
    else:
        assert (found.state, found.detail) == (S.REJECTED, {"by": NOBODY, "reason": UNANSWERED})
        assert f"{planned.id}: {UNANSWERED}; nothing was changed" in str(told.value)


def test_fault_142_a_plan_that_another_run_asks_about_is_left_to_it(
    desk: Workspace, context: dict[str, Any]
) -> None:
    """This run only named it as its existing plan."""
    planned = store(desk)
    context["dag_run"].run_id = "another"
    context["params"]["recovery"] = planned.id
    left: dict[tuple[str, str], Any] = {("choose", CHOSEN): ["rebuild.plan"]}
    leave(context, left, choose="success", rebuild__approve="failed")
    with pytest.raises(RunbookRefusal):
        recoveries.report()
    assert desk.ledger.recoveries.get(planned.id).state is S.PLANNED


@pytest.mark.parametrize("marked", ["success", "skipped"])
def test_fault_142_a_run_that_has_chosen_nothing_does_not_end_well(
    desk: Workspace, context: dict[str, Any], marked: str
) -> None:
    leave(context, {}, choose=marked)
    with pytest.raises(RunbookRefusal, match="somebody ended this run before it began"):
        recoveries.report()


@pytest.mark.parametrize(
    ("marked", "is_held"), [("failed", True), ("success", True), ("running", False)]
)
@pytest.mark.parametrize("kind", ["rebuild", "expand"])
def test_fault_142_work_that_was_marked_waits_for_a_person(
    desk: Workspace,
    context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    marked: str,
    is_held: bool,
) -> None:
    """What stops nobody is paused, and nights leave it alone; what stops consumers is ended by the
    teardown, and nobody is told to run it by hand meanwhile."""
    begun = bring_by_airflow(desk, store(desk, kind), S.APPROVED, S.RUNNING)

    def stop(*_: Any, **named: Any) -> None:
        raise PausedBecause(INTERRUPTED, "it stopped", subject=f"recovery {begun.id}")

    monkeypatch.setattr(recoveries, "call", stop)
    context["ti"].task_id = f"{kind}.carry_out"
    leave(context, {}, **{f"{kind}__carry_out": marked})
    ends = is_held and kind == "expand"
    told = "started, by this run's task restore_layout" if ends else "it stopped"
    with pytest.raises(RunbookError if ends else BacklogError, match=told):
        recoveries.work_on(desk, cast("Context", context), begun.id)
    assert (MARKED in read_actions(desk, begun.id)) is (is_held and not ends)


@pytest.mark.parametrize("why", ["window", OPERATOR])
def test_what_has_nothing_to_do_now_starts_no_driver(
    desk: Workspace, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """It would come again and again, each time with a Spark of its own."""
    begun = bring_by_airflow(desk, store(desk), S.APPROVED, S.RUNNING)
    desk.ledger.recoveries.advance(begun.id, S.PAUSED, "airflow:grace@worker", detail={"why": why})
    submits: list[bool] = []

    def note(_: Workspace, verb: str, args: dict[str, Any], traits: Traits) -> dict[str, Any]:
        submits.append(traits.uses_spark)
        return {"recovery": begun.id, "come_again": None, "why": "", "document": {}}

    monkeypatch.setattr(recoveries, "call", note)
    context["ti"].task_id = "rebuild.carry_out"
    for others in ([], [desk.ledger.leases.hold(begun.id)]):
        with ExitStack() as held:
            for lease in others:
                held.enter_context(lease)
            recoveries.work_on(desk, cast("Context", context), begun.id)
    assert submits == [why != OPERATOR, False]


@pytest.mark.parametrize(("paused", "runs"), [(True, 1), (True, 0), (False, 1)])
def test_fault_168_a_run_that_waits_in_a_paused_dag_is_told(
    desk: Workspace,
    context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    paused: bool,
    runs: int,
) -> None:
    """Such as one that would ask about a hold: the ledger knows nothing of it yet."""
    monkeypatch.setattr(detection, "is_paused", lambda dag_id: paused and dag_id == RECOVER)
    context["ti"].get_dr_count.return_value = runs
    with pytest.raises(RunbookRefusal) if paused and runs else nullcontext() as told:
        detection.tell_paused()
    if told is not None:
        assert str(told.value) == (
            "recover_backlog is paused, and has work: 1 run that is not over. "
            "`airflow dags unpause recover_backlog`"
        )


@pytest.mark.parametrize(("ended", "starts"), [({}, 0), ({ENDED: True}, 1)])
def test_fault_142_a_run_that_a_person_ended_is_not_started_again(
    desk: Workspace, context: dict[str, Any], ended: dict[str, Any], starts: int
) -> None:
    """Its question had said what it waits for; one that failed by itself is started again."""
    last = Started("g-1", RUN.run_id, utc_now() - timedelta(hours=1))
    cast("Any", detection).Variable.get.return_value = last.to_json()
    left = {("rebuild.approve", key): value for key, value in {REASON: "waits", **ended}.items()}
    leave(context, left, rebuild__approve="failed", report="failed")
    look = {"stream": "orders", "starts": True, "occasion": "g-1", "sentence": "lost"}
    assert len(detection.pick_recoveries([look])) == starts


def test_a_run_that_failed_says_what_became_of_its_recovery(
    desk: Workspace, context: dict[str, Any]
) -> None:
    """That consumers run again is what who has marked it wants to know."""
    ended = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, S.RUNNING, S.CANCELLED)
    leave(context, {("choose", CHOSEN): ["expand.plan"]}, expand__carry_out="failed")
    with pytest.raises(RunbookRefusal) as told:
        recoveries.report()
    marked, end, *_ = str(told.value).splitlines()
    assert marked.startswith("expand.carry_out: marked failed")
    assert end == f"{ended.id} was cancelled; what was stopped is started again"


@pytest.mark.parametrize("ends", [None, utc_now() + timedelta(hours=6)])
@pytest.mark.parametrize("end", [S.CANCELLED, S.VERIFIED])
def test_a_run_that_is_over_says_that_retention_stays_raised(
    desk: Workspace, context: dict[str, Any], end: S, ends: datetime | None
) -> None:
    """And what gives it back, who has to look at the disks."""
    ended = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, S.RUNNING, end)
    desk.ledger.holds.begin(
        **to_document(ended, "stream", "cluster", "topic"),
        topic_id="id",
        holder=OPERATOR_HOLDS,
        old={"retention.ms": "60000"},
        raised={"retention.ms": "86400000"},
        actor="ada",
        until=ends,
    )
    leave(context, {("choose", CHOSEN): ["expand.plan"]}, choose="success")
    until = f" until {format_moment(ends)}" if ends else ""
    held = f"but retention.ms of topic {ended.topic} stays raised{until} "
    assert f"{held}(`backlogctl hold orders --release` gives it back)" in recoveries.report()["end"]


def test_fault_143_a_report_says_what_retention_takes_next(
    desk: Workspace, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verified` is no more than that: nobody may read it before it is gone."""
    ahead = "nobody is in the group, and retention takes what is unread in 13 min"
    look = "backlogctl.replay.runbooks.detection.describe_loss_ahead"
    monkeypatch.setattr(look, lambda *_, **__: ahead)
    done = bring_by_airflow(desk, store(desk), S.APPROVED, S.RUNNING, S.VERIFIED)
    leave(context, {("choose", CHOSEN): ["rebuild.plan"]}, choose="success")
    assert recoveries.report()["end"] == f"{done.id} is verified; loss ahead: {ahead}"
    assert make_report(desk, done.id)["ahead"]["told"].endswith(f" before this report: {ahead}.")


# The same in Airflow: a mark on what waits for an answer.


def ask(airflow: Airflow, slots: Slots, kind: str) -> tuple[Workspace, Recovery, DagRun]:
    """A plan of a stream of its own, and a run that asks about it."""
    workspace = open_workspace(load_config(slots.config, dict(os.environ)))
    stream = slots.take("asked")
    make = make_expand_plan if kind == "expand" else make_rebuild_plan
    planned = keep_plan(workspace, make(stream=stream, topic=stream, group=f"of-{stream}"))
    form = {"stream": stream, "action": kind, "recovery": planned.id}
    return workspace, planned, airflow.trigger("recover_backlog", form)


def test_marked_while_it_waits_for_an_answer(airflow: Airflow, slots: Slots) -> None:
    """The run or its question, marked success or failed: the run ends soon, and as failed; its
    tasks have one try, and the plan waits no more. One that is cleared asks again."""
    marks = [
        ("expand", "success", None),
        ("rebuild", "failed", None),
        ("expand", "success", "expand.approve"),
        ("rebuild", "failed", "rebuild.approve"),
    ]
    asked = [ask(airflow, slots, kind) for kind, _, _ in marks]
    for (kind, state, task_id), (_, _, run) in zip(marks, asked, strict=True):
        body = airflow.await_question(run, f"{kind}.approve")["body"]
        assert ("**Loss ahead:** nobody is in the group" in body) is (kind == "rebuild")
        if task_id:
            airflow.await_parked(run, task_id)
            airflow.clear(run, task_id)
            airflow.await_another_try(run, task_id, 1)
            airflow.await_question(run, task_id)
        airflow.mark(run, state, task_id)
    for (kind, _, _), (workspace, planned, run) in zip(marks, asked, strict=True):
        airflow.await_run(run, {"failed"})
        found = workspace.ledger.recoveries.get(planned.id)
        assert (found.state, found.detail) == (S.REJECTED, {"by": NOBODY, "reason": UNANSWERED})
        assert UNANSWERED in airflow.read_run(run)["note"]
        work = airflow.read_task(run, f"{kind}.carry_out")
        # Airflow 3.3.0 marks with a run also what has not begun.
        begun = work["try_number"] > 0
        assert work["state"] in ("skipped", "upstream_failed") or not begun
        for task_id in ("report", *(["expand.restore_layout"] if kind == "expand" else [])):
            assert airflow.read_task(run, task_id)["try_number"] == 1
            assert "Traceback" not in airflow.logs(run, task_id, 1)
