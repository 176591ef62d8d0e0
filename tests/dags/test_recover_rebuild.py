"""Rebuilds, expansions, offloads and nights by Airflow, from the form to the end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import psutil
import pytest
from pyspark.sql import SparkSession

from backlogctl.fanout.launchers import Role
from backlogctl.replay.engine.cancelling import cancel_work
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import name_origin
from backlogctl.replay.kinds import EXPAND, REBUILD
from backlogctl.replay.kinds.rebuild.plan import RebuildOptions
from backlogctl.replay.kinds.rebuild.planning import plan_rebuild
from backlogctl.replay.observe.stream import note_stream
from backlogctl.values import ChunkState, Recovery, RecoveryState
from tests.dags.airflow import Airflow, DagRun
from tests.dags.conftest import TakeShop, TakeWorld
from tests.dags.expansion import APPROVE, WORK, relaying, start
from tests.dags.offloads import APPROVE as APPROVE_OFFLOAD
from tests.dags.offloads import RESTORE, SlotOffload, start_offload, take_offload
from tests.dags.offloads import WORK as OFFLOAD
from tests.dags.slots import MINUTE_ZONE, NIGHT_ZONE, Slots, SlotShop, SlotWorld, drop_table
from tests.kit.kafka import wait_until
from tests.kit.processes import is_running
from tests.kit.recoveries import read_actions
from tests.replay.expand.oracle import judge
from tests.replay.offload.world import find_place, judge_offload

pytestmark = pytest.mark.timeout(900)


S = RecoveryState
FORM, APPROVE_REBUILD, CARRY_OUT = "recover_backlog", "rebuild.approve", "rebuild.carry_out"


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


def await_end(family: Sequence[psutil.Process], within: float) -> None:
    wait_until(
        lambda: not any(is_running(one.pid) for one in family),
        within,
        what="its processes have ended",
    )


def check_verified(airflow: Airflow, desk: Workspace, run: DagRun, recovery_id: str) -> None:
    """The run ended well, with this recovery."""
    airflow.await_run(run, {"success"}, within=300)
    report = airflow.xcom(run, "report")
    assert report["recovery"] == recovery_id
    assert [one["state"] for one in report["outcomes"]] == ["verified"]
    assert desk.ledger.recoveries.get(recovery_id).state is S.VERIFIED


@pytest.mark.timeout(1800)  # a busy machine starts its many processes slowly
def test_fault_38_39_from_the_form_to_verified_and_again(
    airflow: Airflow, take_shop: TakeShop, spark: SparkSession
) -> None:
    """Planned by oncall, refused to oncall, approved by a second person; its task is killed in the
    middle of the injection, and tried again; cleared: no new sends."""
    shop = take_shop("second")
    # Without a stream there is no default; a field that does not exist is not left out.
    for wrong in ({}, {"strem": shop.stream}):
        refused = airflow.ask(FORM, wrong)
        assert refused.status_code == 400, refused.text
        assert "stream" in refused.text
    form = {"stream": shop.stream, "action": "auto", "note": "INC-4711 *orders*"}
    run = airflow.trigger(FORM, form, user="oncall")
    asked = airflow.await_question(run, APPROVE_REBUILD, within=300)
    desk = shop.open()
    (planned,) = desk.ledger.recoveries.list(stream=shop.stream)
    plan = REBUILD.read_plan(planned)
    assert (plan.planned_by.kind, plan.planned_by.user) == ("airflow", "oncall")
    mine = airflow.get("/api/v2/variables/backlogctl_deployment")["value"]
    assert plan.origin == name_origin(FORM, run.run_id, "INC-4711 *orders*", deployment=mine)
    assert asked["subject"] == f"Put 90 messages back into {shop.topic} ({planned.id})"
    body = asked["body"]
    assert "**Plan: exact.** Puts 90 lost messages back into topic" in body
    assert "**Stops** nothing" in body
    assert f"`{planned.plan_hash[:12]}`" in body
    assert "another person than the one who asked for it" in body
    assert r"INC-4711 \*orders\*" in body
    assert f"/recoveries/{planned.id}" in body

    airflow.answer(run, APPROVE_REBUILD, user="oncall")
    wait_until(
        lambda: airflow.read_task(run, APPROVE_REBUILD)["try_number"] == 2,
        120,
        what="it is asked again",
    )
    airflow.await_question(run, APPROVE_REBUILD)
    assert desk.ledger.recoveries.get(planned.id).state is S.PLANNED
    assert read_actions(desk, planned.id) == ["planned"]
    assert "another person must approve" in airflow.logs(run, APPROVE_REBUILD, 1)

    airflow.answer(run, APPROVE_REBUILD, user="second")
    airflow.await_state(run, CARRY_OUT, {"running"}, within=200)
    await_middle(desk, planned.id)
    task = airflow.find_task(run, CARRY_OUT)
    family = list_family(task)
    task.kill()
    await_end(family, 120)
    check_verified(airflow, desk, run, planned.id)
    assert airflow.read_task(run, CARRY_OUT)["try_number"] == 2
    assert "lease taken over" in read_actions(desk, planned.id)
    shop.check_same_set()
    verified = desk.ledger.recoveries.get(planned.id)
    assert verified.approved_by == "second"
    assert str(verified.approved_identity).startswith("airflow:second@")
    told = airflow.logs(run, "report")
    assert f"{airflow.standalone.address}/backlogctl/reports/{planned.id}" in told
    links = airflow.get(f"{run.task(CARRY_OUT)}/links")["extra_links"]
    assert f"/recoveries/{planned.id}" in links["Recovery"]
    assert links["Report"].endswith(f"/backlogctl/reports/{planned.id}")

    ends, actions = shop.read_ends(), read_actions(desk, planned.id)
    airflow.clear(run, "choose")
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
    airflow.await_state(run, CARRY_OUT, {"running"}, within=200)
    await_middle(desk, recovery)
    task = airflow.find_task(run, CARRY_OUT)
    family = list_family(task)
    task.kill()
    await_end(family, 120)
    shop.await_progress()

    tried = airflow.read_task(run, CARRY_OUT)["try_number"]
    assert tried == 2
    airflow.clear(run, CARRY_OUT, downstream=False)
    wait_until(
        lambda: airflow.read_task(run, CARRY_OUT)["try_number"] > tried,
        120,
        what="it is tried again",
    )
    shop.await_progress()

    airflow.restart()
    assert len(shop.read_injected()) < 90, "it had time to end"
    airflow.await_run(run, {"success"}, within=500)
    check_verified(airflow, desk, run, recovery)
    shop.check_same_set()
    actions = read_actions(desk, recovery)
    assert actions.count("verified") == 1
    assert "lease taken over" in actions


@contextmanager
def submitting(airflow: Airflow) -> Iterator[None]:
    """While Airflow knows a Spark to submit to."""
    path, extra = "/api/v2/connections", {"deploy-mode": "client", "spark.driver.memory": "900m"}
    body = {
        "connection_id": "backlogctl_spark",
        "conn_type": "spark",
        "host": "local[2]",
        "extra": json.dumps(extra),
    }
    airflow.client().post(path, json=body).raise_for_status()
    try:
        yield
    finally:
        airflow.client().delete(f"{path}/backlogctl_spark").raise_for_status()


def test_fault_159_a_driver_ends_with_a_task_that_is_marked(
    airflow: Airflow, take_shop: TakeShop
) -> None:
    """Planned and put back by drivers that spark-submit starts; a person marks the task, and clears
    it later."""
    shop = take_shop("long")
    with submitting(airflow):
        run = airflow.trigger(FORM, {"stream": shop.stream, "action": "rebuild"})
        airflow.await_question(run, APPROVE_REBUILD, within=300)
        assert "Spark-Submit cmd" in airflow.logs(run, "rebuild.plan")
        desk = shop.open()
        (planned,) = desk.ledger.recoveries.list(stream=shop.stream)
        assert REBUILD.read_plan(planned).planned_by.user == "oncall"
        airflow.answer(run, APPROVE_REBUILD, user="second")
        airflow.await_state(run, CARRY_OUT, {"running"}, within=200)
        await_middle(desk, planned.id)
        family = list_family(airflow.find_task(run, CARRY_OUT))
        airflow.mark(run, "failed", CARRY_OUT)
        await_end(family, 120)
        airflow.await_run(run, {"failed"})
        assert desk.ledger.recoveries.get(planned.id).state is S.PAUSED
        assert 0 < len(shop.read_injected()) < 90

        airflow.clear(run, CARRY_OUT)
        check_verified(airflow, desk, run, planned.id)
        shop.check_same_set()


def check_outlives(airflow: Airflow, world: SlotWorld) -> None:
    """The original consumers belong to nobody: no task, no worker, no Airflow's process group."""
    pids = world.list_pids(Role.ORIGINAL)
    assert len(pids) == 2
    for pid in pids:
        assert os.getsid(pid) not in (os.getsid(0), airflow.standalone.pid)
        above = [parent.cmdline() for parent in psutil.Process(pid).parents()]
        assert not any("worker --" in " ".join(words) for words in above), above
        told = Path(f"/proc/{pid}/environ").read_text()
        assert "AIRFLOW__" not in told


def test_fault_38_39_killed_in_the_relay_tried_again_and_cleared(
    airflow: Airflow, take_world: TakeWorld
) -> None:
    """The whole story; its task is killed in the middle, and cleared when all is done."""
    world = take_world()
    one = start(airflow, world, note="INC-4711")
    body = airflow.await_question(one.run, APPROVE)["body"]
    for told in ("**Stops**", "**Creates**", "**Raises**", "**Gives back**", "is deleted"):
        assert told in body
    assert "INC-4711" in body
    assert one.now.state == "planned"
    assert len(world.list_pids(Role.ORIGINAL)) == 2

    with relaying(one):
        consumers, relays = world.list_pids(Role.RECOVERY, one.recovery), world.list_relays()
        assert len(consumers) == EXPAND.read_plan(one.recovery).consumers == 4
        assert relays
        one.find_process().kill()
        airflow.await_another_try(one.run, WORK, 1)
        wait_until(lambda: not any(map(psutil.pid_exists, relays)), 60, "its relays end")
        airflow.await_state(one.run, WORK, {"running"})
        one.await_relayed()
        assert world.list_pids(Role.RECOVERY, one.recovery) == consumers
        one.go_on()
        airflow.await_run(one.run, {"success"})
    world.release_holds()
    assert judge(world, one.recovery) == []
    assert one.task["try_number"] == 2
    assert one.list_actions().count("taken over") == 1
    check_outlives(airflow, world)

    before = one.list_actions(), world.list_pids(Role.ORIGINAL)
    airflow.clear(one.run, "choose")
    airflow.await_run(one.run, {"success"})
    assert (one.list_actions(), world.list_pids(Role.ORIGINAL)) == before
    assert one.task["try_number"] == 3


NIGHT = "nightly_backfill"


@pytest.fixture
def world(airflow: Airflow, slots: Slots, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlotOffload]:
    made = take_offload(slots, monkeypatch)
    yield made
    made.end()


def test_fault_38_killed_while_it_archives_it_is_tried_again(
    airflow: Airflow, world: SlotOffload
) -> None:
    one = start_offload(airflow, world, note="INC-4711")
    asked = airflow.get(f"{one.run.task(APPROVE_OFFLOAD)}/-1/hitlDetails")
    assert asked["subject"].startswith("Offload at most 1,")
    for words in ("**Stops**", "**Moves**", "**Frees**", "**Gives back**", "INC-4711"):
        assert words in asked["body"], asked["body"]
    assert one.now.state == "planned", "whatever the stream's approval is: a person says yes"
    assert len(world.list_pids(Role.ORIGINAL)) == 2
    airflow.answer(one.run, APPROVE_OFFLOAD)
    one.await_step("archive")
    airflow.find_task(one.run, OFFLOAD).kill()
    airflow.await_run(one.run, {"success"}, within=400)
    assert airflow.read_task(one.run, OFFLOAD)["try_number"] == 2
    assert judge_offload(world, one.recovery) == []
    (outcome,) = airflow.xcom(one.run, "report")["outcomes"]
    assert (outcome["kind"], outcome["state"]) == ("offload", "verified")


@pytest.mark.parametrize("mark", ["failed", "success"])
def test_fault_43_142_marked_while_it_archives(
    airflow: Airflow, world: SlotOffload, mark: str
) -> None:
    """Nothing was deleted yet: the consumers are started, and the archive is thrown away."""
    one = start_offload(airflow, world)
    before = world.read_lows()
    airflow.answer(one.run, APPROVE_OFFLOAD)
    one.await_step("archive")
    process = airflow.find_task(one.run, OFFLOAD)
    airflow.mark(one.run, mark)
    airflow.await_run(one.run, {mark}, within=300)
    wait_until(lambda: not process.is_running(), 90, "its process ends")
    assert airflow.read_states(one.run)[RESTORE] == "success"
    assert one.now.state == "cancelled"
    assert world.read_lows() == before
    check_outlives(airflow, world)
    assert not list(find_place(one.recovery).rglob("*.parquet"))
    assert world.open().ledger.gaps.list(world.stream) == ()


# Shorter than the injection takes, and enough for Airflow and Spark to start on a busy machine.
START_WITHIN = tuple(timedelta(seconds=seconds) for seconds in (60, 75))
# Of the plan before it, by a Spark that runs.
PLAN_WITHIN = timedelta(seconds=12)
CLOSED_FOR = timedelta(seconds=20)
# What is asked for first comes first: the order of the file.
GOOD, ASKED, BROKEN, LATER = range(4)


def test_a_night_puts_back_what_was_lost(airflow: Airflow, take_shop: TakeShop) -> None:
    """Planned, approved by the stream's own rule, injected and verified, each once."""
    shop = take_shop("night")
    find_gaps(shop)
    night = airflow.trigger(NIGHT, {"streams": [shop.stream]})
    airflow.await_run(night, {"success"}, within=400)
    shop.check_same_set()


@pytest.mark.timeout(1500)
def test_nights(airflow: Airflow, slots: Slots, take_shop: TakeShop, spark: SparkSession) -> None:
    """Two zones at once: streams that do not wait for each other, and a window that closes."""
    good, asked = take_shop("night"), take_shop("night-asked")
    broken, later, minute = take_shop("night-broken"), take_shop("night-later"), take_shop("minute")
    drop_table(broken)
    find_gaps(good, asked, broken, later, minute)
    # Planned earlier than the night, so that only two of them start Spark to plan.
    assert plan(asked).state is RecoveryState.PLANNED
    assert plan(later).state is RecoveryState.APPROVED

    audited = take_shop("audited")
    audit = airflow.trigger("nightly_audit", {"streams": [audited.stream]})
    first, planned = cross_closing(airflow, slots, minute)
    streams = {"streams": [shop.stream for shop in (good, asked, broken, later)]}
    night = airflow.trigger(NIGHT, streams)

    # Fault 42: it ends between two chunks, well, and the next night goes on.
    airflow.await_run(first, {"success"})
    paused = read(minute, planned.id)
    assert (paused.state, paused.detail["why"]) == (RecoveryState.PAUSED, "window")
    assert 0 < len(minute.read_injected()) < 90
    second = airflow.trigger(NIGHT, {"streams": [minute.stream]})

    airflow.await_mapped(night, "stream.put_back", GOOD, {"success"})
    good.check_same_set()
    airflow.await_mapped(night, "stream.ask", ASKED, {"success"})
    airflow.await_mapped(night, "stream.plan_night", BROKEN, {"up_for_retry", "failed"})
    told = airflow.logs(night, "stream.plan_night", 1, BROKEN)
    assert "looking at the source" in told
    assert "starting Spark" not in told
    # Without a worker, until its window opens.
    airflow.await_mapped(night, "stream.put_back", LATER, {"up_for_reschedule"})
    assert not later.read_injected()
    question = DagRun(FORM, f"nightly__{asked.open().ledger.recoveries.list(asked.stream)[0].id}")
    airflow.await_question(question, "rebuild.approve")
    airflow.mark(night, "failed")

    # Fault 39: old dates send nothing, and ask nothing twice.
    date = datetime(2026, 3, 2, tzinfo=ZoneInfo(NIGHT_ZONE))
    old = airflow.trigger(NIGHT, streams, at=date)
    airflow.await_mapped(old, "stream.put_back", GOOD, {"skipped"})
    airflow.await_mapped(old, "stream.ask", ASKED, {"skipped"})
    good.check_same_set()
    assert not asked.read_injected()
    airflow.mark(old, "failed")
    airflow.answer(question, "rebuild.approve", "Reject")

    airflow.await_run(second, {"success"}, within=300)
    assert read(minute, planned.id).state is RecoveryState.VERIFIED
    minute.check_same_set()

    airflow.await_run(audit, {"success"}, within=400)
    records = audited.open().ledger.audits.list_latest(audited.stream)
    assert {one.audit for one in records} == {"producers", "consumed"}
    # The run is green, and says what it has found or could not tell.
    told = airflow.read_run(audit)["note"] or ""
    assert {one.audit: f"{one.audit} of {one.stream}: " in told for one in records} == {
        one.audit: one.verdict != "clean" for one in records
    }
    assert told


def cross_closing(airflow: Airflow, slots: Slots, shop: SlotShop) -> tuple[DagRun, Recovery]:
    """Has begun to inject before its window closes, and will not be done by then.

    A plan freezes its window: where a busy machine was too slow to start within it, another one is
    planned.
    """
    for start_within in START_WITHIN:
        closes = datetime.now(ZoneInfo(MINUTE_ZONE)) + PLAN_WITHIN + start_within
        reopens = closes + CLOSED_FOR
        window = {"from": f"{reopens:%T}", "to": f"{closes:%T}", "timezone": MINUTE_ZONE}
        slots.change_stream(shop.stream, off_peak=window)
        planned = plan(shop)
        assert planned.state is RecoveryState.APPROVED
        # Not so early that it is done before.
        time.sleep(max(0.0, (closes - start_within - datetime.now(closes.tzinfo)).total_seconds()))
        run = airflow.trigger(NIGHT, {"streams": [shop.stream]})
        if begins(airflow, run, shop):
            return run, planned
        workspace = shop.open()
        assert not shop.read_injected()
        cancel_work(workspace, planned.id, wait=60)
    raise AssertionError("its injection never began before the window closed")


def begins(airflow: Airflow, run: DagRun, shop: SlotShop) -> bool:
    """Waits until it injects; False where the window closed before. Nothing of it runs then."""
    limit = time.monotonic() + 420
    while not shop.read_injected():
        assert time.monotonic() < limit, airflow.explain(run)
        if airflow.read_states(run).get("stream.put_back[0]") == "up_for_reschedule":
            airflow.mark(run, "failed")
            return False
        if airflow.await_run(run, {"running", "queued", "success"}) == "success":
            return bool(shop.read_injected())
        time.sleep(0.5)
    return True


def plan(shop: SlotShop) -> Recovery:
    """A plan of the shop's stream, made in this process."""
    workspace = shop.open()
    return plan_rebuild(workspace, workspace.config.stream(shop.stream), RebuildOptions())


def read(shop: SlotShop, recovery_id: str) -> Recovery:
    return shop.open().ledger.recoveries.get(recovery_id)


def find_gaps(*shops: SlotShop) -> None:
    """Samples the streams, so that their gaps are known before the night."""
    for shop in shops:
        workspace = shop.open()
        note_stream(workspace, workspace.config.stream(shop.stream))
