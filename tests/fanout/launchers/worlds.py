"""The three launchers, each in a world in which it can do its work."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Consumer

from backlogctl.config import Consumers
from backlogctl.fanout.launchers import Fleet, Launcher, make_launcher
from backlogctl.kafka.admin import describe_group_state
from backlogctl.kafka.clients import make_consumer
from tests.fanout.launchers.fleets import (
    CONSUMER,
    MANAGER,
    WORDS,
    kill_all,
    make_fleet,
    python,
    read_seen,
)
from tests.kafka_tools import properties_of, wait_until


class World(Protocol):
    """Where a launcher's consumers live."""

    fleet: Fleet

    def launcher(self) -> Launcher:
        """A new launcher, as after a crash."""

    def living(self) -> int:
        """How many consumers live, asked past the launcher."""

    def close(self) -> None:
        """Ends what is left."""


class LocalWorld:
    """Processes of this machine, started by us or by the user's own tool."""

    def __init__(self, directory: Path, kind: str, environment: Mapping[str, str]) -> None:
        self.seen = directory / "seen"
        self.seen.mkdir()
        self.fleet = make_fleet(directory)
        consumer = python(CONSUMER, str(self.seen), *WORDS)
        document: dict[str, Any] = {
            "launcher": kind,
            "directory": directory,
            "environment": dict(environment),
            "stop_within": "90s",
        }
        if kind == "process":
            document["command"] = [*consumer, "{index}"]
        else:
            (directory / "manager.py").write_text(MANAGER)
            (directory / "consumer.py").write_text(CONSUMER)
            manager = [sys.executable, "-I", "-S", "manager.py", "."]
            rest = ["consumer.py", *consumer[-1 - len(WORDS) :]]
            document["scale"] = [*manager, "scale", "{replicas}", *rest]
            document["stop"] = [*manager, "stop"]
            document["status"] = [*manager, "status"]
        self.consumers = Consumers.model_validate(document)

    def launcher(self) -> Launcher:
        return make_launcher(self.consumers, {}, self._refuse)

    def living(self) -> int:
        return len(read_seen(self.seen))

    def close(self) -> None:
        self.launcher().stop(self.fleet, lambda: None)
        left = read_seen(self.seen)
        kill_all(left)
        assert not left

    def _refuse(self, text: str) -> None:
        raise AssertionError(f"nobody is to be asked: {text}")


class _Member:
    """A real consumer in a thread."""

    def __init__(self, properties: Mapping[str, str], group: str, topic: str) -> None:
        settings = {"group.id": group, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50}
        self._consumer: Consumer = make_consumer(properties, settings)
        self._consumer.subscribe([topic])
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._ending.is_set():
            self._consumer.poll(0.05)
        self._consumer.close()


class ManualWorld:
    """A real broker, and a person who does what is said, a moment later."""

    def __init__(self, directory: Path, bootstrap: str, topic: str, group: str) -> None:
        self.properties = properties_of(bootstrap)
        self.fleet = make_fleet(directory, topic=topic, group=group, bootstrap_servers=bootstrap)
        self.said: list[str] = []
        self._members: list[_Member] = []
        self._errands: list[threading.Timer] = []

    def launcher(self) -> Launcher:
        return make_launcher(
            Consumers.model_validate({"launcher": "manual"}), self.properties, self._hear
        )

    def living(self) -> int:
        return len(describe_group_state(self.properties, self.fleet.group).members)

    def close(self) -> None:
        for errand in self._errands:
            errand.join()
        while self._members:
            self._members.pop().end()

    def _hear(self, text: str) -> None:
        self.said.append(text)
        errand = threading.Timer(0.1, self._do, (text,))
        self._errands.append(errand)
        errand.start()

    def _do(self, text: str) -> None:
        if started := re.match(r"Start (\d+)", text):
            for _ in range(int(started[1])):
                self._members.append(_Member(self.properties, self.fleet.group, self.fleet.topic))
            return
        ended = re.match(r"End (\d+)", text)
        for _ in range(int(ended[1]) if ended else len(self._members)):
            self._members.pop().end()


def wait_for_count(world: World, count: int) -> None:
    """Until that many consumers live and the launcher says so."""
    wait_until(lambda: world.living() == count, what=f"{count} consumers live")
    assert world.launcher().count_running(world.fleet) == count
