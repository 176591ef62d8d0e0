"""Tasks of a few lines: each opens the configuration, calls one verb of ours and hands it on."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, cast

from airflow.sdk import Asset, AssetAlias, Context, Variable, get_current_context, task
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException

from backlog.clock import format_time, utc_now
from backlogctl_airflow.acting import RunbookRefusal, make_console, opened
from backlogctl_airflow.addresses import find_report
from backlogctl_airflow.links import publish_links
from backlogctl_airflow.outline import UTC
from replay.recovery.origins import list_recoveries_of_run, name_origin
from replay.recovery.plan import Origin
from replay.runbooks.carrying import Carried, carry_on, is_at_end
from replay.runbooks.describing import describe_outcome
from replay.runbooks.detecting import detect_backlog, should_plan
from replay.runbooks.nights import Tonight, find_night_work, read_action
from replay.runbooks.planning import find_or_plan
from replay.runbooks.requests import AUTO, read_request
from replay.runbooks.restoring import restore_layout

LOG = logging.getLogger("backlogctl_airflow")
ALERTS = AssetAlias("backlogctl")
CHOSEN = "chosen"
# Variables of Airflow, one a stream.
TOLD = "backlogctl_told__"
_TOLD_OF = "The newest gap that an asset event reported. Without it, open ones are reported again."
# Work that was cut off goes on with the next try, so there are many, and soon.
WORK: dict[str, Any] = {
    "retries": 10,
    "retry_delay": timedelta(seconds=5),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
}
LOOK: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=30)}


@task.branch(**LOOK)
def choose() -> list[str]:
    """Checks the form, and what `auto` means now; what was not chosen is skipped."""
    context = get_current_context()
    with opened(context) as workspace:
        request = read_request(workspace, context["params"])
        if request.recovery:
            named = workspace.ledger.recoveries.get(request.recovery)
            actions: tuple[str, ...] = (workspace.kind_of(named).name,)
        elif request.action != AUTO:
            actions = (request.action,)
        else:
            found = detect_backlog(workspace, workspace.config.stream(request.stream))
            LOG.info("%s: %s", found.stream, found.sentence)
            actions = found.actions
    LOG.info("to do: %s", ", ".join(actions) or "nothing")
    followed = [f"{action}.plan" for action in actions]
    # What a branch returns is kept only where it skips nothing.
    context["ti"].xcom_push(key=CHOSEN, value=followed)
    return followed


@task(**LOOK)
def plan(kind: str, chosen: list[str]) -> dict[str, Any]:
    """Makes the plan, where it was chosen; nothing is changed."""
    # A branch does not skip what comes after the chosen one: a rebuild after an expansion.
    if f"{kind}.plan" not in chosen:
        raise AirflowSkipException(f"{kind} was not chosen")
    context = get_current_context()
    form = context["params"]
    with opened(context) as workspace:
        request = read_request(workspace, form)
        recovery = find_or_plan(workspace, request, kind, _origin(context, request.note), LOG.info)
    LOG.info("%s is %s, plan %s", recovery.id, recovery.state, recovery.plan_hash)
    return {
        "recovery": recovery.id,
        "plan_hash": recovery.plan_hash,
        "answer_within": form.get("answer_within"),
    }


@task(**WORK)
def carry_out(approved: dict[str, Any]) -> dict[str, Any]:
    """Does what the plan says, until it is verified; waits without a worker."""
    context = get_current_context()
    with opened(context) as workspace:
        publish_links(context["ti"], approved["recovery"])
        carried = carry_on(workspace, approved["recovery"], make_console())
    _come_again(carried)
    return {"recovery": carried.recovery.id, **carried.document}


@task(**WORK)
def restore(approved: dict[str, Any]) -> None:
    """Gives the layout back, whatever became of the run."""
    with opened(get_current_context()) as workspace:
        restore_layout(workspace, approved["recovery"], console=make_console(), say=LOG.info)


@task(trigger_rule="all_done", **LOOK)
def report() -> dict[str, Any]:
    """What came of the run. Fails where something did, since it runs in any case."""
    context = get_current_context()
    with opened(context) as workspace:
        recoveries = list(
            list_recoveries_of_run(
                workspace.ledger, context["dag_run"].dag_id, context["dag_run"].run_id
            )
        )
        if named := context["params"].get("recovery"):
            recoveries.append(workspace.ledger.recoveries.get(named))
        outcomes = [describe_outcome(workspace, recovery) for recovery in recoveries]
    for outcome in outcomes:
        LOG.info("%(kind)s %(recovery)s of %(stream)s is %(state)s", outcome)
        LOG.info("report: %s", find_report(outcome["recovery"]))
        publish_links(context["ti"], outcome["recovery"])
    left = [recovery.id for recovery in recoveries if not is_at_end(recovery)]
    failed = _list_failed(context)
    problems = [outcome["problem"] for outcome in outcomes if outcome["problem"]]
    if left or failed or problems:
        told = [f"failed tasks: {', '.join(failed)}"] if failed else []
        told += [f"not at an end: {', '.join(left)}"] if left else []
        told += problems
        raise RunbookRefusal("; ".join(told))
    last = recoveries[-1].id if recoveries else None
    return {"recovery": last, "outcomes": outcomes}


@task(**LOOK)
def list_streams() -> list[str]:
    """The streams that the run's conf names, or every one of the configuration."""
    context = get_current_context()
    with opened(context) as workspace:
        named = context["params"].get("streams") or list(workspace.config.streams)
        return [workspace.config.stream(name).name for name in dict.fromkeys(named)]


@task(outlets=[ALERTS], map_index_template="{{ stream }}", **LOOK)
def look(stream: str) -> dict[str, Any]:
    """Samples and judges one stream; an alarming one is an event of its asset."""
    context = get_current_context()
    cast("dict[str, Any]", context)["stream"] = stream
    told = Variable.get(TOLD + stream, default="")
    with opened(context) as workspace:
        chosen = workspace.config.stream(stream)
        found = detect_backlog(workspace, chosen, told)
        starts = should_plan(workspace, chosen, found)
    LOG.info("%s: %s", stream, found.sentence)
    if found.alarming:
        asset = Asset(name=f"backlog/{stream}", uri=f"backlogctl://{chosen.cluster}/{stream}")
        context["outlet_events"][ALERTS].add(asset, extra=found.to_json())
    if found.newest_gap != told:
        Variable.set(TOLD + stream, found.newest_gap, description=_TOLD_OF)
    return {**found.to_json(), "starts": starts}


@task(trigger_rule="all_done", **LOOK)
def pick_recoveries(looks: Any) -> list[dict[str, Any]]:
    """The runs of `recover_backlog` to start: streams with `auto_plan` that need one.

    One a day for one occasion: a plan may take longer to make than it is until the next look.
    """
    today = f"{utc_now():%Y%m%d}"
    return [
        {
            "trigger_run_id": f"detect__{found['stream']}__{found['occasion']}__{today}",
            "conf": {"stream": found["stream"], "action": AUTO, "note": found["sentence"][:500]},
        }
        for found in looks
        if found["starts"]
    ]


@task(**LOOK)
def list_night_streams(zone: str) -> list[str]:
    """The streams that can be rebuilt, and whose window is in the zone."""
    with opened(get_current_context()) as workspace:
        return [
            name
            for name, stream in workspace.config.streams.items()
            if stream.source is not None
            and zone == (stream.off_peak.timezone if stream.off_peak else UTC)
        ]


@task(map_index_template="{{ stream }}", **LOOK)
def plan_night(stream: str) -> dict[str, Any]:
    """Tonight's work for one stream."""
    context = get_current_context()
    cast("dict[str, Any]", context)["stream"] = stream
    # A run by hand has no interval of the past: everything that is known counts.
    before = context.get("data_interval_end") or utc_now()
    with opened(context) as workspace:
        chosen = workspace.config.stream(stream)
        work = find_night_work(workspace, chosen, before, _origin(context), LOG.info)
    LOG.info("%s: %s %s: %s", stream, work.action, work.recovery, work.why)
    return work.to_json()


@task(**WORK)
def put_back(work: dict[str, Any]) -> dict[str, Any]:
    """Injects in waves until it is verified, or the window closes: the next night goes on."""
    if read_action(work) is not Tonight.RUN:
        raise AirflowSkipException(f"{work['stream']}: {work['why']}")
    context = get_current_context()
    publish_links(context["ti"], work["recovery"])
    with opened(context) as workspace:
        recovery = workspace.ledger.recoveries.get(work["recovery"])
        planned, now = workspace.plan_now(recovery).off_peak, utc_now()
        window = None if planned is None else planned.open()
        if window is not None and not window.contains(now) and not is_at_end(recovery):
            opens = window.next_opening(now)
            LOG.info("the window %s opens at %s", window, format_time(opens))
            raise AirflowRescheduleException(opens)
        carried = carry_on(workspace, recovery.id, make_console())
    if carried.waits_for_window:
        LOG.info("%s: the window closed; the next night goes on", recovery.id)
        return {"recovery": recovery.id, "state": str(carried.recovery.state)}
    _come_again(carried)
    return {"recovery": recovery.id, **carried.document}


def _come_again(carried: Carried) -> None:
    if carried.come_again is not None:
        told = format_time(carried.come_again)
        LOG.info("%s waits: %s; looks again at %s", carried.recovery.id, carried.why, told)
        raise AirflowRescheduleException(carried.come_again)


def _origin(context: Context, note: str = "") -> Origin:
    run = context["dag_run"]
    return name_origin(run.dag_id, run.run_id, note or None)


def _list_failed(context: Context) -> list[str]:
    run = context["dag_run"]
    states = context["ti"].get_task_states(dag_id=run.dag_id, run_ids=[run.run_id])
    bad = ("failed", "upstream_failed")
    return sorted(name for name, state in states.get(run.run_id, {}).items() if state in bad)
