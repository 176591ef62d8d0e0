"""Why a task ended, for people: one message, secrets masked, in its log and beside it as an XCom.

A task that fails by one of ours has no traceback in its log: its reader is on call. What is a fault
of the program keeps its traceback, masked.
"""

from __future__ import annotations

import logging
import re
import shlex
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, cast

import structlog
from airflow.sdk import Asset, AssetAlias, Context, DagRunState
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRuntimeError,
    AirflowSkipException,
)

from backlogctl.config import Stream, mask_secrets
from backlogctl.config.root import Outline
from backlogctl.dags.configuration import find_deployment, load
from backlogctl.dags.form import make_form
from backlogctl.dags.policies import ALERTS, REASON
from backlogctl.errors import ApprovalNeeded, BacklogError, ConfigurationError, Refused, UsageError
from backlogctl.extras import explain_import
from backlogctl.replay.engine.brakes import CANARY, CancelRequested, PausedBecause
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.options import spell_option
from backlogctl.replay.engine.plan import AIRFLOW, Approver, acting_as
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.present.status import format_status
from backlogctl.replay.runbooks.requests import list_fields
from backlogctl.replay.runbooks.work import WorkTask
from backlogctl_delivery.visible import escape_text, escape_trace

LOG = logging.getLogger(__name__)


def _escape_line(record: logging.LogRecord) -> bool:
    """Airflow's page gives colours to what a log says in escape sequences."""
    record.msg, record.args = escape_trace(record.getMessage()), ()
    return True


LOG.addFilter(_escape_line)
# The XCom of a task that failed by itself and is not tried again: nobody had to mark it.
ENDED = "ended"
# What a task leaves that came to an end by itself; one that is marked leaves nothing.
_LEFT = {"failed": ENDED, "success": "return_value"}
# A broker or a database may be back for the next try; these say the same again.
_FINAL = (UsageError, ConfigurationError, ApprovalNeeded, Refused, CancelRequested)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_SLOW_CANARY = (
    "It ends here, and the layout is given back: look at the consumers, or run it again with a "
    "`rate` that they reach"
)


class RunbookError(AirflowException):
    """A task's failure in one message; worth another try."""


class RunbookRefusal(AirflowFailException):
    """A task's failure that another try would only repeat."""


def describe_error(error: BacklogError) -> str:
    """An error for people, without secrets."""
    commands = "".join(f"\nnext: {command}" for command in error.next_commands)
    told = f"\n{format_status(error.standing)}" if error.standing else commands
    if fields := _name_fields(str(error), error.subject):
        told = f"\nin the form: {escape_text(fields)}{told}"
    return f"{escape_text(mask_secrets(str(error)))}{mask_secrets(told)}"


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of the form; `is_switch`: the option for it takes no value."""

    title: str
    is_switch: bool = False


@cache
def _read_form() -> Mapping[str, _Field]:
    """By name, and by the option that says the same in the shell."""
    titles = {name: param.schema["title"] for name, param in make_form(Outline(Path())).items()}
    found = {name: _Field(title) for name, title in titles.items()}
    for _, name, info in list_fields(KINDS):
        found[spell_option(name, info)] = _Field(titles[name], info.annotation is bool)
    return found


def _name_fields(text: str, subject: str) -> str:
    """What an error says to the shell, as the form has it: `*Allow* disk; *The whole topic*`; ""
    where it is about no field."""
    form, said = _read_form(), dict[str, dict[str, None]]()
    if subject in form:
        said[form[subject].title] = {}
    for number, part in enumerate(text.split("`")):
        # Of a command it names values too; other commands than `plan` have no form.
        words = _OPTION.findall(part) if number % 2 == 0 else _read_plan_options(part)
        for word, value in pairwise([*words, ""]):
            if word in form and word.startswith("--"):
                values = said.setdefault(form[word].title, {})
                if number % 2 and value[:2] not in ("--", "") and not form[word].is_switch:
                    values[value] = None
    return "; ".join(" ".join([f"*{title}*", ", ".join(v)]).strip() for title, v in said.items())


def _read_plan_options(command: str) -> list[str]:
    """The words of `backlogctl plan ...`, or of options alone."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that is text
        words = command.split()
    is_plan = words[:2] == ["backlogctl", "plan"] or command.startswith("--")
    return words if is_plan else []


@contextmanager
def translated_errors(context: Context | None = None) -> Iterator[None]:
    """Our errors as Airflow's: with a retry only where that may help.

    Args:
        context: of the task, beside which the reason is kept.

    Raises:
        RunbookError, RunbookRefusal: with nothing of the original, whose text is not masked.
    """
    try:
        yield
        return
    except (AirflowException, AirflowRuntimeError):
        raise
    except BacklogError as error:
        failure = _translate(error)
    except Exception as error:  # noqa: BLE001 whatever it is, it is masked
        if missing := explain_import(error):
            failure = _translate(missing)
        else:
            LOG.error("%s", mask_secrets(traceback.format_exc()))
            told = mask_secrets(f"{type(error).__name__}: {error}")
            failure = RunbookError(f"a fault of the program, its traceback is above: {told}")
    fail(context, failure)


def fail(context: Context | None, failure: AirflowException) -> NoReturn:
    """Ends the task: its reason is kept, and stands in the log without a traceback."""
    if context is not None:
        keep_reason(context, str(failure))
        task = context["ti"]
        if isinstance(failure, RunbookRefusal) or task.try_number > task.max_tries:
            _push(context, ENDED, value=True)
    _drop_tracebacks()
    try:
        raise failure from None
    finally:
        # What is handled around this would be shown with it, and is not masked.
        failure.__context__ = None


def skipping(context: Context, told: str) -> AirflowSkipException:
    """What ends the task as skipped; it says why."""
    LOG.info("%s", told)
    keep_reason(context, told)
    return AirflowSkipException(told)


def read_given(context: Context, given: Any) -> Mapping[str, Any]:
    """What the task before this one left for it.
    Raises AirflowSkipException: nothing. It was marked, and Airflow goes on as if it had worked.
    """
    if not isinstance(given, Mapping):
        raise skipping(context, "the task before this one was marked, and left nothing to do")
    return given


def keep_reason(context: Context, told: str) -> None:
    """Beside the task, for the report and for who looks at the run."""
    _push(context, REASON, told)


def _push(context: Context, key: str, value: Any) -> None:
    with suppress(AirflowRuntimeError):  # marked meanwhile: nobody asks this try any more
        context["ti"].xcom_push(key=key, value=value)


def _translate(error: BacklogError) -> AirflowException:
    if isinstance(error, PausedBecause):
        if error.why == CANARY:
            # Every try would be as slow, and meanwhile nobody reads the topic.
            told = f"{error.subject}: {error.message}. {_SLOW_CANARY}"
            return RunbookRefusal(mask_secrets(told))
        # Interrupted: by a worker that stops, or a task that was marked. The next try goes on.
        return RunbookError(describe_error(error))
    final = isinstance(error, _FINAL) and not error.retryable
    return (RunbookRefusal if final else RunbookError)(describe_error(error))


def _drop_tracebacks() -> None:
    """Airflow logs a failure with its traceback; of ours, its message says it all."""
    processors: list[Any] = structlog.get_config()["processors"]
    if _say_reason_only not in processors:
        processors.insert(0, _say_reason_only)


def _say_reason_only(
    _logger: Any, _method: str, event: structlog.typing.EventDict
) -> Mapping[str, Any]:
    failure = sys.exc_info()[1]
    if event.get("exc_info") and isinstance(failure, RunbookError | RunbookRefusal):
        return {"level": "error", "event": str(failure)}
    return event


# Who a task works for, and what it works with.


def find_person(context: Context) -> Approver:
    """Who asked for this run: a user of Airflow, or the DAG that did it by itself."""
    run = context["dag_run"]
    name = getattr(run, "triggering_user_name", None)
    return Approver(AIRFLOW, name or f"dag/{run.dag_id}", socket.gethostname())


@contextmanager
def opened(context: Context, person: Approver | None = None) -> Iterator[Workspace]:
    """Configuration and ledger for one task; what it does is on record as the person's.
    Raises RunbookError, RunbookRefusal: in words for people, without a traceback of ours.
    """
    with translated_errors(context), acting_as(person or find_person(context)):
        yield open_workspace(load())


def alert(context: Context, stream: Stream, told: dict[str, Any]) -> None:
    """An event of the stream's asset."""
    name = f"{stream.cluster}/{stream.name}"
    asset = Asset(name=f"backlog/{stream.name}", uri=f"backlogctl://{name}")
    context["outlet_events"][AssetAlias(ALERTS)].add(asset, extra=told)


def name_mapped(context: Context, **named: str) -> None:
    """What `map_index_template` shows of a mapped task."""
    cast("dict[str, Any]", context).update(named)


# What Airflow knows of DAGs, runs and tasks, as a task may ask it.

DELETED = "deleted"
RUN_OVER = ("success", "failed", DELETED)
# A worker has it, or will take it also where its DAG is paused.
_AT_WORK = ("running", "queued", "restarting")
_OVER = ("success", "failed", "skipped", "upstream_failed", "removed")


def name_task(context: Context) -> WorkTask:
    """The task that asks."""
    run, task = context["dag_run"], context["ti"]
    index = -1 if task.map_index is None else task.map_index
    return WorkTask(run.dag_id, run.run_id, task.task_id, index, find_deployment())


def find_run_state(context: Context, dag_id: str, run_id: str) -> str:
    """Of a run, `deleted` where there is none."""
    try:
        # An enumeration, though Airflow says that it is text.
        return DagRunState(context["ti"].get_dagrun_state(dag_id, run_id)).value
    except AirflowRuntimeError as failure:
        if (failure.error.detail or {}).get("status_code") == HTTPStatus.NOT_FOUND:
            return DELETED
        raise


def list_states(context: Context, dag_id: str, run_id: str) -> Mapping[str, str | None]:
    """By task id, with `_N` behind it where it is mapped; None: not looked at by the scheduler."""
    found = context["ti"].get_task_states(dag_id=dag_id, run_ids=[run_id])
    states: Mapping[str, str | None] = found.get(run_id, {})
    return states


def find_task_state(context: Context, task: WorkTask) -> str | None:
    """Of a task; None also where there is none."""
    return list_states(context, task.dag_id, task.run_id).get(task.key)


def is_paused(dag_id: str) -> bool:
    """Whether the scheduler leaves the DAG alone; one that is not there is not paused."""
    from backlogctl.dags.airflow_internals import SUPERVISOR_COMMS, DagResult, GetDag

    try:
        answer = SUPERVISOR_COMMS.send(GetDag(dag_id=dag_id))
    except AirflowRuntimeError as failure:
        if (failure.error.detail or {}).get("status_code") == HTTPStatus.NOT_FOUND:
            return False
        raise
    return isinstance(answer, DagResult) and answer.is_paused


def is_served(context: Context, dag_id: str, run_id: str, task_ids: tuple[str, ...]) -> bool:
    """Whether one of these tasks of a run is at work, or will be.

    Nothing begins in a DAG that is paused, though its runs stay `running`: a teardown neither.
    """
    if find_run_state(context, dag_id, run_id) in RUN_OVER:
        return False
    states = list_states(context, dag_id, run_id)
    mine = [states[task_id] for task_id in task_ids if task_id in states]
    if any(state in _AT_WORK for state in mine):
        return True
    return not is_paused(dag_id) and any(state not in _OVER for state in mine)


def was_marked(context: Context, task: WorkTask) -> bool:
    """Whether somebody marked the task: it is over, and left nothing of an end of its own."""
    key = _LEFT.get(find_task_state(context, task) or "")
    if key is None:
        return False
    ended = context["ti"].xcom_pull(
        dag_id=task.dag_id,
        run_id=task.run_id,
        task_ids=task.task_id,
        key=key,
        map_indexes=task.map_index,
    )
    return not ended
