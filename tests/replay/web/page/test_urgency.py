"""What will be lost comes before what is planned."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from backlogctl.monitoring.verdict.status import GroupStatus, Verdict
from backlogctl.replay.web.page.overview import choose_commands
from backlogctl.values import RecoveryState
from tests.replay.expand_makers import make_expand_plan
from tests.replay.makers import make_rebuild_plan
from tests.replay.web.page.night import NOW, Night, make_group
from tests.replay.web.page.visits import read, strip

HOLD = "backlogctl hold orders --for 6h"


def make_losing(course: str = "losing", verdict: str = "lost", **changes: Any) -> GroupStatus:
    commands = (HOLD, "backlogctl plan expand orders")
    status = make_group("orders-service", "orders", verdict, 500, 100, 6_780.0)
    told: dict[str, Any] = {
        "stream": "orders",
        "course": Verdict(course),
        "next_commands": commands,
        **changes,
    }
    return replace(status, **told)


@pytest.mark.parametrize(("course", "verdict"), [("losing", "lost"), ("losing", "losing")])
def test_a_loss_to_come_stands_before_an_unrelated_plan(
    quiet: Night, course: str, verdict: str
) -> None:
    quiet.board.put_stream(make_losing(course, verdict))
    recovery = quiet.plan(make_rebuild_plan())
    wanted = f"next {HOLD} then backlogctl approve {recovery.id} --by NAME"
    for path in ("/", "/streams/orders"):
        assert wanted in strip(read(quiet, path))


def test_without_a_loss_to_come_the_recovery_is_what_is_next(quiet: Night) -> None:
    quiet.board.put_stream(make_losing("warn"))
    recovery = quiet.plan(make_rebuild_plan())
    words = strip(read(quiet, "/"))
    assert f"next backlogctl approve {recovery.id} --by NAME" in words
    assert HOLD not in words


@pytest.mark.parametrize(
    ("kind", "state", "minutes", "urgent"),
    [
        ("expand", RecoveryState.RUNNING, 5, False),
        ("expand", RecoveryState.RUNNING, -5, True),
        ("expand", RecoveryState.RUNNING, None, True),
        ("expand", RecoveryState.PAUSED, 5, True),
        ("rebuild", RecoveryState.RUNNING, 5, True),
    ],
)
def test_only_an_expansion_that_runs_is_help_already(
    quiet: Night, kind: str, state: RecoveryState, minutes: int | None, urgent: bool
) -> None:
    recovery = replace(
        quiet.plan(make_expand_plan() if kind == "expand" else make_rebuild_plan()),
        state=state,
        lease_until=None if minutes is None else NOW + timedelta(minutes=minutes),
    )
    found = choose_commands("orders", make_losing(), (recovery,), {recovery.id: "go on"}, NOW)
    assert found == ((HOLD, "go on") if urgent else ("go on",))


def test_a_time_to_loss_is_loud_whatever_the_verdict(quiet: Night) -> None:
    quiet.board.put_stream(make_losing("stop", "lost"))
    assert re.search(r'data-label="loss in" class="num loud">1 h 53 min', read(quiet, "/"))
    assert re.search(r'<div class="loud"><dt>loss in', read(quiet, "/streams/orders"))
    quiet.board.put_stream(make_losing("stop", "lost", seconds_to_loss=None))
    assert 'data-label="loss in" class="num">—' in read(quiet, "/")
