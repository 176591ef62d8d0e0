"""One run of `recover_backlog` with `auto`: drained first, and what was lost put back then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fanout.launchers import Role
from replay.around.fleets import fleet_of, launcher_of
from tests.dags.airflow import Airflow
from tests.dags.conftest import TakeShop
from tests.dags.slots import SlotShop
from tests.replay.shop import DONE, LOST, TOTAL

FORM = "recover_backlog"


@pytest.fixture
def shop(take_shop: TakeShop) -> Iterator[SlotShop]:
    """60 orders handled, 90 lost, 90 unread; its consumers end with the test."""
    made = take_shop("both")
    yield made
    workspace = made.open()
    stream = workspace.config.stream(made.stream)
    launcher = launcher_of(workspace, stream, lambda _: None)
    launcher.stop(fleet_of(workspace, stream, Role.ORIGINAL), lambda: None)
    for recovery in workspace.ledger.recoveries.list(made.stream):
        fleet = fleet_of(workspace, stream, Role.RECOVERY, recovery.id)
        launcher.stop(fleet, lambda: None)


@pytest.mark.timeout(900)
def test_fault_84_auto_drains_and_puts_back_in_one_run(airflow: Airflow, shop: SlotShop) -> None:
    """Each kind plans, asks and carries out on its own; each message is there once."""
    run = airflow.trigger(FORM, {"stream": shop.stream, "action": "auto", "rate": 200})
    subjects = []
    for kind in ("expand", "rebuild"):
        subjects.append(airflow.await_question(run, f"{kind}.approve", within=400)["subject"])
        airflow.answer(run, f"{kind}.approve")
    airflow.await_run(run, {"success"}, within=400)
    outcomes = airflow.xcom(run, "report")["outcomes"]
    found = [(one["kind"], one["state"]) for one in outcomes]
    assert found == [("expand", "verified"), ("rebuild", "verified")]
    assert subjects[0].startswith(f"Drain {TOTAL - DONE - LOST} messages of {shop.stream} with ")
    assert subjects[1].startswith(f"Put {LOST} messages back into {shop.topic} ")
    shop.check_same_set()


@pytest.mark.timeout(900)
def test_a_refused_expansion_does_not_hold_up_the_rebuild(airflow: Airflow, shop: SlotShop) -> None:
    """Nobody is in the group, and no rate is given: how fast a consumer is, is not known."""
    run = airflow.trigger(FORM, {"stream": shop.stream, "action": "auto"})
    airflow.answer(run, "rebuild.approve")
    airflow.await_run(run, {"failed"}, within=400)
    states = airflow.read_states(run)
    assert (states["expand.plan"], states["rebuild.carry_out"]) == ("skipped", "success")
    reason = airflow.xcom(run, "report", "reason")
    assert "expand is refused: " in reason
    assert "how fast one consumer is, is not known" in reason
    ends = [r.state for r in shop.open().ledger.recoveries.list(shop.stream)]
    assert ends == ["verified"]
