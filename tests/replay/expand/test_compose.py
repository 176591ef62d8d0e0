"""A whole expansion whose consumers are containers of a compose service (Docker is a stand-in)."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backlogctl.errors import BacklogError
from backlogctl.fanout.launchers import Role
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Recovery
from tests.conftest import MakeTopic
from tests.fanout.launchers.containers import SERVICE, make_docker
from tests.kit.shortened import WORLD, shorten
from tests.replay.expand.oracle import judge
from tests.replay.expand.world import CONSUMER, PARTITIONS, REPLICAS, World

BACKLOG = 1_200
# One after the other: containers stopped, all of the recovery's at work, its containers gone.
KILLED_AT = ("p4.3.stopped", "p4.7.consumers.started", "p4.8.consumers.stopped")


class ContainersWorld(World):
    """The consumers are containers."""

    def write_config(self) -> None:
        """And the compose file."""
        super().write_config()
        self.engine = self.directory / "engine"
        self.engine.mkdir(exist_ok=True)
        told = {
            "BACKLOG_TOPIC": self.topic,
            "BACKLOG_GROUP": self.group,
            "BACKLOG_BOOTSTRAP_SERVERS": self.bootstrap,
            "BACKLOG_ROLE": "original",
            "ORDER_LOG": str(self.log),
            WORLD: str(self.directory),
        }
        service = {"command": [sys.executable, str(CONSUMER)], "environment": told}
        document = {"name": "shop", "services": {SERVICE: service}}
        (self.directory / "compose.json").write_text(json.dumps(document))
        names = {"TOPIC": "{topic}", "GROUP": "{group}", "ROLE": "{role}"}
        path = self.directory / "backlog.yaml"
        whole = json.loads(path.read_text())
        whole["streams"][self.stream]["consumers"] = {
            "launcher": "compose",
            "replicas": REPLICAS,
            "environment": make_docker(self.directory, self.engine),
            "compose": {
                "files": ["compose.json"],
                "service": SERVICE,
                "variables": {f"BACKLOG_{name}": value for name, value in names.items()},
            },
        }
        path.write_text(json.dumps(whole))

    def list_pids(self, role: Role, recovery: Recovery | None = None) -> list[int]:
        others = tuple(other for other in Role if other is not role)
        found = self.list_processes(without=others)
        return [pid for pid, command in found.items() if str(CONSUMER) in command.split()[1:2]]


@pytest.fixture
def world(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ContainersWorld]:
    monkeypatch.setenv(WORLD, str(tmp_path))
    shorten(monkeypatch.setattr)
    name = topic(PARTITIONS, None, "orders")
    made = ContainersWorld(tmp_path, kafka.bootstrap, name, group, monkeypatch)
    made.write_config()
    made.publish(BACKLOG)
    made.start_originals()
    yield made
    made.end()


def test_more_containers_and_back_whatever_is_killed(world: ContainersWorld) -> None:
    recovery = world.plan_approved(rate=20, factor=3)
    world.set_speed(Role.RECOVERY, 200)
    for point in KILLED_AT:
        process = world.start("run", recovery.id, "--json", crash_at=point)
        out, err = process.communicate(timeout=400)
        assert process.returncode == -signal.SIGKILL, out + err
        world.publish(40)
    world.call("run", recovery.id, "--json")
    assert judge(world, recovery) == []
    assert len([*world.engine.glob("shop.*.json")]) == REPLICAS
    assert not [*world.engine.glob("shop-recovery-*.json")]


def test_an_engine_that_is_away_is_named_before_anything_is_stopped(
    world: ContainersWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = world.plan_approved(rate=20, factor=3)
    (world.engine / "away").touch()
    with pytest.raises(BacklogError, match="Cannot connect to the Docker daemon"):
        world.run(recovery)
    (world.engine / "away").unlink()
    assert len(world.list_pids(Role.ORIGINAL)) == REPLICAS
    world.call("cancel", recovery.id)
    consumers: dict[str, Any] = {"environment": {"PATH": os.devnull}}
    world.set_consumers(**consumers)
    said = world.call("plan", "expand", "orders", "--rate", "20", "--factor", "3", code=1)
    assert "docker" in said.err
    assert "Compose is its plugin" in said.err
