"""What the tasks of runs that recover do: open the configuration, call one verb, hand it on."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from typing import Any

from airflow.sdk import Context, get_current_context
from airflow.sdk.exceptions import AirflowRescheduleException

from backlogctl.clock import format_time
from backlogctl.dags.configuration import find_deployment
from backlogctl.dags.lineage import report_recovery
from backlogctl.dags.links import find_report, publish_links
from backlogctl.dags.policies import APPROVE, ASKING, CHOSEN, HOLD_TASKS, PROPOSED, REASON
from backlogctl.dags.submission import call
from backlogctl.dags.task_context import (
    ENDED,
    RunbookError,
    RunbookRefusal,
    describe_error,
    fail,
    find_task_state,
    keep_reason,
    list_states,
    name_task,
    opened,
    read_given,
    skipping,
)
from backlogctl.errors import Refused, UsageError
from backlogctl.formats import format_moment
from backlogctl.replay.engine.approval import NOBODY, reject_plan
from backlogctl.replay.engine.brakes import INTERRUPTED, PausedBecause
from backlogctl.replay.engine.kind import Registry, Workspace
from backlogctl.replay.engine.plan import (
    AIRFLOW,
    Approver,
    RunOrigin,
    find_origin,
    list_recoveries_of_run,
    name_origin,
)
from backlogctl.replay.runbooks.descriptions import describe_end, describe_outcome
from backlogctl.replay.runbooks.detection import (
    comes_before_answer,
    detect_backlog,
    note_loss_ahead,
    propose_instead,
)
from backlogctl.replay.runbooks.holds import hold_topic, propose_hold
from backlogctl.replay.runbooks.requests import (
    AUTO,
    HOLD,
    RecoveryRequest,
    find_named_kind,
    read_request,
    refuse_unknown,
)
from backlogctl.replay.runbooks.work import (
    Carried,
    can_begin,
    hold_for_person,
    lifts_hold,
    make_task_console,
    read_carried,
    record_task,
    restore_layout,
)
from backlogctl.values import Recovery, RecoveryState

LOG = logging.getLogger(__name__)
REFUSED = "refused"
_GIVEN_BACK = (
    "It is ended, and its consumers are started, by this run's task restore_layout, or else by the "
    "next run of detect_backlog"
)
# Airflow may have an answer, which only the question's own task may ask it for.
UNANSWERED = "its question was ended before an answer counted"

_NOT_RAISED = "this run raised no retention"


def choose(names: list[str]) -> list[str]:
    """Checks the form, and what `auto` means now; what was not chosen is skipped.
    `names`: of the kinds that the DAG has tasks for.
    """
    context = get_current_context()
    with opened(context) as workspace:
        kinds = workspace.kinds.select(names)
        refuse_unknown(context["dag_run"].conf or {}, kinds)
        request = read_request(workspace, context["params"], kinds)
        if request.recovery:
            actions: tuple[str, ...] = (find_named_kind(workspace, request, kinds),)
        elif request.action not in (AUTO, HOLD):
            actions = (request.action,)
        else:
            actions = _look(context, workspace, request, kinds)
    LOG.info("to do: %s", ", ".join(actions) or "nothing")
    followed = [HOLD_TASKS[0] if action == HOLD else f"{action}.plan" for action in actions]
    # What a branch returns is kept only where it skips nothing.
    context["ti"].xcom_push(key=CHOSEN, value=followed)
    return followed


def _look(
    context: Context, workspace: Workspace, request: RecoveryRequest, kinds: Registry
) -> tuple[str, ...]:
    """What `auto` means now; a hold is beside it where a plan may be approved too late."""
    stream = workspace.config.stream(request.stream)
    found = detect_backlog(workspace, stream, puts_back=request.action != HOLD)
    LOG.info("%s: %s", found.stream, found.sentence)
    wait = request.answer_within or workspace.config.guards.approval_expires
    beside = (HOLD,) if request.action == HOLD or comes_before_answer(found.ahead, wait) else ()
    if beside:
        proposal = propose_hold(workspace, found, wait)
        context["ti"].xcom_push(key=PROPOSED, value=proposal.to_json())
    suggested = found.actions if request.action == AUTO else ()
    actions = (*beside, *(name for name in suggested if name in kinds.names()))
    if not actions:
        keep_reason(context, f"nothing to do: {found.sentence}; {propose_instead(found)}")
    return actions


def hold(answer: dict[str, Any]) -> dict[str, Any]:
    context = get_current_context()
    responder = read_given(context, answer)["responded_by_user"]
    proposed = context["ti"].xcom_pull(task_ids="choose", key=PROPOSED)
    who = Approver(AIRFLOW, responder["name"], socket.gethostname())
    with opened(context, who) as workspace:
        told = hold_topic(workspace, proposed["stream"], proposed["length"])
    LOG.info("%s", told)
    keep_reason(context, told)
    return {"held": told}


def plan(kind: str) -> dict[str, Any]:
    context = get_current_context()
    chosen = _find_chosen(context) or []
    # A branch does not skip what comes after the chosen one: a rebuild after an expansion.
    if f"{kind}.plan" not in chosen:
        raise skipping(context, f"{kind} was not chosen")
    form = context["params"]
    with opened(context) as workspace:
        request = read_request(workspace, form)
        origin = make_origin(context, request.note)
        try:
            args = {"form": dict(form), "kind": kind, "origin": origin.model_dump()}
            planned = call(workspace, "plan", args, workspace.kinds.get(kind).traits)
        except (Refused, UsageError) as refused:
            if refused.retryable or f"{kind}.plan" == chosen[-1]:
                raise
            # What is behind it does not wait for a person; the report tells, and fails.
            told = f"{kind} is refused: {describe_error(refused)}"
            context["ti"].xcom_push(key=REFUSED, value=told)
            raise skipping(context, told) from None
        recovery = workspace.ledger.recoveries.get(planned)
        report_recovery(workspace, recovery)
    LOG.info("%s is %s, plan %s", recovery.id, recovery.state, recovery.plan_hash)
    return {
        "recovery": recovery.id,
        "plan_hash": recovery.plan_hash,
        "answer_within": form.get("answer_within"),
    }


def run_approved(approved: dict[str, Any]) -> dict[str, Any]:
    context = get_current_context()
    recovery_id = read_given(context, approved)["recovery"]
    with opened(context) as workspace:
        carried = work_on(workspace, context, recovery_id)
    come_again(context, carried)
    return {"recovery": carried.recovery.id, **carried.document}


def restore(kind: str) -> None:
    """By the ledger: a task that was marked has left nothing that says what was begun."""
    context = get_current_context()
    with opened(context) as workspace:
        for recovery in _list_recoveries(context, workspace):
            if recovery.kind == kind:
                restore_layout(workspace, recovery.id, console=make_task_console(), say=LOG.info)


def report() -> dict[str, Any]:
    context = get_current_context()
    with opened(context) as workspace:
        recoveries = [
            _close_unanswered(context, workspace, recovery)
            for recovery in _list_recoveries(context, workspace)
        ]
        outcomes = [describe_outcome(workspace, recovery) for recovery in recoveries]
        ends = [describe_end(workspace, recovery) for recovery in recoveries]
        ahead = note_loss_ahead(workspace, recoveries)
    for outcome in outcomes:
        LOG.info("%(kind)s %(recovery)s of %(stream)s is %(state)s", outcome)
        LOG.info("report: %s", find_report(outcome["recovery"]))
        publish_links(context["ti"], outcome["recovery"])
    problems = [
        *_list_failures(context),
        *(end.sentence for end in ends if not end.is_done),
        *(outcome["problem"] for outcome in outcomes if outcome["problem"]),
    ]
    still = [*(end.sentence for end in ends), *(f"loss ahead: {text}" for text in ahead)]
    held = _describe_hold(context)
    if problems:
        fail(context, RunbookRefusal("\n".join(dict.fromkeys([*problems, *held, *still]))))
    told = "; ".join([*held, *still])
    told = told or _pull(context, "choose", REASON) or "nothing"
    LOG.info("%s", told)
    keep_reason(context, told)
    last = recoveries[-1].id if recoveries else None
    return {"recovery": last, "outcomes": outcomes, "end": told}


def work_on(workspace: Workspace, context: Context, recovery_id: str) -> Carried:
    """Carries a recovery on, as this task; a person's mark on the task holds it."""
    task_ = name_task(context)
    publish_links(context["ti"], recovery_id)
    recovery = workspace.ledger.recoveries.get(recovery_id)
    traits = workspace.kind_of(recovery).traits
    report_recovery(workspace, recovery)
    lifted = lifts_hold(workspace, recovery, task_)
    record_task(workspace, recovery_id, task_)
    try:
        if not (lifted or can_begin(workspace, recovery)):
            traits = replace(traits, uses_spark=False)
        args = {"recovery": recovery_id, "resumed": lifted}
        return read_carried(workspace, call(workspace, "carry_on", args, traits))
    except PausedBecause as pause:
        if pause.why != INTERRUPTED or find_task_state(context, task_) not in ("failed", "success"):
            raise
        if recovery.stops_consumers:
            told = f"recovery {recovery_id}: a person marked its task ({task_}). {_GIVEN_BACK}"
            fail(context, RunbookError(told))
        held = workspace.ledger.recoveries.get(recovery_id)
        LOG.warning("%s", hold_for_person(workspace, held, task_))
        raise


def come_again(context: Context, carried: Carried) -> None:
    """Gives the worker back where there is nothing to do now.
    Raises AirflowRescheduleException: with the time to look again.
    """
    if carried.come_again is not None:
        told = f"{carried.recovery.id} waits: {carried.why}"
        LOG.info("%s; looks again at %s", told, format_time(carried.come_again))
        keep_reason(context, f"{told}; looks again at {format_moment(carried.come_again)}")
        raise AirflowRescheduleException(carried.come_again)


def make_origin(context: Context, note: str = "") -> RunOrigin:
    """This run, for the plans that it makes."""
    run = context["dag_run"]
    return name_origin(run.dag_id, run.run_id, note or None, deployment=find_deployment())


def _list_recoveries(context: Context, workspace: Workspace) -> list[Recovery]:
    ledger = workspace.ledger
    found = {r.id: r for r in list_recoveries_of_run(ledger, make_origin(context))}
    if named := context["params"].get("recovery"):
        found[named] = ledger.recoveries.get(named)
    return list(found.values())


def _is_of(origin: RunOrigin, mine: RunOrigin) -> bool:
    return origin.model_dump(exclude={"note"}) == mine.model_dump(exclude={"note"})


def _close_unanswered(context: Context, workspace: Workspace, recovery: Recovery) -> Recovery:
    """Nobody will ask about it any more: a task, or the whole run, was marked. What failed by
    itself may be cleared, and asks again."""
    origin = find_origin(recovery)
    if origin and origin.dag_id in ASKING and not _is_of(origin, make_origin(context)):
        return recovery  # that run asks about it; this one only named it
    before = ("choose", f"{recovery.kind}.plan", f"{recovery.kind}.approve")
    failed = any(_pull(context, task_id, ENDED) for task_id in before)
    if recovery.state is not RecoveryState.PLANNED or failed:
        return recovery
    return reject_plan(workspace, recovery, by=NOBODY, reason=UNANSWERED)


def _list_failures(context: Context) -> list[str]:
    """Root causes: tasks that failed, with their reasons; not those that waited for them."""
    run = context["dag_run"]
    states = list_states(context, run.dag_id, run.run_id)
    failed = sorted(name for name, state in states.items() if state == "failed")
    if "choose" not in failed and _find_chosen(context) is None:
        return ["somebody ended this run before it began"]
    found = [f"{name}: {_describe_failure(context, name)}" for name in failed]
    refused = (_pull(context, name, REFUSED) for name in states if name.endswith(".plan"))
    return found + [told for told in refused if told]


def _describe_hold(context: Context) -> list[str]:
    """What came of the hold that the first task proposed; its failure is told with the others."""
    asked, done = HOLD_TASKS
    proposed = context["ti"].xcom_pull(task_ids="choose", key=PROPOSED)
    if not proposed or any(_pull(context, task_id, ENDED) for task_id in HOLD_TASKS):
        return []
    counted = context["ti"].xcom_pull(task_ids=asked, key="return_value")
    if counted is None:
        return [f"the hold of {proposed['stream']}: {UNANSWERED}; {_NOT_RAISED}"]
    if counted["chosen_options"] != [APPROVE]:
        return [f"the hold that was asked about was not approved; {_NOT_RAISED}"]
    unsure = "the hold was approved, and its task was ended: `backlogctl hold` says what is held"
    return [_pull(context, done, REASON) or unsure]


def _describe_failure(context: Context, task_id: str) -> str:
    """What it gave as its reason last may be of an earlier try, or why it waited."""
    if _pull(context, task_id, ENDED):
        return _pull(context, task_id, REASON)
    return "marked failed, or killed at its last try"


def _find_chosen(context: Context) -> list[str] | None:
    """None: the first task was marked, and has chosen nothing."""
    found: list[str] | None = context["ti"].xcom_pull(task_ids="choose", key=CHOSEN)
    return found


def _pull(context: Context, task_id: str, key: str) -> str:
    found = context["ti"].xcom_pull(task_ids=task_id, key=key)
    return str(found) if found else ""
