"""A person's mark on a task or a run leaves nothing for the next task, and a plan or a layout open."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.dags import detection, nights, questions, recoveries
from backlogctl.dags.layout import ApprovePlan, AskForApproval
from backlogctl.dags.policies import (
    APPROVE,
    CHOSEN,
    HOLD_TASKS,
    PROPOSED,
    REASON,
    RECOVER,
    REJECT,
)
from backlogctl.dags.recoveries import UNANSWERED
from backlogctl.dags.task_context import ENDED, RunbookError, RunbookRefusal
from backlogctl.errors import BacklogError, PlanStale
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
from tests.dags.airflow import Airflow, DagRun, TaskStates
from tests.dags.slots import Slots
from tests.kit.recoveries import keep_plan, make_expand_plan, make_rebuild_plan, read_actions
from tests.replay.runbooks.desks import RUN, bring_by_airflow, store

S = RecoveryState
ASK, HOLD = HOLD_TASKS
Left = Mapping[tuple[str, str], Any]


@pytest.fixture
def context(mystery_context: dict[str, Any]) -> dict[str, Any]:
    return mystery_context


def pulling(left: Left) -> Callable[..., Any]:
    """How a task reads what others have left."""

    def pull(*, task_ids: Any, key: str, **_: Any) -> Any:
        if isinstance(task_ids, list):
            return [left.get((task_id, key)) for task_id in task_ids]
        return left.get((task_ids, key))

    return pull


def leave(context: dict[str, Any], left: Left, **states: str) -> None:
    """What the tasks of the run have left, by task and key, and how they ended."""

    context["ti"].xcom_pull.side_effect = pulling(left)
    found = {name.replace("__", "."): state for name, state in states.items()}
    context["ti"].get_task_states.return_value = {RUN.run_id: found}


GIVEN_NOTHING: dict[str, Callable[[Context], Any]] = {
    "put back": lambda _: nights.put_back(cast("Any", None)),
    "ask": lambda context: AskForApproval(task_id="ask", work=None).execute(context),
}


@pytest.mark.parametrize("name", GIVEN_NOTHING)
def test_fault_142_after_a_task_that_was_marked_nothing_is_done(
    desk: Workspace, context: dict[str, Any], name: str
) -> None:
    """At night too: without a fault of the program, and without another try."""
    planned = store(desk)
    with pytest.raises(AirflowSkipException):
        GIVEN_NOTHING[name](cast("Context", context))
    assert REASON in {call.kwargs["key"] for call in context["ti"].xcom_push.mock_calls}
    assert read_actions(desk, planned.id) == ["planned"]


def test_what_is_marked_before_it_lists_or_looks_starts_nothing(desk: Workspace) -> None:
    """Airflow expands nothing then; what was marked is not among the looks, which may be none."""
    assert detection.pick_recoveries([]) == []


MOMENTS = ("waiting", "running", "done")
TASKS = ("choose", "plan", "approve", "carry_out", "restore_layout", "report")
MARKED_NOW = ("success", "failed")


def has_task(kind: str, task: str) -> bool:
    return task != "restore_layout" or kind == "expand"


class Ended(BaseException):
    """The process of a task is gone: it leaves nothing more."""


class Story:
    """The tasks of one run of `recover_backlog`, one after the other, as Airflow schedules them.

    Attributes:
        cut: the task that is marked, and when.
        left, states, told: what the tasks have left, how they ended, and why.
        refused: why the work is not begun.
    """

    def __init__(self, desk: Workspace, context: dict[str, Any], kind: str) -> None:
        self.desk, self.context, self.kind = desk, context, kind
        self.left: dict[tuple[str, str], Any] = {}
        self.states: dict[str, str] = {}
        self.told: list[str] = []
        self.refused: BacklogError | None = None
        self.cut: tuple[str, str] = ("", "")
        self._now = ""
        self._stores: dict[str, TaskStates] = {}
        context["ti"].xcom_push.side_effect = self._push
        context["ti"].get_task_states.side_effect = lambda **_: {
            RUN.run_id: {self.name(one): state for one, state in self.states.items()}
        }
        self._acts: Mapping[str, Callable[[], Any]] = {
            "choose": lambda: recoveries.choose([kind]),
            "plan": lambda: recoveries.plan(kind),
            "approve": self._approve,
            "carry_out": lambda: recoveries.run_approved(self._pull("approve")),
            "restore_layout": lambda: recoveries.restore(kind),
            "report": recoveries.report,
        }

    def name(self, task: str) -> str:
        return task if task in ("choose", "report") else f"{self.kind}.{task}"

    def run(self, *tasks: str) -> None:
        """Each as soon as those before it allow; teardowns in any case."""
        for task in tasks:
            before = [self.states.get(one) for one in TASKS[: TASKS.index(task)]]
            if task not in ("restore_layout", "report") and set(before) - {"success"}:
                self.states[task] = "upstream_failed" if "failed" in before else "skipped"
            elif has_task(self.kind, task):
                self.states[task] = self._try(task)

    def mark(self, state: str, task: str, moment: str) -> None:
        """`cleared` takes back what it left, and runs it again with all behind it."""
        if moment == "running":
            self.cut = (task, state)
            with suppress(Ended):
                self.run(task)
        elif moment == "done":
            self.run(task)
        self.cut = ("", "")
        rest = TASKS[TASKS.index(task) + 1 :]
        if state == "cleared":
            rest = (task, *rest)
        else:
            self.states[task] = state
        self.run(*rest)

    def call(self, _: Workspace, verb: str, args: Mapping[str, Any], __: Traits) -> Any:
        """The verbs of a driver, by the ledger alone."""
        ledger = self.desk.ledger.recoveries
        if verb == "plan":
            known = ledger.list("orders")
            return known[-1].id if known else store(self.desk, self.kind).id
        one = ledger.get(args["recovery"])
        if self.refused is not None:
            raise self.refused
        if one.state is S.APPROVED:
            ledger.advance(one.id, S.RUNNING, "airflow:grace@worker")
        if self._now == self.cut[0]:
            self.states["carry_out"] = self.cut[1]
            if self.cut[1] in MARKED_NOW:
                raise PausedBecause(INTERRUPTED, "it stopped", subject=f"recovery {one.id}")
            raise Ended
        if one.state is not S.VERIFIED:
            ledger.advance(one.id, S.VERIFIED, "airflow:grace@worker", detail={"verified": {}})
        return {"recovery": one.id, "come_again": None, "why": "", "document": {}}

    def _try(self, task: str) -> str:
        self._now = task
        self.left = {key: value for key, value in self.left.items() if key[0] != self.name(task)}
        self.context["ti"].task_id = self.name(task)
        self.context["ti"].xcom_pull.side_effect = pulling(self.left)
        self.context["task_state_store"] = self._stores.setdefault(task, TaskStates())
        try:
            found = self._acts[task]()
        except AirflowSkipException:
            return "skipped"
        except (RunbookError, RunbookRefusal) as error:
            self.told.append(str(error))
            return "failed"
        if self.cut[0] == task:
            raise Ended  # it did all, and left nothing
        self._push("return_value", found)
        return "success"

    def _approve(self) -> Any:
        operator = ApprovePlan(task_id="approve", plan=self._pull("plan"))
        try:
            return operator.execute(cast("Context", self.context))
        except TaskDeferred:
            if self.cut[0] == "approve":
                raise Ended from None
        event = {
            "chosen_options": [APPROVE],
            "params_input": {},
            "responded_at": utc_now(),
            "responded_by_user": {"id": "7", "name": "bob"},
        }
        return operator.execute_complete(cast("Context", self.context), event)

    def _pull(self, task: str) -> Any:
        return self.left.get((self.name(task), "return_value"))

    def _push(self, key: str, value: Any) -> None:
        if self.cut[0] == self._now == "choose":
            raise Ended  # before it has chosen
        self.left[self.name(self._now), key] = value


def begin(
    desk: Workspace, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> Story:
    """A run of that action, of which nothing was done yet."""
    story = Story(desk, context, kind)
    context["params"] |= {"action": kind}
    monkeypatch.setattr(recoveries, "call", story.call)
    monkeypatch.setattr(questions, "put_question", lambda *_: True)
    monkeypatch.setattr(ExpandKind, "close", lambda *_, **named: None)
    return story


def find_end(kind: str, task: str, state: str, moment: str) -> tuple[set[S], bool]:
    """In which state the recovery ends, none where nothing was planned; and whether the run ends
    well. The table "What can happen to a run" of docs/runbook-airflow.md."""
    passed = TASKS.index(task) + (moment == "done") - 1  # the last one that has done its part
    if state == "cleared" or (state == "success" and moment == "done"):
        return {S.VERIFIED}, True
    if passed < TASKS.index("plan") and not (task == "plan" and moment == "running"):
        # A plan that was passed over is no failure: a person wanted that.
        return set(), task == "plan" and state == "success"
    if passed < TASKS.index("approve"):
        return {S.REJECTED}, False
    if passed < TASKS.index("carry_out"):
        if kind == "expand":
            return {S.CANCELLED}, state == "success"
        return {S.PAUSED if moment == "running" else S.APPROVED}, False
    return {S.VERIFIED}, state == "success"


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("state", [*MARKED_NOW, "cleared"])
@pytest.mark.parametrize(
    ("kind", "task"),
    [(kind, task) for kind in ("expand", "rebuild") for task in TASKS if has_task(kind, task)],
)
def test_fault_142_whatever_is_marked_and_whenever_it_ends_as_the_runbook_says(
    desk: Workspace,
    context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    task: str,
    state: str,
    moment: str,
) -> None:
    """Without a fault of the program: what a task raises is a message for people, or a skip."""
    story = begin(desk, context, monkeypatch, kind)
    story.run(*TASKS[: TASKS.index(task)])
    story.mark(state, task, moment)
    ends, well = find_end(kind, task, state, moment)
    found = desk.ledger.recoveries.list("orders")
    assert {one.state for one in found} == ends
    assert not [told for told in story.told if "a fault of the program" in told]
    if task != "report":
        assert story.states["report"] == ("success" if well else "failed"), story.left
    if S.PAUSED in ends:
        assert MARKED in read_actions(desk, found[0].id)


@pytest.mark.parametrize(("kind", "end"), [("expand", S.CANCELLED), ("rebuild", S.APPROVED)])
def test_an_answer_to_a_plan_that_went_stale_fails_with_the_reason(
    desk: Workspace, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch, kind: str, end: S
) -> None:
    """The topic was made anew while the question was there: nothing is begun, or tried again."""
    story = begin(desk, context, monkeypatch, kind)
    story.refused = PlanStale("it was recreated", subject="topic orders", hint="plan again")
    story.run(*TASKS)
    (found,) = desk.ledger.recoveries.list("orders")
    assert found.state is end
    assert "running" not in read_actions(desk, found.id)
    assert story.left[f"{kind}.carry_out", ENDED], "no other try"
    work, report = story.told
    assert work.startswith("topic orders: it was recreated")
    assert f"{kind}.carry_out: {work}" in report


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
        # Airflow may have one, of a moment before the mark: it did not count.
        unanswered = "its question was ended before an answer counted; nothing was changed"
        assert f"{planned.id}: {unanswered}" in str(told.value)


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


YES, NO = ({"chosen_options": [option]} for option in (APPROVE, REJECT))
HELD = "topic orders is held until 12:00"


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ({}, "its question was ended before an answer counted; this run raised no retention"),
        ({(ASK, "return_value"): NO}, "was not approved; this run raised no retention"),
        ({(ASK, "return_value"): YES}, "task was ended: `backlogctl hold` says what is held"),
        ({(ASK, "return_value"): YES, (HOLD, REASON): HELD}, HELD),
        ({(HOLD, ENDED): True, (HOLD, REASON): "no room"}, None),
    ],
    ids=["marked", "rejected", "marked at work", "held", "failed"],
)
def test_a_report_says_no_more_of_a_hold_than_is_known(
    desk: Workspace, context: dict[str, Any], left: Left, told: str | None
) -> None:
    """Whether it was answered, and whether it was raised, where a task was marked; also where
    something else failed."""
    asked = {("choose", CHOSEN): [ASK], ("choose", PROPOSED): {"stream": "orders"}}
    leave(context, {**asked, **left}, choose="success")
    end = recoveries.report()["end"]
    assert end.endswith(told or "nothing")
    planned = store(desk)
    with pytest.raises(RunbookRefusal, match=planned.id) as failed:
        recoveries.report()
    assert (end in str(failed.value).splitlines()) is bool(told)


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
