"""A rebuild by Airflow: from the form to verified, and what stops it in the middle."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import pytest

from backlog.values import ChunkState, RecoveryState
from replay.kinds import REBUILD
from replay.recovery.origins import name_origin
from replay.recovery.workspace import Workspace
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


def count_settled(shop: SlotShop) -> int:
    """How many messages were put back: what was committed at last is read a moment later."""
    before = -1
    while (now := len(shop.read_injected())) != before:
        before = now
        time.sleep(1)
    return now


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


@dataclass(frozen=True)
class Injection:
    """A slow one that a run is carrying out."""

    shop: SlotShop
    desk: Workspace
    recovery: str
    run: DagRun

    @classmethod
    def start(cls, airflow: Airflow, shop: SlotShop) -> Injection:
        recovery = shop.plan_approved().id
        run = trigger(airflow, shop, recovery)
        airflow.await_state(run, WORK, {"running"}, within=200)
        return cls(shop, shop.open(), recovery, run)

    def check_verified(self, airflow: Airflow, *runs: DagRun) -> None:
        for run in runs:
            check_verified(airflow, self.desk, run, self.recovery)
        self.shop.check_same_set()


def trigger(airflow: Airflow, shop: SlotShop, recovery: str) -> DagRun:
    form = {"stream": shop.stream, "action": "rebuild", "recovery": recovery}
    return airflow.trigger(FORM, form)


@pytest.mark.timeout(600)
def test_fault_38_killed_beside_a_second_run_and_marked_failed(
    airflow: Airflow, take_shop: TakeShop, spark: SparkSession
) -> None:
    """SIGKILL in the middle of an injection, while another run wants the same: one effect. A task
    that is marked failed: Spark's work ends within seconds, and nothing more is sent until another
    run goes on."""
    killed = Injection.start(airflow, take_shop("slow"))
    second = trigger(airflow, killed.shop, killed.recovery)
    await_middle(killed.desk, killed.recovery)
    task = airflow.find_task(killed.run, WORK)
    family = list_family(task)
    task.kill()
    await_end(family, 120)

    # Others go on in its place meanwhile.
    marked = Injection.start(airflow, take_shop("marked"))
    await_middle(marked.desk, marked.recovery)
    family = list_family(airflow.find_task(marked.run, WORK))
    airflow.mark(marked.run, "failed", WORK)
    await_end(family, 40)
    done, total = count_chunks(marked.desk, marked.recovery)
    assert done < total, "it had time to end"
    sent = count_settled(marked.shop)
    airflow.await_run(marked.run, {"failed"})
    assert len(marked.shop.read_injected()) == sent
    held = marked.desk.ledger.recoveries.get(marked.recovery)
    assert (held.state, held.detail.get("why")) == (S.PAUSED, "operator")
    # A night leaves it alone; a person goes on with it.
    night = airflow.trigger("nightly_backfill", {"streams": [marked.shop.stream]})
    airflow.await_run(night, {"success"})
    work = airflow.read_mapped(night, "stream.plan_night", 0)
    assert work["action"] == "nothing"
    assert "a person marked its task failed" in work["why"]
    assert len(marked.shop.read_injected()) == sent
    again = trigger(airflow, marked.shop, marked.recovery)

    killed.check_verified(airflow, killed.run, second)
    assert airflow.read_task(killed.run, WORK)["try_number"] == 2
    actions = read_actions(killed.desk, killed.recovery)
    assert actions.count("verified") == 1
    assert "lease taken over" in actions
    marked.check_verified(airflow, again)


@pytest.mark.timeout(900)
def test_a_task_that_is_cleared_and_an_airflow_that_is_restarted_go_on(
    airflow: Airflow, take_shop: TakeShop, spark: SparkSession
) -> None:
    """Both in the middle of one injection: each message is there once."""
    long = Injection.start(airflow, take_shop("long"))
    await_middle(long.desk, long.recovery)
    airflow.clear(long.run, WORK, downstream=False)
    wait_until(
        lambda: airflow.read_task(long.run, WORK)["try_number"] == 2, 120, what="it is tried again"
    )
    airflow.await_state(long.run, WORK, {"running"})
    sent = len(long.shop.read_injected())
    wait_until(lambda: len(long.shop.read_injected()) > sent, 120, what="it goes on")
    airflow.restart()
    assert len(long.shop.read_injected()) < 90, "it had time to end"
    airflow.await_run(long.run, {"success"}, within=500)
    long.check_verified(airflow, long.run)
    assert read_actions(long.desk, long.recovery).count("verified") == 1
