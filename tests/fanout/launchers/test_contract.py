"""What every launcher does; the same tests for all of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from backlogctl.config import Ramp
from backlogctl.fanout.launchers import ramp_up
from tests.fanout.launchers.fleets import no_stop, read_seen
from tests.fanout.launchers.worlds import LocalWorld, ManualWorld, World, wait_for_count

# The configuration's own tests read it by reference. Other processes' tests have secrets too.
SECRET = f"hunter2-{uuid.uuid4().hex}"


@pytest.fixture(params=["process", "command", pytest.param("manual", marks=pytest.mark.kafka)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made: World
    if request.param == "manual":
        kafka = request.getfixturevalue("kafka")
        topic = request.getfixturevalue("topic")(partitions=4)
        made = ManualWorld(tmp_path, kafka.bootstrap, topic, request.getfixturevalue("group"))
    else:
        made = LocalWorld(tmp_path, request.param, {"SHOP_SECRET": SECRET, "LEVEL": "info"})
    yield made
    made.close()


@pytest.fixture(params=["process", "command"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalWorld]:
    made = LocalWorld(tmp_path, request.param, {"SHOP_SECRET": SECRET, "LEVEL": "info"})
    yield made
    made.close()


def test_up_again_down_and_stopped_twice(world: World) -> None:
    launcher = world.launcher()
    assert launcher.count_running(world.fleet) == 0
    launcher.scale(world.fleet, 2, no_stop)
    wait_for_count(world, 2)
    launcher.scale(world.fleet, 2, no_stop)
    wait_for_count(world, 2)
    launcher.scale(world.fleet, 3, no_stop)
    wait_for_count(world, 3)
    launcher.scale(world.fleet, 1, no_stop)
    wait_for_count(world, 1)
    launcher.stop(world.fleet, no_stop)
    wait_for_count(world, 0)
    launcher.stop(world.fleet, no_stop)
    wait_for_count(world, 0)


def test_a_new_launcher_finds_the_same_fleet(world: World) -> None:
    world.launcher().scale(world.fleet, 2, no_stop)
    assert world.launcher().count_running(world.fleet) == 2
    world.launcher().scale(world.fleet, 3, no_stop)
    wait_for_count(world, 3)
    world.launcher().stop(world.fleet, no_stop)
    wait_for_count(world, 0)


def test_look_ends_the_waiting_and_the_next_call_goes_on(world: World) -> None:
    class Pause(Exception):
        pass

    def stop_at_once() -> None:
        raise Pause

    with pytest.raises(Pause):
        world.launcher().scale(world.fleet, 2, stop_at_once)
    world.launcher().scale(world.fleet, 2, no_stop)
    wait_for_count(world, 2)


def test_a_ramp_goes_up_in_steps_and_not_above_the_limit(world: World) -> None:
    steps: list[int] = []
    looks: list[float] = []
    began = time.monotonic()
    ramp = Ramp(step=2, every=timedelta(seconds=0.7))
    reached = ramp_up(
        world.launcher(),
        world.fleet,
        10,
        ramp,
        lambda: looks.append(time.monotonic()),
        steps.append,
        max_consumers=3,
    )
    assert reached == 3
    assert steps == ([3] if isinstance(world, ManualWorld) else [2, 3])
    assert isinstance(world, ManualWorld) or time.monotonic() - began >= 0.7
    assert len(looks) > 3
    wait_for_count(world, 3)
    assert ramp_up(world.launcher(), world.fleet, 3, ramp, no_stop, steps.append) == 3
    assert steps[-1] == 3


def test_a_plan_says_how(world: World) -> None:
    said = world.launcher().describe(world.fleet)
    assert said
    assert SECRET not in said


def test_a_consumer_learns_what_to_read(local: LocalWorld) -> None:
    local.launcher().scale(local.fleet, 2, no_stop)
    wait_for_count(local, 2)
    for told in read_seen(local.seen).values():
        environment = told["environment"]
        assert environment["BACKLOG_TOPIC"] == "orders.recovery.r-1"
        assert environment["BACKLOG_GROUP"] == "service.recovery.r-1"
        assert environment["BACKLOG_BOOTSTRAP_SERVERS"] == "127.0.0.1:1"
        assert environment["BACKLOG_ROLE"] == "recovery"
        assert environment["BACKLOG_STREAM"] == "orders"
        assert environment["BACKLOG_RECOVERY"] == "r-1"
        assert (environment["SHOP_SECRET"], environment["LEVEL"]) == (SECRET, "info")
        words = ["--topic=orders.recovery.r-1", "--group=service.recovery.r-1"]
        assert told["argv"][2:6] == [*words, "127.0.0.1:1", "recovery-r-1"]
        assert told["cwd"] == str(local.consumers.directory)
    if local.consumers.launcher == "process":
        indices = sorted(told["argv"][6] for told in read_seen(local.seen).values())
        assert indices == ["0", "1"]


def test_what_the_caller_was_told_is_not_told_to_consumers(
    local: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKLOG_CRASH_AT", "p4.6")
    monkeypatch.setenv("BACKLOG_TOPIC", "another")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", SECRET)
    local.launcher().scale(local.fleet, 1, no_stop)
    wait_for_count(local, 1)
    (told,) = read_seen(local.seen).values()
    assert not {"BACKLOG_CRASH_AT", "AIRFLOW__CORE__FERNET_KEY"} & set(told["environment"])
    assert told["environment"]["BACKLOG_TOPIC"] == "orders.recovery.r-1"


def test_fault_59_a_secret_is_in_no_file_and_no_argument(local: LocalWorld) -> None:
    local.launcher().scale(local.fleet, 2, no_stop)
    wait_for_count(local, 2)
    for path in local.fleet.directory.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
        assert path.stat().st_mode & 0o077 == 0, path
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert SECRET.encode() not in command.read_bytes()
        except OSError:
            continue  # it has ended
