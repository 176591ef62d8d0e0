"""A topic with a backlog, the consumers that are behind, and all that is done to them."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextlib import closing as closed_after
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from rich.console import Console

from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.fanout.launchers import Launcher, ProcessLauncher, Role
from backlogctl.fanout.launchers.interface import Fleet
from backlogctl.fanout.quiet import await_quiet
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.clients import make_producer
from backlogctl.replay.consumers import fleet
from backlogctl.replay.consumers.fleet import fleet_of, launcher_of
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.cancelling import cancel_work
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.runner import Run
from backlogctl.replay.kinds.expand import canary, closing, steps
from backlogctl.replay.kinds.expand.plan import ExpandOptions
from backlogctl.replay.kinds.expand.planning import plan_expand
from backlogctl.replay.observe.retention import release_stream
from backlogctl.replay.opening import open_workspace
from backlogctl.values import Recovery
from backlogctl_delivery import crashpoints
from tests.kit.following import follow
from tests.kit.kafka import repeating, wait_until
from tests.kit.processes import ROOT, start_backlogctl
from tests.kit.shop import Said
from tests.kit.shortened import MODULE, QUIET, SHORTENED, WORLD

CONSUMER = ROOT / "tests/kit/consumer.py"
PARTITIONS = FACTOR = REPLICAS = 2
KEYS = 40
RATE = 20.0  # of one consumer, as planned; they are faster, also where they start slowly
WITHIN = 400.0  # seconds for whatever another process does


@dataclass
class World:
    """Names, addresses and files of one story."""

    directory: Path
    bootstrap: str
    topic: str
    group: str
    patch: pytest.MonkeyPatch
    stop_within: str = "60s"
    stream: str = "orders"
    shortened: str = "expand"
    produced: Counter[str] = field(default_factory=Counter)
    told: io.StringIO = field(default_factory=io.StringIO)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    login: dict[str, str] = field(default_factory=dict)
    tool_login: dict[str, str] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """Client properties; those of the tool have its own login."""
        return {"bootstrap.servers": self.bootstrap, **self.login}

    @property
    def log(self) -> Path:
        """Where the consumers say what they handled."""
        return self.directory / "orders.log"

    def write_config(self) -> None:
        """Writes backlog.yaml. JSON is YAML."""
        consumers = {
            "launcher": "process",
            "command": [sys.executable, str(CONSUMER)],
            "replicas": REPLICAS,
            "environment": {"ORDER_LOG": str(self.log), "LOGIN": json.dumps(self.login)},
            "stop_within": self.stop_within,
        }
        section = {
            "cluster": "main",
            "topic": self.topic,
            "group": self.group,
            "consumers": consumers,
            "expand": {"factor": FACTOR, "order": "key", "max_lag_at_cutover": 50},
        }
        document = {
            "ledger": "sqlite:///ledger.db",
            "staging": {"dir": "./staging"},
            "kafka_ledger": {"transactional_prefix": self.topic},
            "clusters": {
                "main": {"bootstrap.servers": self.bootstrap, **(self.tool_login or self.login)}
            },
            "streams": {self.stream: section},
        }
        (self.directory / "backlog.yaml").write_text(json.dumps(document, indent=1))
        (self.directory / "properties.json").write_text(json.dumps(self.properties))

    def set_consumers(self, **settings: Any) -> None:
        """Changes how the stream's consumers are launched."""
        path = self.directory / "backlog.yaml"
        document = json.loads(path.read_text())
        document["streams"][self.stream]["consumers"].update(settings)
        path.write_text(json.dumps(document))

    def open(self) -> Workspace:
        """The workspace, in this process."""
        return open_workspace(load_config(self.directory / "backlog.yaml", dict(os.environ)))

    # What happens on the topic.

    def publish(self, count: int, **settings: Any) -> None:
        """The next messages of each key, where Java's producers put them."""
        producer = make_producer(self.properties, {"partitioner": "murmur2_random"}, **settings)
        for _ in range(count):
            key = f"k{self.produced.total() % KEYS}"
            producer.produce(self.topic, str(self.produced[key]), key)
            self.produced[key] += 1
            producer.poll(0)
        assert producer.flush(90) == 0

    def find_rest(self) -> int:
        """What the original group has not read."""
        numbers = range(PARTITIONS)
        done = verbs.committed_offsets(self.properties, self.group, self.topic, numbers)
        ends = verbs.list_offsets(self.properties, self.topic, numbers, "latest")
        return sum(ends[number] - (done[number] or 0) for number in numbers)

    def find_members(self) -> set[str]:
        """Client ids in the original group."""
        return {
            m.client_id for m in verbs.describe_group_state(self.properties, self.group).members
        }

    def list_copied(self) -> set[tuple[str, int]]:
        """What the temporary topic held before it was deleted."""
        document = json.loads((self.directory / "temporary.json").read_text())
        return {(key, sequence) for key, sequence, _ in document["messages"]}

    def publishing(self, each_second: int = 200) -> AbstractContextManager[None]:
        """Producers that do not stop for a recovery."""
        return repeating(lambda: self.publish(each_second // 10))

    def set_speed(self, role: Role, speed: float | None) -> None:
        """Messages a second of each consumer in that role; None: as fast as they can."""
        path = Path(f"{self.log}.{role.value}")
        if speed is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(str(speed))

    def set_wrong(self, role: Role, **variables: str) -> None:
        """What consumers of that role do wrong from their next start on; nothing: they are well."""
        path = Path(f"{self.log}.{role.value}.wrong")
        if variables:
            path.write_text(json.dumps(variables))
        else:
            path.unlink(missing_ok=True)

    # The consumers.

    def fleet(self, role: Role, recovery: Recovery | None = None) -> Fleet:
        """Consumers of a role, as the launcher knows them."""
        workspace = self.open()
        stream = workspace.config.stream(self.stream)
        if recovery is None:
            return fleet_of(workspace, stream, role)
        topic, group = recovery.plan["temporary"]["topic"], recovery.plan["recovery_group"]
        return fleet_of(workspace, stream, role, recovery.id, topic=topic, group=group)

    @property
    def launcher(self) -> Launcher:
        """The stream's launcher."""
        workspace = self.open()
        return launcher_of(workspace, workspace.config.stream(self.stream), lambda _: None)

    def start_originals(self) -> None:
        """As many as in normal times, and slow ones."""
        self.set_speed(Role.ORIGINAL, 5)
        self.launcher.scale(self.fleet(Role.ORIGINAL), REPLICAS, lambda: None)

    def list_pids(self, role: Role, recovery: Recovery | None = None) -> list[int]:
        """The consumers' processes."""
        launcher = self.launcher
        assert isinstance(launcher, ProcessLauncher)
        found = launcher.list_consumers(self.fleet(role, recovery))
        return [consumer.pid for consumer in found if consumer.pid]

    def list_relays(self) -> list[int]:
        """The relays' processes."""
        found = self.list_processes()
        return [
            pid for pid, command in found.items() if "backlogctl.fanout.relay.worker" in command
        ]

    def start_intruder(self, manner: str = "classic", **variables: str) -> subprocess.Popen[str]:
        """A consumer of the original group that nobody's launcher knows; it handles and commits.

        Args:
            manner: its group protocol, or `assign`: it is no member.
        """
        environment = {
            **os.environ,
            "BACKLOG_TOPIC": self.topic,
            "BACKLOG_GROUP": self.group,
            "BACKLOG_BOOTSTRAP_SERVERS": self.bootstrap,
            "BACKLOG_ROLE": "intruder",
            "MANNER": manner,
            "ORDER_LOG": str(self.log),
            **variables,
        }
        process = subprocess.Popen(
            [sys.executable, str(CONSUMER)], env=environment, start_new_session=True, text=True
        )
        self.started.append(process)
        return process

    @contextmanager
    def silent_intruder(self, point: str) -> Iterator[None]:
        """From that point on a consumer that is no member commits: the watch lasts until it does."""
        Path(f"{self.log}.intruder").write_text("20")  # it does not come to the end meanwhile

        def begin() -> None:
            wait_until(lambda: not self.find_members(), what="the group is empty")
            before = self.find_rest()
            self.start_intruder("assign")
            wait_until(lambda: self.find_rest() < before, what="it commits")

        def watch(
            properties: Any, group: str, topic: str, partitions: int, look: Any, *, within: float
        ) -> None:
            def look_until_it_commits() -> None:
                look()
                before = self.find_rest()
                wait_until(lambda: self.find_rest() < before, what="it commits again")

            place = (properties, group, topic, partitions)
            await_quiet(*place, look_until_it_commits, within=within, quiet=QUIET)

        self.at(point, begin)
        with self.patch.context() as patched:
            patched.setattr(fleet, "await_quiet", watch)
            yield

    def reset_group(self, spec: Literal["earliest", "latest"]) -> dict[int, int]:
        """As `kafka-consumer-groups --reset-offsets` does it, once the group is empty."""
        numbers = range(PARTITIONS)
        wait_until(lambda: not self.find_members(), what="the group is empty")
        wanted = verbs.list_offsets(self.properties, self.topic, numbers, spec)
        verbs.set_group_offsets(self.properties, self.group, self.topic, wanted)
        return wanted

    def plan(self, rate: float = RATE, **options: Any) -> Recovery:
        """Plans in this process."""
        workspace = self.open()
        stream = workspace.config.stream(self.stream)
        return plan_expand(workspace, stream, ExpandOptions(rate=rate, **options))

    def release_holds(self) -> None:
        """What is unread when the layout is given back keeps its retention: a person ends that."""
        workspace = self.open()
        release_stream(workspace, workspace.config.stream(self.stream))

    def plan_approved(self, rate: float = RATE, **options: Any) -> Recovery:
        """Plans and approves."""
        return approve_plan(self.open(), self.plan(rate, **options), by="tester")

    def read(self, recovery: Recovery) -> Recovery:
        """As it is now."""
        return self.open().ledger.recoveries.get(recovery.id)

    def run(self, recovery: Recovery, *, resumed: bool = False) -> Recovery:
        """Runs it in this process; what it says is in `told`."""
        console = Console(file=self.told, width=400)
        return Run(self.open(), recovery.id, console, resumed=resumed).carry_out()

    def cancel(self, recovery: Recovery, *ways: str) -> Recovery:
        """Cancels it in this process; what it says is in `told`."""
        console = Console(file=self.told, width=400)
        return cancel_work(self.open(), recovery.id, wait=WITHIN, ways=ways, console=console)

    @property
    def reaching(self) -> Iterable[ModuleType]:
        """Where an expansion reaches points of its protocol."""
        return (canary, closing, steps)

    def at(self, point: str, action: Callable[[], None], times: int = 1) -> None:
        """Does something when a run of this process reaches a point of the protocol."""
        left = [times]
        before = crashpoints.reach

        def reach(name: str) -> None:
            before(name)
            if name == point and left[0]:
                left[0] -= 1
                action()

        self.patch.setattr(crashpoints, "reach", reach)
        for module in self.reaching:
            self.patch.setattr(module, "reach", reach)

    def start(self, *words: str, crash_at: str = "", whole: bool = False) -> subprocess.Popen[str]:
        """Starts `backlogctl` in a process group of its own; `whole`: nothing in it is shortened."""
        environment = {WORLD: str(self.directory), SHORTENED: self.shortened}
        if crash_at:
            environment[crashpoints.VARIABLE] = crash_at
        module = "backlogctl.replay.cli" if whole else MODULE
        process = start_backlogctl(self.directory, *words, environment=environment, module=module)
        self.started.append(process)
        return process

    def call(self, *words: str, code: int | None = 0, **settings: Any) -> Said:
        """Runs `backlogctl` to its end; checks its exit code unless None."""
        process = self.start(*words, **settings)
        out, err = process.communicate(timeout=WITHIN)
        said = Said(process.returncode, out, err)
        assert code is None or said.code == code, f"backlogctl {' '.join(words)}: {said}"
        return said

    def follow(
        self, recovery: Recovery, *, handle: Callable[[str], None] = lambda _: None
    ) -> list[str]:
        """Types what is printed as the next command until none is left: `follow` of the kit."""
        return follow(self.call, recovery.id, handle=handle)

    def wait_for_drain(self, recovery: Recovery, runner: subprocess.Popen[str]) -> None:
        """Until all its consumers work."""
        ledger, since = self.open().ledger, utc_now()

        def works() -> bool:
            assert runner.poll() is None, runner.communicate()
            latest = ledger.burndown.latest(recovery.id)
            return (
                latest is not None
                and latest.at > since
                and latest.step == "drain"
                and (latest.consumers or 0) >= int(recovery.plan["consumers"])
            )

        wait_until(works, WITHIN, "the drain")

    def freeze(self, runner: subprocess.Popen[str], recovery: Recovery) -> None:
        """SIGSTOP, but never while it has the ledger locked: nobody could write. Its lease lasts."""
        statement = "UPDATE backlog_recoveries SET lease_until = ? WHERE id = ?"
        while True:
            runner.send_signal(signal.SIGSTOP)
            wait_until(lambda: _is_stopped(runner.pid), what="it is stopped")
            try:
                with (
                    closed_after(sqlite3.connect(self.directory / "ledger.db", 0.5)) as ledger,
                    ledger,
                ):
                    ledger.execute(statement, ("2100-01-01T00:00:00.000000Z", recovery.id))
                return
            except sqlite3.OperationalError:
                runner.send_signal(signal.SIGCONT)
                time.sleep(0.05)

    def list_processes(self, *, without: tuple[Role, ...] = ()) -> dict[int, str]:
        """Processes of this world: runners, relays, supervisors, consumers; none in `without`."""
        mark = f"{WORLD}={self.directory}".encode()
        found: dict[int, str] = {}
        for path in Path("/proc").iterdir():
            if not path.name.isdigit() or int(path.name) == os.getpid():
                continue
            try:
                words = (path / "environ").read_bytes().split(b"\0")
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            roles = [f"BACKLOG_ROLE={role.value}".encode() for role in without]
            if "kafka.Kafka" in command:
                continue  # a broker of its own
            if mark in words and command and not any(role in words for role in roles):
                found[int(path.name)] = command
        return found

    def end(self) -> None:
        """Nothing of it stays behind."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()
        limit = time.monotonic() + 5
        while left := self.list_processes():
            for pid in left:
                try:
                    # The supervisor's own SIGTERM: it ends its consumers first.
                    late = time.monotonic() > limit
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)


def _is_stopped(pid: int) -> bool:
    """Every thread of it."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
