"""The tasks as the DAG files see them: ids, tries, limits; and what people read of them.

What a task does is imported when it runs: the scheduler reads the DAG files again and again, and
needs no client of Kafka for that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import AssetAlias, Context, task

from backlogctl.dags.airflow_internals import Side, describe_untried, find_unsuited
from backlogctl.dags.policies import ALERTS, LOOK, PLAN, WORK

BY_STREAM = "{{ stream }}"
LOG = logging.getLogger(__name__)


def refuse_unsuited(context: Context) -> None:
    """Before each task: with an Airflow that lacks what is needed nothing is done.
    Raises RunbookRefusal: what it lacks, in words for people.
    """
    if told := find_unsuited(Side.TASK):
        from backlogctl.dags.task_context import RunbookRefusal, fail

        fail(context, RunbookRefusal(told))
    if told := describe_untried():
        LOG.warning("%s", told)


if untried := describe_untried():  # for the log of the DAG processor
    LOG.warning("%s", untried)
DAG_DEFAULTS: Mapping[str, Any] = {"owner": "backlogctl", "pre_execute": refuse_unsuited}


@task.branch(**LOOK)
def choose(kinds: list[str]) -> list[str]:
    """Checks the form, and what `auto` means now; what was not chosen is skipped."""
    from backlogctl.dags import recoveries

    return recoveries.choose(kinds)


@task(**LOOK)
def hold(answer: dict[str, Any]) -> dict[str, Any]:
    """Raises the retention of the stream's topic, as a person has said; it is given back then."""
    from backlogctl.dags import recoveries

    return recoveries.hold(answer)


@task(**PLAN)
def plan(kind: str) -> dict[str, Any]:
    """Makes the plan, where it was chosen; nothing is changed."""
    from backlogctl.dags import recoveries

    return recoveries.plan(kind)


@task(**WORK)
def carry_out(approved: dict[str, Any]) -> dict[str, Any]:
    """Does what the plan says, until it is verified; waits without a worker."""
    from backlogctl.dags import recoveries

    return recoveries.run_approved(approved)


# With any Airflow: it needs nothing of it, and consumers are stopped.
@task(pre_execute=None, **WORK)
def restore(kind: str) -> None:
    """Gives the layout back, whatever became of the run."""
    from backlogctl.dags import recoveries

    recoveries.restore(kind)


@task(trigger_rule="all_done", **LOOK)
def report() -> dict[str, Any]:
    """What came of the run. Fails where something did, since it runs in any case."""
    from backlogctl.dags import recoveries

    return recoveries.report()


@task(**LOOK)
def list_streams() -> list[str]:
    """The streams that the run's conf names, or every one of the configuration."""
    from backlogctl.dags import detection

    return detection.list_streams()


@task(outlets=[AssetAlias(ALERTS)], map_index_template=BY_STREAM, **LOOK)
def look(stream: str) -> dict[str, Any]:
    """Samples and judges one stream; an alarming one is an event of its asset."""
    from backlogctl.dags import detection

    return detection.sample_and_judge(stream)


@task(trigger_rule="all_done", **LOOK)
def pick_recoveries(looks: Any) -> list[dict[str, Any]]:
    """The runs of `recover_backlog` to start: streams with `auto_plan` that need one."""
    from backlogctl.dags import detection

    return detection.pick_recoveries(looks)


@task(**LOOK)
def tell_paused() -> None:
    """Fails where a DAG is paused that has work: nothing else would say so."""
    from backlogctl.dags import detection

    detection.tell_paused()


# Few tries: the next run of its DAG is one too.
@task(**PLAN)
def restore_left_open() -> list[str]:
    """Gives the layout back where nobody works on its recovery, and no task will."""
    from backlogctl.dags import detection

    return detection.restore_left_open()


@task(**LOOK)
def list_night_streams() -> list[str]:
    """The streams that a night may put back: those that the run's conf names, or all."""
    from backlogctl.dags import nights

    return nights.list_night_streams()


@task(map_index_template=BY_STREAM, **PLAN)
def plan_night(stream: str) -> dict[str, Any]:
    """Tonight's work for one stream, in its own window."""
    from backlogctl.dags import nights

    return nights.plan_night(stream)


@task(map_index_template=BY_STREAM, **WORK)
def put_back(work: dict[str, Any]) -> dict[str, Any]:
    """Injects in waves until it is verified, or the window closes: the next night goes on."""
    from backlogctl.dags import nights

    return nights.put_back(work)


@task(**LOOK)
def list_audits() -> list[dict[str, str]]:
    """What the configuration says of each stream: those that the run's conf names, or all."""
    from backlogctl.dags import nights

    return nights.list_audits()


@task(outlets=[AssetAlias(ALERTS)], map_index_template="{{ audited }}", **PLAN)
def audit(work: dict[str, str]) -> dict[str, Any]:
    """One audit of one stream; what is missing is an event of its asset."""
    from backlogctl.dags import nights

    return nights.audit(work)
