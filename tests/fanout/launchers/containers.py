"""Consumers as containers of a stand-in for Docker: the world of the launcher `compose`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from backlogctl.config import Consumers
from backlogctl.fanout.launchers import ComposeLauncher, Role
from tests.fanout.launchers.fleets import CONSUMER, kill_all, make_fleet, read_seen
from tests.kit.processes import ROOT

SERVICE = "order-service"


def make_docker(directory: Path, engine: Path) -> dict[str, str]:
    """Variables by which `docker` is the stand-in, whose containers `engine` keeps."""
    docker = directory / "bin" / "docker"
    docker.parent.mkdir(exist_ok=True)
    stand_in = ROOT / "tests" / "kit" / "docker.py"
    docker.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {stand_in} "$@"\n')
    docker.chmod(0o755)
    path = f"{docker.parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "DOCKER_STAND_IN": str(engine)}


class ContainerWorld:
    """A compose file with one service, none of whose containers runs at first."""

    def __init__(self, directory: Path, **service: Any) -> None:
        self.seen = directory / "seen"
        self.engine = directory / "engine"
        for place in (self.seen, self.engine):
            place.mkdir()
        self.fleet = make_fleet(directory)
        self.original = make_fleet(
            directory, role=Role.ORIGINAL, topic="orders", group="service", recovery_id=""
        )
        self.file = directory / "compose.json"
        self.write(**service)
        document = {
            "launcher": "compose",
            "directory": directory,
            "replicas": 2,
            "environment": make_docker(directory, self.engine),
            "compose": {"files": [self.file], "service": SERVICE},
            "command_within": "90s",
            "stop_within": "90s",
        }
        self.consumers = Consumers.model_validate(document)

    def write(self, **service: Any) -> None:
        """The compose file; `service` is what is different in the service."""
        own = {
            "image": "order-service:1",
            "command": [sys.executable, "-I", "-S", "-c", CONSUMER, str(self.seen)],
            "environment": {"BACKLOG_TOPIC": "orders", "BACKLOG_GROUP": "service"},
            "networks": {"default": {"ipv4_address": "10.0.0.7"}},
            "volumes": [{"type": "volume", "source": "state", "target": "/state"}],
            "ports": [{"target": 80}],
            "container_name": "orders",
            "depends_on": {"kafka": {"condition": "service_started"}},
            **service,
        }
        document = {
            "name": "shop",
            "services": {SERVICE: own, "kafka": {"image": "kafka"}},
            "networks": {"default": None, "others": None},
            "volumes": {"state": None, "kafka": None},
        }
        self.file.write_text(json.dumps(document))

    def launcher(self) -> ComposeLauncher:
        return ComposeLauncher(self.consumers)

    def living(self) -> int:
        return len(read_seen(self.seen))

    def calls(self) -> list[dict[str, Any]]:
        """What Docker was told, with what it was given."""
        lines = (self.engine / "calls.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        (self.engine / "away").unlink(missing_ok=True)
        for fleet in (self.fleet, self.original):
            self.launcher().stop(fleet, lambda: None)
        left = read_seen(self.seen)
        kill_all(left)
        assert not left
