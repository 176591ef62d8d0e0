"""What a task tells of its end, and what it may ask Airflow."""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import structlog
from airflow.sdk import Context
from airflow.sdk.api.datamodels._generated import DagRunState
from airflow.sdk.exceptions import (
    AirflowSkipException,
)

from backlogctl.config.root import Outline
from backlogctl.dags import task_context
from backlogctl.dags.form import make_form
from backlogctl.dags.policies import REASON
from backlogctl.dags.task_context import (
    DELETED,
    ENDED,
    RunbookError,
    RunbookRefusal,
    find_run_state,
    is_served,
    skipping,
    translated_errors,
    was_marked,
)
from backlogctl.errors import KafkaFailure, Refused, UsageError
from backlogctl.replay.engine.options import spell_option
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.runbooks.requests import list_fields
from backlogctl.replay.runbooks.work import WorkTask
from tests.dags.airflow import no_such_run
from tests.dags.conftest import task_log
from tests.kit.processes import ROOT

# How what went wrong is told: masked, in one message, with nothing of the original behind it.

SECRET = "hunter2-of-the-broker"


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A task's first try of three; the secret is known."""
    monkeypatch.setattr("backlogctl.config.root._SECRETS", {SECRET})
    return {"ti": MagicMock(try_number=1, max_tries=2)}


def break_with(error: Exception) -> None:
    """As a client does it: the reason behind the error holds more than the error."""
    try:
        raise OSError(f"SASL password {SECRET} was refused")
    except OSError as cause:
        raise error from cause


def fail(context: dict[str, Any], error: Exception) -> Exception:
    """What Airflow gets."""
    with (
        pytest.raises((RunbookError, RunbookRefusal)) as caught,
        translated_errors(cast("Context", context)),
    ):
        break_with(error)
    return caught.value


def list_kept(context: dict[str, Any]) -> dict[str, Any]:
    return {call.kwargs["key"]: call.kwargs["value"] for call in context["ti"].xcom_push.mock_calls}


@pytest.mark.parametrize(
    "error",
    [
        KafkaFailure(f"it said {SECRET}", subject="cluster main"),
        Refused(f"no: {SECRET}"),
        ValueError(f"a fault with {SECRET}"),
    ],
)
def test_no_secret_is_behind_a_failure(context: dict[str, Any], error: Exception) -> None:
    """Airflow logs an exception with all that stands behind it."""
    failure = fail(context, error)
    assert (failure.__context__, failure.__cause__) == (None, None)
    told = "".join(traceback.format_exception(failure))
    assert SECRET not in told
    assert "***" in str(failure)
    assert SECRET not in str(list_kept(context))
    assert list_kept(context)[REASON] == str(failure)


def test_a_refusal_names_the_field_of_the_form(context: dict[str, Any]) -> None:
    hint = "make room; or `backlogctl plan expand orders --allow disk --allow 'other-groups:audit'`"
    told = str(fail(context, Refused("the disks have no room", hint=hint)))
    assert told.endswith("\nin the form: *Allow* disk, other-groups:audit")


TITLES = {name: field.schema["title"] for name, field in make_form(Outline(Path())).items()}
FIELDS = {spell_option(name, info): TITLES[name] for _, name, info in list_fields(KINDS)}


@pytest.mark.parametrize("option", FIELDS)
def test_each_option_of_a_plan_is_named_as_the_form_has_it(
    context: dict[str, Any], option: str
) -> None:
    for hint in (f"say {option}", f"`backlogctl plan redrive orders {option}`", f"`{option}` does"):
        told = str(fail(context, Refused("no", hint=hint)))
        assert told.endswith(f"\nin the form: *{FIELDS[option]}*"), told
    for elsewhere in (f"`backlogctl cancel r-1 {option} x`", f"`kafka-configs.sh {option} x`"):
        assert "in the form" not in str(fail(context, Refused("no", hint=elsewhere)))


@pytest.mark.parametrize("name", TITLES)
def test_a_field_that_is_refused_has_its_title(context: dict[str, Any], name: str) -> None:
    """A form's error names the field as a request does."""
    told = str(fail(context, UsageError("it must be text", subject=name)))
    assert told.endswith(f"\nin the form: *{TITLES[name]}*")


def test_what_a_refusal_says_to_the_shell_it_says_to_the_form(context: dict[str, Any]) -> None:
    hint = "--since or --until, `--offsets 0:1-2`, `--from log`; or --all for everything"
    told = str(fail(context, UsageError("all of it?", subject="--from log", hint=hint)))
    fields = "*From* log; *Since*; *Until*; *Offsets* 0:1-2; *The whole topic*"
    assert told.endswith(f"\nin the form: {fields}")
    found = [text for text in list_texts() if any(re.search(rf"{o}\b", text) for o in FIELDS)]
    assert len(found) > 20
    for text in found:
        told = str(fail(context, Refused("no", hint=text)))
        for option, title in FIELDS.items():
            if re.search(rf"(?<![\w-]){option}(?![\w-])", text):
                assert f"*{title}*" in told.partition("\nin the form: ")[2], text


def list_texts() -> Iterator[str]:
    """What the kinds say; an expression in it is `X`."""
    for path in sorted((ROOT / "replay" / "kinds").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parts = {id(part) for one in ast.walk(tree) for part in getattr(one, "values", ())}
        told = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
        for one in ast.walk(tree):
            if isinstance(one, ast.JoinedStr):
                yield "".join(
                    getattr(part, "value", "") if isinstance(part, ast.Constant) else "X"
                    for part in one.values
                )
            elif isinstance(one, ast.Constant) and id(one) not in parts | told:
                yield str(one.value)


def test_what_ended_by_itself_is_known_as_that(context: dict[str, Any]) -> None:
    """A failed task without it was marked by a person."""
    fail(context, KafkaFailure("away"))
    assert ENDED not in list_kept(context)
    fail(context, Refused("no"))
    assert list_kept(context)[ENDED] is True
    last = {"ti": MagicMock(try_number=3, max_tries=2)}
    fail(last, KafkaFailure("away"))
    assert list_kept(last)[ENDED] is True


def test_its_log_has_the_reason_and_no_traceback(context: dict[str, Any]) -> None:
    with task_log() as out:
        for error in (Refused("no room"), RuntimeError("of somebody else")):
            try:
                with translated_errors(cast("Context", context)):
                    if isinstance(error, Refused):
                        raise error
                raise error
            except (RunbookRefusal, RuntimeError):
                structlog.get_logger().exception("Task failed with exception")
    first, _, rest = out.getvalue().partition("\n")
    assert "no room" in first
    assert "Traceback" not in first
    assert "Traceback" in rest


def test_who_skips_says_why(context: dict[str, Any]) -> None:
    raised = skipping(cast("Context", context), "nothing to do")
    assert isinstance(raised, AirflowSkipException)
    assert list_kept(context)[REASON] == "nothing to do"


# Whether a task of Airflow works on a recovery, or will.

TASKS = ("expand.carry_out", "expand.restore_layout")


def make_context(state: Any = DagRunState.RUNNING, **states: str | None) -> Context:
    """A task's, whose Airflow answers so."""
    task = MagicMock()
    task.get_dagrun_state.side_effect = [state] if isinstance(state, Exception) else None
    task.get_dagrun_state.return_value = state
    found = {name.replace("__", "."): now for name, now in states.items()}
    task.get_task_states.return_value = {"run-1": found}
    return cast("Context", {"ti": task, "dag_run": SimpleNamespace()})


def test_a_run_that_was_deleted_is_one_of_its_states() -> None:
    assert find_run_state(make_context(DagRunState.FAILED), "d", "run-1") == "failed"
    assert find_run_state(make_context(no_such_run()), "d", "run-1") == DELETED


@pytest.mark.parametrize(
    ("paused", "work", "teardown", "served"),
    [
        (False, "running", None, True),
        (False, "up_for_retry", None, True),
        (False, "up_for_reschedule", None, True),
        (False, "failed", None, True),  # the teardown is scheduled soon
        (False, "failed", "success", False),  # somebody marked it: nothing is given back
        (False, "removed", "removed", False),
        (True, "running", None, True),
        (True, "queued", None, True),
        (True, "up_for_retry", None, False),
        (True, "failed", None, False),
    ],
)
def test_who_will_work_on_it(
    monkeypatch: pytest.MonkeyPatch, paused: bool, work: str, teardown: str | None, served: bool
) -> None:
    monkeypatch.setattr(task_context, "is_paused", lambda _: paused)
    states = {"expand__carry_out": work, "expand__restore_layout": teardown, "report": None}
    context = make_context(**states)
    assert is_served(context, "d", "run-1", TASKS) is served
    for over in (DagRunState.FAILED, DagRunState.SUCCESS, no_such_run()):
        assert not is_served(make_context(over, **states), "d", "run-1", TASKS)


@pytest.mark.parametrize(
    ("state", "left", "marked"),
    [
        ("failed", {}, True),
        ("failed", {ENDED: True}, False),
        ("success", {}, True),
        ("success", {"return_value": {"state": "paused"}}, False),
        ("running", {}, False),
    ],
)
def test_a_mark_is_an_end_that_no_task_made(state: str, left: dict[str, Any], marked: bool) -> None:
    context = make_context(work=state, put_back_3=state)
    cast("Any", context)["ti"].xcom_pull.side_effect = lambda *, key, **_: left.get(key)
    for task in (WorkTask("d", "run-1", "work"), WorkTask("d", "run-1", "put_back", 3)):
        assert was_marked(context, task) is marked
