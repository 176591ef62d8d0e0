"""A hold of the retention, which a run asks about beside its plans."""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import TaskDeferred

from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.dags import airflow_internals, questions, recoveries
from backlogctl.dags.layout import AskForHold
from backlogctl.dags.policies import HOLD_TASKS, HOLD_WITHIN, PROPOSED, RECOVER
from backlogctl.dags.task_context import RunbookRefusal
from backlogctl.errors import Refused
from backlogctl.ledger import OPERATOR
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.observe.retention import release_stream
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.runbooks.detection import Detection, propose_instead
from tests.dags.airflow import Airflow, DagRun
from tests.dags.slots import Slots
from tests.kit.kafka import leave_at, publish, set_config
from tests.kit.shop import PARTITIONS
from tests.replay.runbooks.desks import QUIET, TOPIC_ID, lose

HOUR = 3_600.0
ASK, CARRY_OUT = HOLD_TASKS


BEHIND = {"lag": 10}
# Nothing is unread, nobody reads, and a gap is open: a rebuild would put it back.
UNREAD_SOON = {"lag": 0, "group_state": "empty", "retention_seconds": HOUR}


@pytest.mark.parametrize(
    ("form", "seen", "chosen"),
    [
        ({"action": "hold"}, BEHIND, [ASK]),
        ({"action": "auto"}, BEHIND, ["expand.plan"]),
        ({"action": "auto"}, {**BEHIND, "seconds_to_loss": HOUR}, [ASK, "expand.plan"]),
        ({"action": "auto"}, {**BEHIND, "seconds_to_loss": 25 * HOUR}, ["expand.plan"]),
        (
            {"action": "auto", "answer_within": "30m"},
            {**BEHIND, "seconds_to_loss": HOUR},
            ["expand.plan"],
        ),
        ({"action": "auto"}, UNREAD_SOON, [ASK, "rebuild.plan"]),
        ({"action": "auto"}, {**UNREAD_SOON, "group_state": "stable"}, ["rebuild.plan"]),
        ({"action": "auto"}, {**UNREAD_SOON, "retention_seconds": 25 * HOUR}, ["rebuild.plan"]),
        ({"action": "auto"}, {**UNREAD_SOON, "retention_seconds": None}, ["rebuild.plan"]),
    ],
)
def test_fault_143_auto_asks_for_a_hold_where_an_approval_may_come_too_late(
    desk: Workspace,
    mystery_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    form: dict[str, str],
    seen: dict[str, Any],
    chosen: list[str],
) -> None:
    """A plan waits for its approval as long as the form, or the configuration, says."""

    class Seen:
        class sample:  # noqa: N801 - as the observation has it
            topic_id = TOPIC_ID

    def look(*_: Any) -> tuple[Any, dict[str, Any]]:
        words = {"verdict": "lagging", "course": "lagging", "sentence": "told", "warnings": []}
        unknown = dict.fromkeys(("lag_at_least", "lost", "seconds_to_loss"))
        return Seen, {**QUIET, **words, **unknown, **seen}

    monkeypatch.setattr("backlogctl.replay.runbooks.detection.sample_stream", look)
    if not seen["lag"]:
        lose(desk)
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
        questions, "ask_once", lambda task, *_, **__: parked.append(task.response_timeout)
    )
    for within in (1140.0, None, 10 * 86_400.0):
        proposed = {"stream": "orders", "length": "6h", "body": "b", "within": within}
        mystery_context["ti"].xcom_pull.return_value = proposed
        AskForHold(task_id="approve", subject="Hold", response_timeout=HOLD_WITHIN).execute(
            cast("Context", mystery_context)
        )
    assert parked == [timedelta(minutes=19), HOLD_WITHIN, HOLD_WITHIN]


def test_fault_164_a_hold_is_asked_about_under_its_own_text(
    monkeypatch: pytest.MonkeyPatch, mystery_context: dict[str, Any]
) -> None:
    """Once, however many tries there are: to ask again wipes what was answered. Where Airflow shows
    the text of another hold, nothing is asked."""
    sent: list[str] = []
    shown = "Hold the retention of orders for 6h"

    def keep(payload: Any) -> Any:
        sent.append(payload.subject)
        return SimpleNamespace(subject=shown)

    comms = SimpleNamespace(send=keep)
    monkeypatch.setattr(airflow_internals, "SUPERVISOR_COMMS", comms, raising=False)
    mystery_context["ti"].id = uuid4()
    question = AskForHold(task_id="approve", subject="Hold", defaults=["Reject"])

    def ask(length: str) -> None:
        proposed = {"stream": "orders", "length": length, "body": "b", "within": 600.0}
        mystery_context["ti"].xcom_pull.return_value = proposed
        question.execute(cast("Context", mystery_context))

    for _ in range(2):
        with pytest.raises(TaskDeferred):
            ask("6h")
    assert sent == [shown]
    with pytest.raises(RunbookRefusal, match=r"stream orders: .*new run with the action hold"):
        ask("12h")
    event = {
        "chosen_options": ["Approve"],
        "params_input": {},
        "responded_at": utc_now(),
        "responded_by_user": {"id": "8", "name": "bob"},
    }
    question.execute_complete(cast("Context", mystery_context), event)
    with pytest.raises(TaskDeferred):
        ask("6h")
    assert len(sent) == 3, "it is asked anew after its answer counted"


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


def test_fault_163_164_168_a_hold_alone_from_the_detection_to_its_end(
    airflow: Airflow, slots: Slots
) -> None:
    """Nobody reads, and retention comes: a run asks; where its DAG is paused, that is told. Nothing is raised before; afterwards it is
    theirs, and the report says until when. Cleared, it would ask about another time under the first
    one's text, and asks nothing."""
    stream = slots.take("asked")
    slots.change_stream(stream, auto_plan=True)
    topic, properties = slots.name_topic(stream), {"bootstrap.servers": slots.bootstrap}
    set_config(properties, topic, {"retention.ms": str(19 * 60_000)})
    leave_at(properties, slots.name_group(stream), topic, dict.fromkeys(range(PARTITIONS), 0))
    publish(properties, topic, {0: 10})
    with airflow.paused(RECOVER):
        look = airflow.trigger("detect_backlog", {"streams": [stream]})
        airflow.await_state(look, "pick_recoveries", {"success"}, within=300)
        (picked,) = airflow.xcom(look, "pick_recoveries")
        run = DagRun(RECOVER, picked["trigger_run_id"])
        airflow.await_mapped(look, "start_recovery", 0, {"success"})
        airflow.await_run(look)  # it may be about to end, and what is cleared then is not run
        airflow.clear(look, "tell_paused")
        airflow.await_state(look, "tell_paused", {"failed"})
        told = airflow.xcom(look, "tell_paused", "reason")
        assert "recover_backlog is paused, and has work: " in told
        assert "not over. `airflow dags unpause recover_backlog`" in told
    asked = airflow.await_question(run, ASK)
    workspace = open_workspace(load_config(slots.config, dict(os.environ)))
    assert asked["subject"] == f"Hold the retention of {stream} for 6h"
    assert "**Raises** the retention of topic" in asked["body"]
    assert workspace.ledger.holds.list(stream=stream) == ()
    airflow.answer(run, ASK)
    airflow.await_run(run, {"success"})
    (hold,) = workspace.ledger.holds.list(stream=stream)
    assert (hold.holder, hold.actor.partition("@")[0]) == (OPERATOR, "airflow:second")
    assert f"topic {hold.topic} is held until" in airflow.read_run(run)["note"]
    airflow.clear(run, "choose")
    airflow.await_run(run, {"failed"})
    assert "Trigger a new run with the action hold" in airflow.read_run(run)["note"]
    assert workspace.ledger.holds.list(stream=stream) == (hold,)
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
