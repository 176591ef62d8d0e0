"""Who did it: the account, or whom a scheduler works for."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from pathlib import Path

import pytest

from backlogctl.errors import Refused
from backlogctl.replay.engine.approval import SamePerson, approve_plan, reject_plan
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import Identity, acting_as, find_identity
from backlogctl.values import RecoveryState
from tests.replay.makers import open_desk, store_plan

S = RecoveryState
GRACE = Identity("airflow", "grace", "worker-1")
PLANNED_BY_GRACE = {"kind": "airflow", "user": "grace", "host": "scheduler"}


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    return open_desk(tmp_path)


def test_the_account_is_not_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    found = find_identity()
    assert (found.kind, found.user) == ("os", pwd.getpwuid(os.getuid()).pw_name)


def test_acting_ends_with_its_block_even_by_an_error() -> None:
    own = find_identity()
    with acting_as(GRACE):
        assert find_identity() == GRACE
        with pytest.raises(KeyError), acting_as(replace(GRACE, user="ada")):
            raise KeyError(str(find_identity()))
        assert find_identity() == GRACE
    assert find_identity() == own


def test_what_is_done_for_somebody_is_on_record_as_theirs(desk: Workspace) -> None:
    plan = store_plan(desk)
    with acting_as(GRACE):
        approve_plan(desk, plan, by="Grace Hopper")
        rejected = reject_plan(desk, store_plan(desk, topic="other"), by="Grace", reason="no")
    approved = desk.ledger.recoveries.get(plan.id)
    assert approved.approved_identity == "airflow:grace@worker-1"
    assert desk.ledger.events.list(rejected.id)[-1].actor == "airflow:grace@worker-1"
    assert desk.ledger.events.verify_chain(rejected.id)


def test_second_person_is_another_user_of_airflow(desk: Workspace) -> None:
    plan = store_plan(desk, approval="second_person", planned_by=PLANNED_BY_GRACE)
    with pytest.raises(SamePerson, match="another person must approve"):
        # On whatever host, and whatever name they give.
        approve_plan(desk, plan, by="Ada", identity=GRACE)
    assert desk.ledger.recoveries.get(plan.id).state is S.PLANNED
    ada = replace(GRACE, user="ada")
    approved = approve_plan(desk, plan, by="Grace", identity=ada)
    assert (approved.state, approved.approved_identity) == (S.APPROVED, "airflow:ada@worker-1")


def test_one_name_in_two_systems_is_not_known_to_be_one_person(desk: Workspace) -> None:
    plan = store_plan(desk, approval="second_person", planned_by=PLANNED_BY_GRACE)
    shell = Identity("os", "grace", "laptop")
    assert approve_plan(desk, plan, by="Grace", identity=shell).approved_by


def test_a_named_approval_may_be_the_planners_own(desk: Workspace) -> None:
    plan = store_plan(desk, planned_by=PLANNED_BY_GRACE)
    assert approve_plan(desk, plan, by="Grace", identity=GRACE).approved_by


@pytest.mark.parametrize("seen", ["0" * 64, ""])
def test_fault_63_an_answer_is_for_the_plan_that_was_shown(desk: Workspace, seen: str) -> None:
    plan = store_plan(desk)
    with pytest.raises(Refused, match="for another plan"):
        approve_plan(desk, plan, by="ada", plan_hash=seen)
    assert desk.ledger.recoveries.get(plan.id).state is S.PLANNED
    approved = approve_plan(desk, plan, by="ada", plan_hash=plan.plan_hash)
    assert approved.approved_hash == plan.plan_hash


def test_fault_63_the_hash_is_of_the_warnings_too(desk: Workspace) -> None:
    shown = store_plan(desk, warnings=["one"])
    stored = store_plan(desk, warnings=["two"])
    with pytest.raises(Refused, match="for another plan"):
        approve_plan(desk, stored, by="ada", plan_hash=shown.plan_hash)


def test_fault_44_of_two_answers_one_counts(desk: Workspace) -> None:
    plan = store_plan(desk)
    approve_plan(desk, plan, by="ada", plan_hash=plan.plan_hash)
    # What the second one was shown before is still `planned`.
    with pytest.raises(Refused, match="approved by ada"):
        approve_plan(desk, plan, by="grace", plan_hash=plan.plan_hash)
    assert desk.ledger.recoveries.get(plan.id).approved_by == "ada"
