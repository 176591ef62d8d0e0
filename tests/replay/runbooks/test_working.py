"""Which task works on a recovery, and what a person's mark on it means."""

from __future__ import annotations

import pytest

from backlog.values import Recovery, RecoveryState
from replay.recovery.brakes import INTERRUPTED, OPERATOR, WINDOW
from replay.recovery.identity import acting_as
from replay.recovery.workspace import Workspace
from replay.runbooks.working import (
    MARKED,
    WorkTask,
    find_run,
    find_task,
    hold_for_person,
    lifts_hold,
    note_task,
)
from tests.replay.makers import read_actions
from tests.replay.runbooks.desks import (
    AIRFLOW_USER,
    RUN,
    SHELL_USER,
    bring_by_airflow,
    store,
)

S = RecoveryState
FIRST = WorkTask("recover_backlog", "run-1", "rebuild.carry_out")
SECOND = WorkTask("recover_backlog", "run-2", "rebuild.carry_out")
NIGHT_TASK = WorkTask("nightly_backfill", "night", "stream.put_back", 3)


def begin(desk: Workspace, *states: S, why: str = INTERRUPTED) -> Recovery:
    return bring_by_airflow(desk, store(desk), S.APPROVED, *states, why=why)


def test_the_last_task_is_noted_once(desk: Workspace) -> None:
    recovery = begin(desk)
    assert find_task(desk, recovery) is None
    assert find_run(desk, recovery) == (RUN.dag_id, RUN.run_id)
    for task in (FIRST, FIRST, NIGHT_TASK):
        note_task(desk, recovery.id, task)
    assert find_task(desk, recovery) == NIGHT_TASK
    assert find_run(desk, recovery) == ("nightly_backfill", "night")
    assert NIGHT_TASK.key == "stream.put_back_3"
    assert len([a for a in read_actions(desk, recovery.id) if a == "a task works on it"]) == 2
    with acting_as(SHELL_USER):
        desk.ledger.recoveries.advance(recovery.id, S.RUNNING, str(SHELL_USER))
    assert find_task(desk, recovery) is None, "a person has it now"


@pytest.mark.parametrize("why", [INTERRUPTED, WINDOW])
def test_a_mark_is_a_pause_that_a_person_lifts(desk: Workspace, why: str) -> None:
    recovery = begin(desk, S.RUNNING, S.PAUSED, why=why)
    note_task(desk, recovery.id, FIRST)
    assert not lifts_hold(desk, recovery, FIRST)
    for _ in range(2):
        told = hold_for_person(desk, desk.ledger.recoveries.get(recovery.id), FIRST)
        assert f"`backlogctl resume {recovery.id}`" in told
    held = desk.ledger.recoveries.get(recovery.id)
    assert (held.state, held.detail["why"]) == (S.PAUSED, OPERATOR)
    assert read_actions(desk, recovery.id).count(MARKED) == 1
    assert lifts_hold(desk, held, FIRST), "it was cleared"
    assert lifts_hold(desk, held, SECOND), "somebody started another run for it"
    with acting_as(AIRFLOW_USER):
        desk.ledger.recoveries.advance(recovery.id, S.RUNNING, str(AIRFLOW_USER))
    assert not lifts_hold(desk, held, SECOND), "it goes on already"


def test_a_task_that_waited_beside_it_does_not_lift_it(desk: Workspace) -> None:
    recovery = begin(desk, S.RUNNING, S.PAUSED)
    note_task(desk, recovery.id, SECOND)
    note_task(desk, recovery.id, FIRST)
    hold_for_person(desk, recovery, FIRST)
    assert not lifts_hold(desk, recovery, SECOND)


def test_what_has_failed_is_not_paused(desk: Workspace) -> None:
    recovery = begin(desk, S.RUNNING, S.FAILED)
    hold_for_person(desk, recovery, NIGHT_TASK)
    assert desk.ledger.recoveries.get(recovery.id).state is S.FAILED
    assert MARKED in read_actions(desk, recovery.id)
