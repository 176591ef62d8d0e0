"""How a recovery stands where the brokers do not answer, and what other kinds say."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from backlogctl.clock import utc_now
from backlogctl.dags.task_context import RunbookError, translated_errors
from backlogctl.errors import BacklogError, KafkaFailure, Paused
from backlogctl.ledger import BurndownSample
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.cancelling import telling_standing
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.present.status import find_status, list_lines
from backlogctl.values import Recovery, RecoveryState
from tests.replay.calling import call_main
from tests.replay.expand_makers import store_expand_plan
from tests.replay.makers import open_desk, store_approved

S = RecoveryState


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr("backlogctl.replay.consumers.members.STANDING_SECONDS", 1.0)
    for module in ("groups", "topics", "readers"):
        monkeypatch.setattr(f"backlogctl.kafka.{module}.DEFAULT_SECONDS", 1.0)
    monkeypatch.setattr("backlogctl.replay.observe.stream.LOOK_SECONDS", 1.0)
    return open_desk(tmp_path)


def store_drain(desk: Workspace, state: RecoveryState) -> Recovery:
    """An expansion whose 28,400 relayed messages were not handled when last looked at."""
    made = approve_plan(desk, store_expand_plan(desk), by="ada")
    ledger = desk.ledger
    ledger.recoveries.advance(made.id, S.RUNNING, "op")
    for step in ("stop_consumers", "create_topic", "canary", "drain"):
        ledger.steps.start(made.id, step)
    topic = made.plan["temporary"]["topic"]
    ledger.temporary_topics.announce(made.id, "main", topic, 30)
    ledger.temporary_topics.record_id(made.id, "topic-id")
    at = utc_now() - timedelta(minutes=3)
    ledger.burndown.add(BurndownSample(made.id, at, "drain", 7, 28_400, 40_000, 11_600, 30))
    if state is not S.RUNNING:
        ledger.recoveries.advance(made.id, state, "op", {"message": "no broker answered"})
    return ledger.recoveries.get(made.id)


@pytest.mark.parametrize("state", [S.RUNNING, S.PAUSED, S.FAILED])
def test_what_the_brokers_do_not_say_is_unknown_and_never_zero(
    desk: Workspace, state: RecoveryState
) -> None:
    recovery = store_drain(desk, state)
    standing = find_status(desk, recovery)
    assert standing is not None
    assert (standing["reads"], standing["recovery_consumers"]) == ("unknown", None)
    assert standing["stopped"] == "the 3 consumers of group service"
    assert standing["temporary"]["messages"] is None
    assert standing["temporary"]["last"]["messages"] == 28_400
    assert "127.0.0.1:1" in standing["problem"]
    told = dict(list_lines(standing))
    assert told["only in the temporary topic"].startswith("unknown; 28,400 at ")
    assert told["reads"] == "unknown"
    assert ("nobody works on it" in told["recovery"]) is (state is S.RUNNING)
    assert standing["next_commands"] == [f"backlogctl run {recovery.id}"]


def test_an_error_says_it_on_the_terminal_in_json_and_to_airflow(
    desk: Workspace, tmp_path: Path
) -> None:
    recovery = store_drain(desk, S.FAILED)
    with (
        pytest.raises(RunbookError) as failed,
        translated_errors(),
        telling_standing(desk, recovery.id),
    ):
        raise KafkaFailure("no broker answered", subject="topic orders")
    message = str(failed.value)
    assert "stopped: the 3 consumers of group service" in message
    assert message.endswith(f"next: backlogctl run {recovery.id}")

    code, out, err = call_main(("cancel", recovery.id), tmp_path, {})
    assert code == 1, (out, err)
    assert "how things stand" in err
    assert "the 3 consumers of group service" in err
    assert err.rstrip().endswith(f"next: backlogctl cancel {recovery.id}")


def test_what_changed_nothing_or_is_over_has_no_standing(desk: Workspace) -> None:
    planned = store_expand_plan(desk)
    assert find_status(desk, planned) is None
    with pytest.raises(Paused) as caught, telling_standing(desk, planned.id):
        raise Paused("not now")
    assert caught.value.standing is None


def test_a_rebuild_says_what_was_put_back(desk: Workspace) -> None:
    recovery = store_approved(desk)
    desk.ledger.recoveries.advance(recovery.id, S.RUNNING, "op")
    desk.ledger.steps.start(recovery.id, "inject")
    desk.ledger.recoveries.advance(recovery.id, S.FAILED, "op")
    with pytest.raises(BacklogError) as caught, telling_standing(desk, recovery.id):
        raise BacklogError("the topic is away")
    standing = caught.value.standing
    assert standing is not None
    assert standing["put_back"] == {"done": 0, "planned": 10}
    assert (standing["reads"], standing["stopped"]) == ("originals", "")
    assert dict(list_lines(standing))["put back"] == "0 of 10 messages"


def test_status_says_it_while_the_brokers_are_away(desk: Workspace, tmp_path: Path) -> None:
    recovery = store_drain(desk, S.RUNNING)
    code, out, err = call_main(("status", "orders", "--json"), tmp_path, {})
    assert code == 1, err
    document = json.loads(out)
    assert document["error"]["code"] == "unreachable"
    assert document["standing"]["recovery"] == recovery.id
    assert document["standing"]["temporary"]["last"]["messages"] == 28_400
