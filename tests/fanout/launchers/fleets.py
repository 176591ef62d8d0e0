"""Fleets of consumers, and worlds of every launcher."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from backlogctl.config import Consumers
from backlogctl.fanout.launchers import Fleet, Launcher, Role, make_launcher
from backlogctl.fanout.launchers.supervisor import find_start
from backlogctl.kafka.admin import describe_group_state
from backlogctl.kafka.clients import make_consumer
from tests.kit.kafka import properties_of, repeating, wait_until

# Says what it learned, then waits for SIGTERM. As quick to start as Python is.
CONSUMER = """\
import json, os, signal, sys
place = sys.argv[1]
told = {"argv": sys.argv, "environment": dict(os.environ), "cwd": os.getcwd()}
written = os.path.join(place, f".{os.getpid()}")
with open(written, "w") as file:
    json.dump(told, file)
os.rename(written, os.path.join(place, f"{os.getpid()}.json"))
signal.sigwait({signal.SIGTERM})
"""
# A user's own tool: scale N | stop | status. It knows its processes by a file for each.
MANAGER = """\
import os, signal, subprocess, sys, time
from pathlib import Path
place = Path(sys.argv[1])
def living():
    found = []
    for path in sorted(place.glob("*.pid")):
        try:
            state = Path(f"/proc/{path.stem}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = "Z"
        found += [int(path.stem)] if state != "Z" else []
    return found
def end(pids):
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    while set(pids) & set(living()):
        time.sleep(0.01)
verb = sys.argv[2]
if verb == "scale":
    count = int(sys.argv[3])
    assert os.environ["BACKLOG_REPLICAS"] == sys.argv[3]
    end(living()[count:])
    # It is not ended between a start and the note of it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for _ in range(count - len(living())):
        command = [sys.executable, "-I", "-S", "-c", Path(sys.argv[4]).read_text(), *sys.argv[5:]]
        (place / f"{subprocess.Popen(command, start_new_session=True).pid}.pid").touch()
elif verb == "stop":
    end(living())
else:
    print("running:", len(living()), "of 99")
"""
WORDS = ("--topic={topic}", "--group={group}", "{bootstrap_servers}", "{role}-{recovery}")


def make_fleet(directory: Path, **changes: Any) -> Fleet:
    """A fleet of recovery consumers; nothing of it exists yet."""
    fleet: dict[str, Any] = {
        "stream": "orders",
        "role": Role.RECOVERY,
        "topic": "orders.recovery.r-1",
        "group": "service.recovery.r-1",
        "bootstrap_servers": "127.0.0.1:1",
        "directory": directory / "fleet",
        "recovery_id": "r-1",
    }
    return Fleet(**{**fleet, **changes})


def python(text: str, *arguments: str) -> list[str]:
    """A quick Python command; the text's own braces are not words to fill in."""
    doubled = text.replace("{", "{{").replace("}", "}}")
    return [sys.executable, "-I", "-S", "-c", doubled, *arguments]


def read_seen(place: Path) -> dict[int, Mapping[str, Any]]:
    """What consumers that still live have learned, by pid."""
    found = {int(path.stem): json.loads(path.read_text()) for path in place.glob("*.json")}
    return {pid: told for pid, told in found.items() if find_start(pid)}


def kill_all(pids: Mapping[int, object]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def no_stop() -> None:
    """Nothing stops the run."""


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


def start_member(properties: Mapping[str, str], group: str, topic: str) -> ExitStack:
    """A real consumer that reads; it leaves when the stack is closed."""
    consumer = make_consumer(properties, {"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    running = ExitStack()
    running.callback(consumer.close)
    running.enter_context(repeating(lambda: consumer.poll(0), each=0.05))
    return running


class ManualWorld:
    """A real broker, and a person who does what is said, a moment later."""

    def __init__(self, directory: Path, bootstrap: str, topic: str, group: str) -> None:
        self.properties = properties_of(bootstrap)
        self.fleet = make_fleet(directory, topic=topic, group=group, bootstrap_servers=bootstrap)
        self.said: list[str] = []
        self._members: list[ExitStack] = []
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
            self._members.pop().close()

    def _hear(self, text: str) -> None:
        self.said.append(text)
        errand = threading.Timer(0.1, self._do, (text,))
        self._errands.append(errand)
        errand.start()

    def _do(self, text: str) -> None:
        if started := re.match(r"Start (\d+)", text):
            for _ in range(int(started[1])):
                member = start_member(self.properties, self.fleet.group, self.fleet.topic)
                self._members.append(member)
            return
        ended = re.match(r"End (\d+)", text)
        for _ in range(int(ended[1]) if ended else len(self._members)):
            self._members.pop().close()


def wait_for_count(world: World, count: int) -> None:
    """Until that many consumers live and the launcher says so."""
    wait_until(lambda: world.living() == count, what=f"{count} consumers live")
    assert world.launcher().count_running(world.fleet) == count
