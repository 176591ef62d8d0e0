"""One plan for one run, however often its task is run (faults 38, 39)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from backlogctl.config import Stream
from backlogctl.errors import Refused, UsageError
from backlogctl.replay.engine.kind import Say, Workspace
from backlogctl.replay.engine.plan import Options, RunOrigin, acting_as, find_identity, name_origin
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.kinds.expand.plan import ExpandOptions
from backlogctl.replay.kinds.rebuild.plan import RebuildOptions
from backlogctl.replay.runbooks.requests import RecoveryRequest, find_or_plan
from backlogctl.values import Recovery, RecoveryState
from tests.replay.runbooks.desks import AIRFLOW_USER, RUN, bring, lose, store

S = RecoveryState
OTHER_RUN = name_origin("recover_backlog", "run-2")


@dataclass
class Asked:
    """What a planner was asked for."""

    stream: str
    options: Options


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """Planners store a plan at once, with what they are given."""
    found: list[Asked] = []
    for kind in KINDS:
        monkeypatch.setattr(type(kind), "make_plan", _make_planner(kind.name, found))
    return found


def _make_planner(name: str, asked: list[Asked]) -> Callable[..., Recovery]:
    def make(
        kind: object,
        desk: Workspace,
        stream: Stream,
        options: Options,
        *,
        origin: RunOrigin,
        say: Say,
    ) -> Recovery:
        asked.append(Asked(stream.name, options))
        return store(desk, name, origin=origin, planned_by=find_identity().to_json())

    return make


def ask(desk: Workspace, kind: str = "rebuild", origin: RunOrigin = RUN, **form: Any) -> Recovery:
    return find_or_plan(desk, RecoveryRequest("orders", **form), kind, origin)


def test_a_kind_gets_its_own_options_of_the_form(desk: Workspace, asked: list[Asked]) -> None:
    said = {"since": "2026-11-21T08:00", "factor": 10, "rate": 12.5, "order": "round_robin"}
    ask(desk, "expand", said=said)
    ask(desk, "rebuild", said=said)
    # Without a zone it is the source's own time: Shanghai is eight hours ahead.
    since = datetime(2026, 11, 21, 0, 0, tzinfo=UTC)
    assert asked == [
        Asked("orders", ExpandOptions(factor=10, rate=12.5, order="round_robin")),
        Asked("orders", RebuildOptions(since=since)),
    ]


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
    assert desk.plan_of(other).origin == OTHER_RUN


def test_fault_138_the_same_run_id_in_another_airflow_is_another_run(desk: Workspace) -> None:
    theirs = ask(desk, origin=RUN.model_copy(update={"deployment": "green"}))
    mine = ask(desk, origin=RUN.model_copy(update={"deployment": "blue", "note": None}))
    assert mine.id != theirs.id
    assert ask(desk, origin=RUN.model_copy(update={"deployment": "blue"})).id == mine.id


def test_who_asked_is_on_record(desk: Workspace) -> None:
    with acting_as(AIRFLOW_USER):
        plan = ask(desk)
    found = desk.plan_of(plan)
    assert found.planned_by == AIRFLOW_USER
    assert found.origin is not None
    assert found.origin.note == "INC-4711"
    other = desk.plan_of(ask(desk, origin=OTHER_RUN))
    assert other.planned_by.kind == "os", "and only meanwhile"


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
