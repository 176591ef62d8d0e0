"""A rebuild by Airflow: from the form to verified, and what stops it in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil
import pytest

from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import name_origin
from backlogctl.replay.kinds import REBUILD
from backlogctl.values import ChunkState, RecoveryState
from tests.dags.airflow import Airflow, DagRun
from tests.dags.conftest import TakeShop
from tests.dags.slots import SlotShop
from tests.kafka_tools import wait_until
from tests.replay.makers import read_actions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

S = RecoveryState
FORM, APPROVE, WORK = "recover_backlog", "rebuild.approve", "rebuild.carry_out"


def count_chunks(desk: Workspace, recovery_id: str) -> tuple[int, int]:
    """How many chunks are in the topic by the ledger, of how many."""
    found = desk.ledger.chunks.list(recovery_id)
    return sum(one.state is ChunkState.INJECTED for one in found), len(found)


def await_middle(desk: Workspace, recovery_id: str) -> None:
    """Waits until some of it is injected; more than half is not."""
    wait_until(lambda: count_chunks(desk, recovery_id)[0] >= 1, 240, what="a chunk is injected")
    done, total = count_chunks(desk, recovery_id)
    assert done < total / 2


def list_family(process: psutil.Process) -> list[psutil.Process]:
    """The process and all that it has started, Spark's JVM and its workers among them."""
    family = [process, *process.children(recursive=True)]
    assert any(one.name() == "java" for one in family)
    return family


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def await_end(family: Sequence[psutil.Process], within: float) -> None:
    wait_until(lambda: not any(map(is_alive, family)), within, what="its processes have ended")


def check_verified(airflow: Airflow, desk: Workspace, run: DagRun, recovery_id: str) -> None:
    """The run ended well, with this recovery."""
    airflow.await_run(run, {"success"}, within=300)
    report = airflow.xcom(run, "report")
    assert report["recovery"] == recovery_id
    assert [one["state"] for one in report["outcomes"]] == ["verified"]
    assert desk.ledger.recoveries.get(recovery_id).state is S.VERIFIED


@pytest.mark.timeout(600)
def test_fault_39_from_the_form_to_verified_and_again(
    airflow: Airflow, take_shop: TakeShop
) -> None:
    """Planned by oncall, refused to oncall, approved by a second person; cleared: no new sends."""
    shop = take_shop("second")
    # Without a stream there is no default; a field that does not exist is not left out.
    for wrong in ({}, {"strem": shop.stream}):
        refused = airflow.ask(FORM, wrong)
        assert refused.status_code == 400, refused.text
        assert "stream" in refused.text
    form = {"stream": shop.stream, "action": "auto", "note": "INC-4711 *orders*"}
    run = airflow.trigger(FORM, form, user="oncall")
    asked = airflow.await_question(run, APPROVE, within=300)
    desk = shop.open()
    (planned,) = desk.ledger.recoveries.list(stream=shop.stream)
    plan = REBUILD.read_plan(planned)
    assert (plan.planned_by.kind, plan.planned_by.user) == ("airflow", "oncall")
    assert plan.origin == name_origin(FORM, run.run_id, "INC-4711 *orders*")
    assert asked["subject"] == f"Put 90 messages back into {shop.topic} ({planned.id})"
    body = asked["body"]
    assert "**Plan: exact.** Puts 90 lost messages back into topic" in body
    assert "**Stops** nothing" in body
    assert f"`{planned.plan_hash[:12]}`" in body
    assert "another person than the one who asked for it" in body
    assert r"INC-4711 \*orders\*" in body
    assert f"/recoveries/{planned.id}" in body

    airflow.answer(run, APPROVE, user="oncall")
    wait_until(
        lambda: airflow.read_task(run, APPROVE)["try_number"] == 2, 120, what="it is asked again"
    )
    airflow.await_question(run, APPROVE)
    assert desk.ledger.recoveries.get(planned.id).state is S.PLANNED
    assert read_actions(desk, planned.id) == ["planned"]
    assert "another person must approve" in airflow.logs(run, APPROVE, 1)

    airflow.answer(run, APPROVE, user="second")
    check_verified(airflow, desk, run, planned.id)
    shop.check_same_set()
    verified = desk.ledger.recoveries.get(planned.id)
    assert verified.approved_by == "second"
    assert str(verified.approved_identity).startswith("airflow:second@")
    told = airflow.logs(run, "report")
    assert f"{airflow.standalone.address}/backlogctl/reports/{planned.id}" in told
    links = airflow.get(f"{run.task(WORK)}/links")["extra_links"]
    assert f"/recoveries/{planned.id}" in links["Recovery"]
    assert links["Report"].endswith(f"/backlogctl/reports/{planned.id}")

    ends, actions = shop.read_ends(), read_actions(desk, planned.id)
    for cleared in ("rebuild.plan", "choose"):
        airflow.clear(run, cleared)
        check_verified(airflow, desk, run, planned.id)
        assert shop.read_ends() == ends
        assert read_actions(desk, planned.id) == actions
        assert len(desk.ledger.recoveries.list(stream=shop.stream)) == 1


@pytest.mark.timeout(900)
def test_fault_38_killed_cleared_and_restarted_it_goes_on(
    airflow: Airflow, take_shop: TakeShop, spark: SparkSession
) -> None:
    """SIGKILL of its task, a person who clears it, and an Airflow that is restarted, all in the
    middle of one injection: each message is there once."""
    shop = take_shop("long")
    recovery = shop.plan_approved().id
    run = airflow.trigger(FORM, {"stream": shop.stream, "action": "rebuild", "recovery": recovery})
    desk = shop.open()
    airflow.await_state(run, WORK, {"running"}, within=200)
    await_middle(desk, recovery)
    task = airflow.find_task(run, WORK)
    family = list_family(task)
    task.kill()
    await_end(family, 120)
    await_progress(shop)

    tried = airflow.read_task(run, WORK)["try_number"]
    assert tried == 2
    airflow.clear(run, WORK, downstream=False)
    wait_until(
        lambda: airflow.read_task(run, WORK)["try_number"] > tried, 120, what="it is tried again"
    )
    await_progress(shop)

    airflow.restart()
    assert len(shop.read_injected()) < 90, "it had time to end"
    airflow.await_run(run, {"success"}, within=500)
    check_verified(airflow, desk, run, recovery)
    shop.check_same_set()
    actions = read_actions(desk, recovery)
    assert actions.count("verified") == 1
    assert "lease taken over" in actions


def await_progress(shop: SlotShop) -> None:
    """Waits until more is put back than now."""
    sent = len(shop.read_injected())
    wait_until(lambda: len(shop.read_injected()) > sent, 240, what="it goes on")
