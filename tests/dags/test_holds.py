"""A hold of the retention, which a run asks about before any plan is made."""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context

from backlogctl.config import load_config
from backlogctl.dags import recoveries
from backlogctl.dags.layout import AskForHold
from backlogctl.dags.policies import HOLD_TASKS, HOLD_WITHIN, PROPOSED
from backlogctl.dags.task_context import RunbookRefusal
from backlogctl.errors import Refused
from backlogctl.ledger import OPERATOR
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.observe.retention import release_stream
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.runbooks.detection import Detection, propose_instead
from tests.dags.airflow import Airflow
from tests.dags.slots import Slots
from tests.replay.runbooks.desks import QUIET, TOPIC_ID

HOUR = 3_600.0
ASK, CARRY_OUT = HOLD_TASKS


@pytest.mark.parametrize(
    ("form", "seconds", "chosen"),
    [
        ({"action": "hold"}, None, [ASK]),
        ({"action": "auto"}, None, ["expand.plan"]),
        ({"action": "auto"}, HOUR, [ASK, "expand.plan"]),
        ({"action": "auto"}, 25 * HOUR, ["expand.plan"]),
        ({"action": "auto", "answer_within": "30m"}, HOUR, ["expand.plan"]),
    ],
)
def test_fault_143_auto_asks_for_a_hold_where_an_approval_may_come_too_late(
    desk: Workspace,
    mystery_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    form: dict[str, str],
    seconds: float | None,
    chosen: list[str],
) -> None:
    """A plan waits for its approval as long as the form, or the configuration, says."""

    class Seen:
        class sample:  # noqa: N801 - as the observation has it
            topic_id = TOPIC_ID

    def look(*_: Any) -> tuple[Any, dict[str, Any]]:
        words = {"verdict": "lagging", "course": "lagging", "sentence": "told", "warnings": []}
        return Seen, {**QUIET, **words, "lag": 10, "lost": None, "seconds_to_loss": seconds}

    monkeypatch.setattr("backlogctl.replay.runbooks.detection.sample_stream", look)
    mystery_context["params"] |= form
    assert recoveries.choose(["expand", "rebuild"]) == chosen
    pushed = {
        c.kwargs["key"]: c.kwargs["value"] for c in mystery_context["ti"].xcom_push.mock_calls
    }
    assert (PROPOSED in pushed) is (ASK in chosen)


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ({}, "messages that exist are put back by the action `redrive`"),
        ({"lag": 7}, "the action `expand` drains what is unread all the same"),
        ({"lag": 7, "declined": "r-1"}, "r-1 was rejected: an action by its name plans again"),
        ({"lag": 7, "under_way": ("r-2",)}, "r-2 is at work on it"),
    ],
)
def test_a_run_with_nothing_to_do_proposes_what_works(seen: dict[str, Any], told: str) -> None:
    found = SimpleNamespace(**{"lag": 0, "declined": "", "under_way": (), **seen})
    assert propose_instead(cast("Detection", found)) == told


def test_a_hold_is_asked_about_as_long_as_there_is_something_to_hold(
    monkeypatch: pytest.MonkeyPatch, mystery_context: dict[str, Any]
) -> None:
    """The run ends with its question: it keeps no other from being started."""
    parked: list[timedelta] = []
    monkeypatch.setattr(
        ApprovalOperator, "execute", lambda task, _: parked.append(task.response_timeout)
    )
    for within in (1140.0, None, 10 * 86_400.0):
        proposed = {"stream": "orders", "length": "6h", "body": "b", "within": within}
        mystery_context["ti"].xcom_pull.return_value = proposed
        AskForHold(task_id="approve", subject="Hold", response_timeout=HOLD_WITHIN).execute(
            cast("Context", mystery_context)
        )
    assert parked == [timedelta(minutes=19), HOLD_WITHIN, HOLD_WITHIN]


def test_a_refused_hold_names_no_field_that_its_action_does_not_have(
    desk: Workspace, mystery_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form's *Allow* is for plans."""

    def refuse(*_: Any) -> None:
        hint = "make room; `--allow disk` holds it in spite of it"
        raise Refused("the brokers' disks would fill up", subject="topic orders", hint=hint)

    monkeypatch.setattr("backlogctl.replay.runbooks.holds.hold_stream", refuse)
    mystery_context["ti"].xcom_pull.return_value = {"stream": "orders", "length": "6h"}
    with pytest.raises(RunbookRefusal, match="the brokers' disks would fill up") as told:
        recoveries.hold({"responded_by_user": {"name": "bob"}})
    assert "llow" not in str(told.value)
    assert "`backlogctl hold orders --for 6h`" in str(told.value)


def test_a_person_says_yes_to_a_hold(airflow: Airflow, slots: Slots) -> None:
    """Nothing is raised before; afterwards it is theirs, and the report says until when."""
    workspace = open_workspace(load_config(slots.config, dict(os.environ)))
    stream = slots.take("asked")
    run = airflow.trigger("recover_backlog", {"stream": stream, "action": "hold"})
    asked = airflow.await_question(run, ASK)
    assert asked["subject"] == f"Hold the retention of {stream} for 6h"
    assert "**Raises** the retention of topic" in asked["body"]
    assert workspace.ledger.holds.list(stream=stream) == ()
    airflow.answer(run, ASK)
    airflow.await_run(run, {"success"})
    (hold,) = workspace.ledger.holds.list(stream=stream)
    assert (hold.holder, hold.actor.partition("@")[0]) == (OPERATOR, "airflow:second")
    assert f"topic {hold.topic} is held until" in airflow.read_run(run)["note"]
    release_stream(workspace, workspace.config.stream(stream))


def test_the_note_of_a_run_says_why_there_was_nothing_to_do(airflow: Airflow, slots: Slots) -> None:
    """On the run's own page; a person's note stays as it is."""
    run = airflow.trigger("recover_backlog", {"stream": slots.take("asked"), "action": "auto"})
    airflow.await_run(run, {"success"})
    assert airflow.read_run(run)["note"].startswith("nothing to do: ")
    assert airflow.client("oncall").patch(run.path, json={"note": "mine"}).is_success
    airflow.clear(run, "choose")
    airflow.await_run(run, {"success"})
    assert airflow.read_run(run)["note"] == "mine"
