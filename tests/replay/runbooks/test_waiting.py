"""What waits for runbooks that may be paused."""

from __future__ import annotations

from backlog.values import Cause, RecoveryState
from replay.recovery.brakes import OPERATOR, WINDOW
from replay.recovery.identity import acting_as
from replay.recovery.origins import name_origin
from replay.recovery.workspace import Workspace
from replay.runbooks.waiting import WaitingWork, list_waiting_work
from tests.replay.runbooks.desks import (
    SHELL_USER,
    bring,
    bring_by_airflow,
    lose,
    store,
    store_unknown,
)

S = RecoveryState
DAGS = ("recover_backlog", "emergency_offload")
NIGHT_RUN = name_origin("nightly_backfill", "scheduled__2026-11-21")


def look(desk: Workspace) -> WaitingWork:
    return list_waiting_work(desk, DAGS)


def test_open_gaps_are_the_nights_work(desk: Workspace) -> None:
    assert look(desk) == WaitingWork((), {})
    lose(desk, cause=Cause.TOPIC_RECREATED)
    assert look(desk) == WaitingWork((), {}), "nobody can plan it"
    lose(desk, partition=1)
    lose(desk, partition=2)
    assert look(desk) == WaitingWork(("orders has 2 open gaps",), {})


def test_what_a_night_has_begun_goes_on_at_night(desk: Workspace) -> None:
    recovery = store(desk, "rebuild", lose(desk).id, origin=NIGHT_RUN)
    assert look(desk).nightly == (), "it waits for a person"
    bring_by_airflow(desk, recovery, S.APPROVED, S.RUNNING, S.PAUSED, why=WINDOW)
    assert look(desk) == WaitingWork((f"{recovery.id} of orders is paused",), {})


def test_what_a_run_has_begun_is_that_dags(desk: Workspace) -> None:
    recovery = store(desk, "expand")
    told = f"{recovery.id} of orders is"
    assert look(desk).recovering == {"recover_backlog": (f"{told} planned",)}
    bring_by_airflow(desk, recovery, S.APPROVED, S.RUNNING)
    assert look(desk).recovering == {"recover_backlog": (f"{told} running",)}


def test_each_dag_has_its_own(desk: Workspace) -> None:
    offload = store(desk, "expand", origin=name_origin("emergency_offload", "run-1"))
    assert look(desk).recovering == {"emergency_offload": (f"{offload.id} of orders is planned",)}


def test_what_a_person_keeps_is_no_work(desk: Workspace) -> None:
    store_unknown(desk)
    paused = bring(desk, store(desk), S.APPROVED, S.RUNNING, S.PAUSED, why=OPERATOR)
    assert look(desk) == WaitingWork((), {})
    bring(desk, paused, S.CANCELLED)
    by_hand = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, S.RUNNING, S.FAILED)
    with acting_as(SHELL_USER):
        bring(desk, by_hand, S.RUNNING)
    with desk.ledger.leases.hold(by_hand.id):
        assert look(desk) == WaitingWork((), {})
