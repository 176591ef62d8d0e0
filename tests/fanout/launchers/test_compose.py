"""The launcher `compose`: its command lines, and the recovery's project."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backlogctl.errors import BacklogError, Refused
from backlogctl.fanout.launchers.compose import parse_containers
from tests.fanout.launchers.containers import SERVICE, ContainerWorld
from tests.fanout.launchers.fleets import no_stop, read_seen, wait_for_count

PROJECT = "shop-recovery-r-1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ContainerWorld]:
    made = ContainerWorld(tmp_path)
    yield made
    made.close()


def test_the_recovery_is_a_project_of_its_own(world: ContainerWorld) -> None:
    secret = {"PASSWORD": "two $ and {braces}"}
    world.write(environment={"BACKLOG_TOPIC": "orders", "BACKLOG_GROUP": "service", **secret})
    world.launcher().scale(world.original, 1, no_stop)
    world.launcher().scale(world.fleet, 2, no_stop)
    seen = [told["environment"] for told in read_seen(world.seen).values()]
    assert sorted(one["BACKLOG_TOPIC"] for one in seen) == ["orders", *2 * [world.fleet.topic]]
    assert sorted(one["BACKLOG_GROUP"] for one in seen) == ["service", *2 * [world.fleet.group]]
    assert {one["PASSWORD"] for one in seen} == {secret["PASSWORD"]}
    scaled = [one for one in world.calls() if one["given"]]
    assert [one["words"] for one in scaled] == [
        [
            *("compose", "--file", "-", "--project-name", PROJECT, "up", "--detach", "--no-deps"),
            *("--no-recreate", "--scale", f"{SERVICE}=2", SERVICE),
        ]
    ]
    document = json.loads(scaled[0]["given"])
    service = document["services"].pop(SERVICE)
    assert not document["services"]
    assert document["networks"] == {"default": {"name": "shop_default", "external": True}}
    assert document["volumes"] == {"state": {"name": "shop_state", "external": True}}
    assert service["networks"] == {"default": None}
    assert not {"ports", "container_name", "depends_on"} & set(service)
    assert not world.fleet.directory.exists()  # what Docker is given is kept nowhere

    world.launcher().stop(world.fleet, no_stop)
    assert world.launcher().count_running(world.fleet) == 0
    assert world.launcher().count_running(world.original) == 1


def test_the_service_is_stopped_and_started(world: ContainerWorld) -> None:
    launcher = world.launcher()
    launcher.scale(world.original, 2, no_stop)
    launcher.stop(world.original, no_stop)
    assert launcher.count_running(world.original) == 0
    launcher.scale(world.original, 2, no_stop)
    wait_for_count_of_original(world, 2)
    place = ["compose", "--file", str(world.file)]
    said = [one["words"] for one in world.calls() if "ps" not in one["words"]]
    up = [
        *place,
        "up",
        "--detach",
        "--no-deps",
        "--no-recreate",
        "--scale",
        f"{SERVICE}=2",
        SERVICE,
    ]
    assert said == [up, [*place, "stop", SERVICE], up]


def wait_for_count_of_original(world: ContainerWorld, count: int) -> None:
    assert world.launcher().count_running(world.original) == count
    assert world.living() == count


def test_an_older_compose_prints_an_array(world: ContainerWorld) -> None:
    (world.engine / "array").touch()
    world.launcher().scale(world.fleet, 2, no_stop)
    wait_for_count(world, 2)


def test_containers_of_compose_run_are_nobodys_replicas() -> None:
    one = {"Name": "shop-order-service-1", "State": "running", "ExitCode": 0, "Labels": "a=b"}
    other = {**one, "Name": "shop-x-run-1", "Labels": "a=b,com.docker.compose.oneoff=True"}
    (found,) = parse_containers(f"{json.dumps(one)}\n{json.dumps(other)}\n")
    assert (found.name, found.index) == ("shop-order-service-1", "1")
    with pytest.raises(BacklogError, match="printed something else: NAME"):
        parse_containers("NAME  STATE")


def test_a_container_that_ends_at_once_is_named_with_its_last_lines(world: ContainerWorld) -> None:
    world.write(
        command=[sys.executable, "-I", "-S", "-c", "import sys; sys.exit('no such broker')"]
    )
    with pytest.raises(BacklogError, match=r"-1 is exited with exit code 1.*\n.*no such broker"):
        world.launcher().scale(world.fleet, 1, no_stop)
    assert "no such broker" in (world.launcher().explain(world.fleet) or "")


def test_an_engine_that_is_away_may_be_asked_again(world: ContainerWorld) -> None:
    (world.engine / "away").touch()
    with pytest.raises(BacklogError, match="Cannot connect to the Docker daemon") as caught:
        world.launcher().count_running(world.original)
    assert caught.value.retryable


def test_a_plan_says_what_is_different(world: ContainerWorld) -> None:
    world.write(environment={"BACKLOG_TOPIC": "orders"})
    told = "; ".join(world.launcher().check(world.original, world.fleet, 5))
    for part in (
        *("0 running containers", "neither its published ports", "volumes: state"),
        "no variable BACKLOG_GROUP",
    ):
        assert part in told
    assert all("up" not in one["words"] for one in world.calls())


@pytest.mark.parametrize(
    "tie", [{"links": ["kafka"]}, {"network_mode": "service:kafka"}, {"volumes_from": ["kafka"]}]
)
def test_a_service_tied_to_others_is_refused(world: ContainerWorld, tie: dict[str, Any]) -> None:
    world.write(**tie)
    with pytest.raises(Refused, match=f"`{next(iter(tie))}`"):
        world.launcher().check(world.original, world.fleet, 5)
    world.launcher().check(world.original, None, 0)  # it is only stopped


def test_a_service_that_is_not_in_the_file_is_told(world: ContainerWorld) -> None:
    world.file.write_text('{"name": "shop", "services": {"other": {}}}')
    with pytest.raises(BacklogError, match=f"no such service: {SERVICE}"):
        world.launcher().check(world.original, world.fleet, 5)
    world.write()
