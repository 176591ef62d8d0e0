"""One plan for one run, however often its task is run (faults 38, 39)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from backlog.errors import Refused, UsageError
from backlog.values import Recovery, RecoveryState
from replay.identity import acting_as, find_identity
from replay.origins import describe_origin
from replay.runbooks import planning
from replay.runbooks.planning import find_or_plan
from replay.runbooks.requests import RecoveryRequest
from replay.workspace import Workspace
from tests.replay.runbooks.desks import (
    AIRFLOW_USER,
    RUN,
    bring,
    lose,
    open_shop,
    store,
)

S = RecoveryState
OTHER_RUN = describe_origin("recover_backlog", "run-2")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Its planners store a plan at once, with what they are given."""

    def make(kind: str) -> Any:
        def plan(desk: Workspace, stream: Any, options: Any, tell: Any) -> Recovery:
            return store(
                desk, kind, origin=dict(options.origin), planned_by=find_identity().to_json()
            )

        return plan

    monkeypatch.setattr(planning, "plan_expand", make("expand"))
    monkeypatch.setattr(planning, "plan_rebuild", make("rebuild"))
    return open_shop(tmp_path)


def ask(
    desk: Workspace, kind: str = "rebuild", origin: Mapping[str, Any] = RUN, **form: Any
) -> Recovery:
    return find_or_plan(desk, RecoveryRequest("orders", **form), kind, origin)


@pytest.mark.parametrize("kind", ["expand", "rebuild"])
def test_fault_39_a_run_gets_its_own_plan_again_in_any_state(desk: Workspace, kind: str) -> None:
    plan = ask(desk, kind)
    assert plan.kind == kind
    for state in (S.APPROVED, S.RUNNING, S.PAUSED, S.RUNNING, S.FAILED, S.RUNNING, S.VERIFIED):
        assert ask(desk, kind).id == plan.id
        bring(desk, plan, state)
    assert ask(desk, kind).state is S.VERIFIED
    assert len(desk.ledger.recoveries.list()) == 1


def test_fault_39_a_plan_that_was_closed_is_made_anew(desk: Workspace) -> None:
    first = ask(desk)
    bring(desk, first, S.REJECTED)
    second = ask(desk)
    assert second.id != first.id
    bring(desk, second, S.APPROVED, S.CANCELLED)
    third = ask(desk)
    assert third.id not in (first.id, second.id)
    assert ask(desk).id == third.id


def test_runs_kinds_and_streams_have_plans_of_their_own(desk: Workspace) -> None:
    first = bring(desk, ask(desk, "expand"), S.APPROVED, S.RUNNING, S.VERIFIED)
    rebuilt = bring(desk, ask(desk, "rebuild"), S.APPROVED, S.RUNNING, S.VERIFIED)
    other = ask(desk, "expand", OTHER_RUN)
    assert len({first.id, rebuilt.id, other.id}) == 3
    assert other.plan["origin"] == OTHER_RUN


def test_who_asked_is_on_record(desk: Workspace) -> None:
    with acting_as(AIRFLOW_USER):
        plan = ask(desk)
    assert plan.plan["planned_by"] == {"kind": "airflow", "user": "grace", "host": "worker"}
    assert plan.plan["origin"]["note"] == "INC-4711"
    assert ask(desk, origin=OTHER_RUN).plan["planned_by"]["kind"] == "os", "and only meanwhile"


def test_a_plan_that_is_named_must_be_what_the_form_says(desk: Workspace) -> None:
    gap = lose(desk)
    plan = store(desk, "rebuild", gap.id, origin=None)
    assert ask(desk, recovery=plan.id).id == plan.id
    with pytest.raises(UsageError, match="a plan to rebuild orders, not to expand orders"):
        ask(desk, "expand", recovery=plan.id)
    with pytest.raises(UsageError, match="no such recovery"):
        ask(desk, recovery="r-20200101-0001")
    bring(desk, plan, S.REJECTED)
    with pytest.raises(Refused, match="it was rejected") as caught:
        ask(desk, recovery=plan.id)
    assert "leave `recovery` empty" in caught.value.hint
    assert len(desk.ledger.recoveries.list()) == 1, "nothing was planned instead"
