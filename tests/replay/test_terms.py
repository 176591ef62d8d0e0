"""What changes no message takes effect without a new plan; no broker, no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backlogctl.errors import Refused
from backlogctl.replay.engine.approval import SamePerson, approve_plan, check_hash
from backlogctl.replay.engine.kind import TERMS_CHANGED, Workspace, choose_stricter
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.present.status import tell_plan
from backlogctl.values import RecoveryState
from tests.replay.makers import open_desk, store_plan

STREAM: dict[str, Any] = {"cluster": "main", "topic": "orders", "group": "service"}
NIGHT = {"from": "00:30", "to": "06:00", "timezone": "Asia/Shanghai"}


def reopen(directory: Path, **keys: Any) -> Workspace:
    """The same ledger, another file."""
    return open_desk(directory, streams={"orders": {**STREAM, **keys}})


def test_deliver_window_and_limits_are_those_of_the_file(tmp_path: Path) -> None:
    desk = reopen(tmp_path)
    planned = store_plan(desk, other_groups=["audit"])
    with pytest.raises(Refused, match="audit"):
        approve_plan(desk, planned, by="ada")
    limits = {"messages_per_second": 500}
    desk = reopen(tmp_path, deliver="topic", off_peak=NIGHT, limits=limits)
    told = tell_plan(desk, planned).document
    assert told["limits"]["messages_per_second"] == 500
    assert told["off_peak"] == NIGHT
    approved = approve_plan(desk, planned, by="ada")
    check_hash(approved)
    assert approved.plan_hash == planned.plan_hash
    (event,) = [e for e in desk.ledger.events.list(planned.id) if e.action == TERMS_CHANGED]
    assert event.detail["for"] == "approve"
    assert event.detail["deliver"] == "topic"
    assert event.detail["off_peak"] == NIGHT
    assert "approval" not in event.detail, "as in the plan"


def test_a_plan_is_not_made_easier_to_approve(tmp_path: Path) -> None:
    planner = find_identity()
    who = {"kind": planner.kind, "user": planner.user, "host": planner.host}
    desk = reopen(tmp_path)
    strict = store_plan(desk, approval="second_person", planned_by=who)
    for name in ("named", "auto"):
        with pytest.raises(SamePerson):
            approve_plan(reopen(tmp_path, approval=name), strict, by="ada", identity=planner)
    loose = store_plan(desk, approval="named", planned_by=who)
    with pytest.raises(SamePerson):
        approve_plan(reopen(tmp_path, approval="second_person"), loose, by="ada", identity=planner)
    assert choose_stricter("auto", "named") == choose_stricter("named", "auto") == "named"


def test_a_recovery_that_is_over_shows_its_own_plan(tmp_path: Path) -> None:
    planned = store_plan(reopen(tmp_path))
    desk = reopen(tmp_path, off_peak=NIGHT)
    assert desk.plan_now(planned) != desk.plan_of(planned)
    desk.ledger.recoveries.advance(planned.id, RecoveryState.REJECTED, actor="ada")
    over = desk.ledger.recoveries.get(planned.id)
    assert desk.plan_now(over) == desk.plan_of(over)
