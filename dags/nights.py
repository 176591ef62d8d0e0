"""What the tasks of `nightly_backfill` do: one stream's night."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from airflow.sdk import Context, get_current_context
from airflow.sdk.exceptions import AirflowRescheduleException

from backlogctl.clock import format_time, utc_now
from backlogctl.config import Stream
from backlogctl.dags.lineage import report_audit, report_recovery
from backlogctl.dags.policies import FOUND
from backlogctl.dags.recoveries import come_again, make_origin, work_on
from backlogctl.dags.submission import call
from backlogctl.dags.task_context import (
    alert,
    keep_reason,
    name_mapped,
    opened,
    read_given,
    skipping,
    was_marked,
)
from backlogctl.formats import format_moment
from backlogctl.replay.audits import AUDITS
from backlogctl.replay.engine.kind import Say, Traits, Workspace
from backlogctl.replay.engine.plan import RunOrigin
from backlogctl.replay.kinds import REBUILD
from backlogctl.replay.runbooks.descriptions import is_alarming, list_night_audits
from backlogctl.replay.runbooks.nights import (
    Interval,
    Tonight,
    find_night_work,
    has_nights,
    read_action,
)
from backlogctl.replay.runbooks.work import find_task, hold_for_person, is_at_end
from backlogctl.values import Recovery

LOG = logging.getLogger(__name__)


def list_night_streams() -> list[str]:
    """The streams that something can be put back to: those that the run's conf names, or all."""
    context = get_current_context()
    with opened(context) as workspace:
        named = context["params"].get("streams") or list(workspace.config.streams)
        found = [workspace.config.stream(name) for name in dict.fromkeys(named)]
        return [stream.name for stream in found if has_nights(workspace, stream)]


def plan_night(stream: str) -> dict[str, Any]:
    context = get_current_context()
    name_mapped(context, stream=stream)
    with opened(context) as workspace:
        chosen = workspace.config.stream(stream)
        before = await_window(context, chosen)
        work = find_night_work(
            workspace,
            chosen,
            before,
            make_origin(context),
            LOG.info,
            lost_in=_find_night(context),
            hold=lambda recovery: _hold_marked(context, workspace, recovery),
            planner=_plan_gaps,
        )
        if work.recovery:
            report_recovery(workspace, workspace.ledger.recoveries.get(work.recovery))
    LOG.info("%s: %s %s: %s", stream, work.action, work.recovery, work.why)
    keep_reason(context, work.why)
    return work.to_json()


def put_back(work: dict[str, Any]) -> dict[str, Any]:
    """Injects in waves until it is verified, then what is left of the night's work, or until the
    window closes: the next night goes on."""
    context = get_current_context()
    work = dict(read_given(context, work))
    name_mapped(context, stream=work["stream"])
    if read_action(work) is not Tonight.RUN:
        raise skipping(context, f"{work['stream']}: {work['why']}")
    with opened(context) as workspace:
        recovery = workspace.ledger.recoveries.get(work["recovery"])
        planned, now = workspace.plan_now(recovery).off_peak, utc_now()
        window = None if planned is None else planned.open()
        if window is not None and not window.contains(now) and not is_at_end(recovery):
            _come_at(context, window.next_opening(now), f"{work['stream']}: window {window}")
        carried = work_on(workspace, context, recovery.id)
        goes_on = workspace.config.stream(work["stream"]).approval == "auto"
    if goes_on and carried.come_again is None:
        more = plan_night(work["stream"])
        if read_action(more) is Tonight.RUN:
            return put_back(more)
    if carried.waits_for_window:
        LOG.info("%s: the window closed; the next night goes on", recovery.id)
        keep_reason(context, "the window closed; the next night goes on")
        return {"recovery": recovery.id, "state": str(carried.recovery.state)}
    come_again(context, carried)
    return {"recovery": recovery.id, **carried.document}


def await_window(context: Context, stream: Stream) -> datetime:
    """Until when gaps were found that are this night's: its window's opening, which is waited for.

    A run by hand is not the night: it plans at once, and everything that is known counts.
    """
    run, now = context["dag_run"], utc_now()
    window = stream.off_peak.window() if stream.off_peak else None
    if run.run_type != "scheduled" or window is None:
        return context.get("data_interval_end") or now
    if not window.contains(now):
        _come_at(context, window.next_opening(now), f"{stream.name}: window {window}")
    return window.last_opening(now)


def _plan_gaps(
    workspace: Workspace,
    stream: Stream,
    before: datetime,
    origin: RunOrigin,
    _: Say,
    lost_in: Interval | None,
) -> Recovery:
    args = {
        "stream": stream.name,
        "before": before.isoformat(),
        "origin": origin.model_dump(),
        "lost_in": lost_in and [lost_in.start.isoformat(), lost_in.end.isoformat()],
    }
    return workspace.ledger.recoveries.get(call(workspace, "plan_gaps", args, REBUILD.traits))


def _find_night(context: Context) -> Interval | None:
    """The night of the past that a backfill is for."""
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if context["dag_run"].run_type != "backfill" or start is None or end is None:
        return None
    return Interval(start, end)


def _hold_marked(context: Context, workspace: Workspace, recovery: Recovery) -> str:
    """Why a recovery is a person's to go on with: its last task was marked."""
    task_ = find_task(workspace, recovery)
    if task_ is None or not was_marked(context, task_):
        return ""
    return hold_for_person(workspace, recovery, task_)


def _come_at(context: Context, opens: datetime, what: str) -> None:
    LOG.info("%s opens at %s", what, format_time(opens))
    keep_reason(context, f"{what} opens at {format_moment(opens)}")
    raise AirflowRescheduleException(opens)


def list_audits() -> list[dict[str, str]]:
    """The audits of the streams that the run's conf names, or of every one."""
    context = get_current_context()
    with opened(context) as workspace:
        found = list_night_audits(workspace.config, context["params"].get("streams"))
    return [one.to_json() for one in found]


def audit(work: dict[str, str]) -> dict[str, Any]:
    """Audits one stream in its window; what is missing is an event of its asset."""
    context = get_current_context()
    name = f"{work['audit']} of {work['stream']}"
    name_mapped(context, audited=name)
    with opened(context) as workspace:
        stream = workspace.config.stream(work["stream"])
        await_window(context, stream)
        report_audit(workspace, stream)
        uses_spark = any(one.uses_spark for one in AUDITS if one.name == work["audit"])
        args = {"stream": stream.name, "audit": work["audit"]}
        told: dict[str, Any] = call(workspace, "audit", args, Traits(uses_spark=uses_spark))
    LOG.info("%s: %s: %s", name, told["verdict"], told["sentence"])
    keep_reason(context, f"{told['verdict']}: {told['sentence']}")
    if told["verdict"] != "clean":  # for the note of the run, which ends green all the same
        context["ti"].xcom_push(key=FOUND, value=f"{name}: {told['verdict']}: {told['sentence']}")
    if is_alarming(told["verdict"]):
        alert(context, stream, told)
    return told
