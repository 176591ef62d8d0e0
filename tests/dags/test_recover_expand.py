"""Expansions by Airflow: killed, paused, failed, left open; each message is handled all the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from fanout.launchers import Role
from replay.kinds import EXPAND
from tests.dags.airflow import Airflow
from tests.dags.conftest import TakeWorld
from tests.dags.expansion import (
    APPROVE,
    RESTORE,
    WORK,
    Expansion,
    detect,
    relaying,
    start,
)
from tests.dags.slots import SlotWorld
from tests.kafka_tools import wait_until
from tests.replay.expand.oracle import judge


def find_strangers(world: SlotWorld) -> set[str]:
    """Client ids in the original group that are not the stream's consumers."""
    return {name for name in world.find_members() if name != "order-service-original"}


def check_outlives(expansion: Expansion) -> None:
    """The original consumers belong to nobody: no task, no worker, no Airflow's process group."""
    pids = expansion.world.list_pids(Role.ORIGINAL)
    assert len(pids) == 2
    for pid in pids:
        assert os.getsid(pid) not in (os.getsid(0), expansion.airflow.standalone.group)
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
    check_outlives(one)

    before = one.list_actions(), world.list_pids(Role.ORIGINAL)
    airflow.clear(one.run, "choose")
    airflow.await_run(one.run, {"success"})
    assert (one.list_actions(), world.list_pids(Role.ORIGINAL)) == before
    assert one.task["try_number"] == 3


def test_fault_43_paused_in_the_shell_and_marked_failed(
    airflow: Airflow, take_world: TakeWorld
) -> None:
    """One waits for its `resume` without a worker; the other is cut over by its teardown."""
    paused, failed = (start(airflow, take_world()) for _ in range(2))
    with relaying(paused, failed):
        paused.world.call("pause", paused.recovery.id, whole=True)
        airflow.await_state(paused.run, WORK, {"up_for_reschedule"})
        assert paused.now.detail["why"] == "operator"
        # It stays so for as long as it is paused; what was told to end may take a moment.
        wait_until(lambda: not paused.world.list_processes(), 60, "nothing of it runs")
        wait_until(lambda: not find_strangers(paused.world), 60, "the guard has left")

        process = failed.find_process()
        airflow.mark(failed.run, "failed")
        failed.go_on()
        airflow.await_run(failed.run, {"failed"})
        wait_until(lambda: not process.is_running(), 60, "its process ends")
        assert airflow.read_states(failed.run)[RESTORE] == "success"

        paused.go_on()
        paused.world.call("resume", paused.recovery.id, whole=True)
        airflow.await_run(paused.run, {"success"})
    assert judge(failed.world, failed.recovery, state="cancelled") == []
    paused.world.release_holds()
    assert judge(paused.world, paused.recovery) == []
    assert paused.task["try_number"] == 1
    check_outlives(failed)
    check_outlives(paused)


def test_fault_43_left_open_without_a_teardown_and_cancelled_in_the_shell(
    airflow: Airflow, take_world: TakeWorld
) -> None:
    """What nobody works on is restored by `detect_backlog`; what a person took over is not."""
    left, cancelled = (start(airflow, take_world()) for _ in range(2))
    world = left.world
    with relaying(left, cancelled):
        asking = cancelled.world.start("cancel", cancelled.recovery.id, whole=True)
        wait_until(lambda: cancelled.now.requested == "cancel", 90, "it is asked for")
        cancelled.go_on()
        out, err = asking.communicate(timeout=240)
        assert asking.returncode == 0, (out, err)
        # Stopped first: it does not see the mark, and no other try begins before that is set.
        process = left.find_process()
        process.suspend()
        airflow.mark(left.run, "success", RESTORE)
        airflow.mark(left.run, "failed")
        process.kill()
        airflow.await_run(left.run, {"failed"})
        assert left.now.state == "running"
        assert world.list_pids(Role.ORIGINAL) == []

        shell = world.start("run", left.recovery.id, whole=True)
        left.await_relayed()
        assert left.recovery.id not in detect(left)
        assert left.now.state == "running"
        world.call("pause", left.recovery.id, whole=True)
        shell.communicate(timeout=150)
        assert left.recovery.id not in detect(left)
        assert left.now.state == "paused"

        shell = world.start("resume", left.recovery.id, whole=True)
        left.await_relayed()
        os.killpg(shell.pid, signal.SIGKILL)
        left.go_on()
        assert f"{left.recovery.id}: no task works on it, or will" in detect(left)
        airflow.await_run(cancelled.run, {"failed"})
    assert judge(world, left.recovery, state="cancelled") == []
    assert judge(cancelled.world, cancelled.recovery, state="cancelled") == []
    assert airflow.read_states(cancelled.run)[RESTORE] == "success"
    assert cancelled.task["try_number"] == 1
    check_outlives(left)
