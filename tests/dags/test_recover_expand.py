"""Expansions by Airflow: killed, paused, failed, left open; each message is handled all the same."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from backlogctl.fanout.launchers import Role
from backlogctl.replay.kinds import EXPAND
from tests.dags.airflow import Airflow
from tests.dags.conftest import TakeWorld
from tests.dags.expansion import APPROVE, WORK, Expansion, relaying, start
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
        assert os.getsid(pid) not in (os.getsid(0), expansion.airflow.standalone.pid)
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
