"""A recovery of a kind that this program does not know: refused where it is given, left alone
where it is passed by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from backlogctl.clock import utc_now
from backlogctl.errors import Refused
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import name_origin
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.runbooks import detection, nights
from backlogctl.replay.runbooks.descriptions import (
    describe_body,
    describe_outcome,
    describe_subject,
)
from backlogctl.replay.runbooks.detection import (
    choose_actions,
    detect_backlog,
    find_declined,
    should_plan,
)
from backlogctl.replay.runbooks.nights import Tonight, find_night_work
from backlogctl.replay.runbooks.requests import RecoveryRequest, find_or_plan
from backlogctl.replay.runbooks.work import carry_on, list_left_open, restore_layout
from backlogctl.values import Recovery, RecoveryState
from tests.replay.makers import make_recovery
from tests.replay.runbooks.desks import (
    MYSTERY,
    RUN,
    TOPIC_ID,
    lose,
    make_rebuild,
    name_states,
    open_shop,
    store_unknown,
)

S = RecoveryState
CONSOLE = Console(quiet=True)
NIGHT = name_origin("nightly_backfill", "scheduled__2026-11-21")
# How it may stand in the ledger.
STATES: tuple[tuple[S, ...], ...] = (
    (),
    (S.APPROVED,),
    (S.APPROVED, S.RUNNING),
    (S.APPROVED, S.RUNNING, S.PAUSED),
    (S.APPROVED, S.RUNNING, S.FAILED),
    (S.APPROVED, S.RUNNING, S.VERIFIED),
    (S.APPROVED, S.CANCELLED),
    (S.REJECTED,),
)
UNDER_WAY = STATES[:5]
Act = Callable[[Workspace, Recovery], Any]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A stream that may start a recovery by itself, whose looks and plans need no Kafka."""

    class Seen:
        class sample:  # noqa: N801 - as the observation has it
            topic_id = TOPIC_ID

    def look(workspace: Workspace, stream: Any) -> tuple[Any, dict[str, Any]]:
        words = {"verdict": "losing", "course": "losing", "sentence": "told", "warnings": []}
        return Seen, {**words, "lag": 10, "lost": None, "seconds_to_loss": None}

    def plan(*_: Any, **named: Any) -> Recovery:
        return make_recovery(make_rebuild(), id="r-of-ours")

    monkeypatch.setattr(detection, "sample_stream", look)
    monkeypatch.setattr(nights, "plan_rebuild", plan)
    for kind in KINDS:
        monkeypatch.setattr(type(kind), "make_plan", plan)
    return open_shop(tmp_path, auto_plan=True)


def find_named(kind: str) -> Act:
    def find(desk: Workspace, recovery: Recovery) -> Recovery:
        request = RecoveryRequest("orders", recovery=recovery.id)
        return find_or_plan(desk, request, kind, RUN)

    return find


GIVEN: dict[str, Act] = {
    "subject": describe_subject,
    "body": describe_body,
    "carry on": lambda desk, recovery: carry_on(desk, recovery.id, CONSOLE),
    "restore": lambda desk, recovery: restore_layout(desk, recovery.id, console=CONSOLE),
    **{f"plan {name}": find_named(name) for name in (*KINDS.names(), MYSTERY)},
}


@pytest.mark.parametrize("states", STATES, ids=name_states)
@pytest.mark.parametrize("name", GIVEN)
def test_what_is_given_it_refuses(desk: Workspace, name: str, states: tuple[S, ...]) -> None:
    """By the one sentence of the registry, in any state; nothing is changed."""
    for origin in (None, RUN):
        recovery = store_unknown(desk, *states, origin=origin)
        before = read(desk, recovery)
        with pytest.raises(Refused) as caught:
            GIVEN[name](desk, recovery)
        error = caught.value
        assert error.message == f"this program does not know the kind {MYSTERY}"
        assert error.subject == f"recovery {recovery.id}"
        assert "the version of backlogctl that planned it" in error.hint
        assert read(desk, recovery) == before
        if states in UNDER_WAY:
            break  # one of a topic at a time


def look_again(desk: Workspace) -> tuple[Any, ...]:
    stream = desk.config.stream("orders")
    found = detect_backlog(desk, stream)
    return found.under_way, found.actions, should_plan(desk, stream, found)


PASSING: dict[str, Callable[[Workspace], Any]] = {
    "detect": look_again,
    "actions": lambda desk: choose_actions(
        desk, desk.config.stream("orders"), Verdict.LOSING, 10, TOPIC_ID
    ),
    "declined": lambda desk: find_declined(desk, desk.config.stream("orders")),
    "night": lambda desk: find_night_work(desk, desk.config.stream("orders"), utc_now(), NIGHT),
    "left open": list_left_open,
    "plan": lambda desk: find_or_plan(desk, RecoveryRequest("orders"), "rebuild", RUN),
}


@pytest.mark.parametrize("states", STATES, ids=name_states)
@pytest.mark.parametrize("name", PASSING)
def test_what_passes_it_by_leaves_it_alone(
    desk: Workspace, name: str, states: tuple[S, ...]
) -> None:
    recovery = store_unknown(desk, *states)
    lose(desk)
    before = read(desk, recovery)
    PASSING[name](desk)
    assert read(desk, recovery) == before


@pytest.mark.parametrize("states", STATES, ids=name_states)
def test_nothing_is_begun_beside_it(desk: Workspace, states: tuple[S, ...]) -> None:
    """It counts as work that is under way, until it is at its end."""
    recovery = store_unknown(desk, *states)
    lose(desk)
    under_way, actions, starts = look_again(desk)
    night = find_night_work(desk, desk.config.stream("orders"), utc_now(), NIGHT)
    assert actions == ("expand", "rebuild")
    assert list_left_open(desk) == ()
    if states in UNDER_WAY:
        assert (under_way, starts) == ((recovery.id,), False)
        assert night.action is Tonight.NOTHING
        assert night.why == f"its {MYSTERY} {recovery.id} is {name_states(states)}"
    else:
        assert (under_way, starts) == ((), True)
        assert (night.action, night.recovery) == (Tonight.ASK, "r-of-ours")


def read(desk: Workspace, recovery: Recovery) -> tuple[Any, ...]:
    """All that the ledger has of it."""
    return (
        desk.ledger.recoveries.get(recovery.id),
        desk.ledger.events.list(recovery.id),
        desk.ledger.steps.list(recovery.id),
        desk.ledger.leases.holder(recovery.id),
    )


def test_the_last_task_reports_it_among_others(desk: Workspace) -> None:
    """One that nobody here can read does not hide the outcome of the rest."""
    outcome = describe_outcome(desk, store_unknown(desk))
    assert (outcome["kind"], outcome["state"], outcome["counts"]) == (MYSTERY, "planned", None)
