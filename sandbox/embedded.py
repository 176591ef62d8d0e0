"""A real Kafka on this machine, for the demo, the tests and the benchmarks.

KRaft, one JVM a broker. A broker started here ends with the process that started it, however that
ends (see `backlogctl.sandbox.watchdog`), unless it is started detached.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import psutil
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from backlogctl.errors import EmbeddedError
from backlogctl.formats import Say
from backlogctl.jars import ensure_jars, find_java, read_jars
from backlogctl.kafka.admin import create_topic
from backlogctl.sandbox import watchdog
from backlogctl.sandbox.secured import HOST, MUTUAL, PROTOCOL, Security, free_port, listens
from backlogctl.sandbox.small_disk import limit_disk

# The jars of a Kafka broker.

KAFKA_VERSION = "4.3.1"
# Another list of jars runs another Kafka, as the tests of versions do.
_LISTED = Path(os.environ.get("BACKLOG_KAFKA_JARS") or Path(__file__).with_name("kafka.jars"))


def ensure_kafka_jars(progress: Say | None = None) -> tuple[Path, ...]:
    """The class path of a Kafka broker; fetched at the first call on this machine."""
    return ensure_jars(_LISTED, progress)


def kafka_version() -> tuple[int, int]:
    """Of the brokers that are started here."""
    (one,) = (jar for jar in read_jars(_LISTED) if jar.artifact == "kafka_2.13")
    major, minor, *_ = one.version.split(".")
    return int(major), int(minor)


_HAS_KIP_848 = kafka_version() >= (4, 0)  # not as a preview


# Kafka's classes, read and verified once in an environment: with them a broker starts with half the
# work. Java itself checks at each start that they are of this Java and these jars (JEP 350).
_CLASS_ARCHIVE = Path(sys.prefix, "share", "backlogctl", "kafka.jsa")


def make_class_archive() -> None:
    """Starts a broker once, and keeps the classes that this needed, unless they are kept."""
    if _CLASS_ARCHIVE.is_file():
        return
    _CLASS_ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    fresh = _CLASS_ARCHIVE.with_suffix(".new")
    with tempfile.TemporaryDirectory() as place:
        kafka = EmbeddedKafka.start(place, jvm=(f"-XX:ArchiveClassesAtExit={fresh}",))
        with kafka:
            _work(kafka.client_properties)
            os.kill(kafka.pid, signal.SIGTERM)
            # They are written at its end, which takes longer.
            kafka._nodes[0].wait(_UP_WITHIN)
    fresh.replace(_CLASS_ARCHIVE)


def _work(properties: dict[str, str]) -> None:
    create_topic(properties, "t", partitions=1)
    producer = Producer(properties)
    producer.produce("t", b"v")
    producer.flush(_DOWN_WITHIN)
    more = {"group.id": "g", "auto.offset.reset": "earliest"}
    with contextlib.closing(Consumer({**properties, **more})) as consumer:
        consumer.subscribe(["t"])
        if consumer.poll(_DOWN_WITHIN):
            consumer.commit(asynchronous=False)


_UP_WITHIN = 120.0
_DOWN_WITHIN = 20.0
_TRIES = 5
_PORT_TAKEN = ("Address already in use", "BindException")

DEFAULT_PROPERTIES: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "broker.heartbeat.interval.ms": "500",
    # A killed broker may come back under its number only when its old session is over.
    "broker.session.timeout.ms": "3000",
    "group.coordinator.rebalance.protocols": "classic,consumer" if _HAS_KIP_848 else "classic",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "8388608",
    # Real retention within a second: the first check would wait 30 s, the next ones 5 minutes.
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    # The controller writes nothing where nothing happens: an idle broker takes a third of the CPU.
    "metadata.max.idle.interval.ms": "0",
    "num.io.threads": "4",
    "num.network.threads": "2",
    "offsets.topic.num.partitions": "5",
    "share.coordinator.state.topic.num.partitions": "1",
    # A transaction that its producer left behind is aborted soon after its own timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.state.log.num.partitions": "5",
}
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class _Node:
    """One broker: its directory, its ports and, while it runs, its process."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number = number
        self.directory = directory
        self.port = 0
        self.controller_port = 0
        self.mutual_port = 0
        self.pid = 0
        self.process: subprocess.Popen[str] | None = None

    @property
    def log(self) -> Path:
        return self.directory / "broker.log"

    @property
    def settings(self) -> Path:
        return self.directory / "server.properties"

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait(self, seconds: float) -> bool:
        """True when the process has ended within the time."""
        if self.process is None:
            return True
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        if self.process.stdin:
            self.process.stdin.close()
        if self.process.stdout:
            self.process.stdout.close()
        self.process = None
        return True


class EmbeddedKafka:
    """Brokers that belong to this process: `with EmbeddedKafka.start(directory) as kafka: ...`."""

    def __init__(
        self,
        data_dir: Path,
        brokers: int,
        properties: Mapping[str, str],
        heap: str,
        port: int,
        security: Security | None,
        disk_bytes: int | None = None,
        jvm: Sequence[str] = (),
        running: Mapping[int, int] | None = None,
    ) -> None:
        self._nodes = [_Node(n, data_dir / f"broker-{n}") for n in range(1, brokers + 1)]
        self._properties = properties
        self._heap = heap
        self._port, self._disk_bytes, self._options = port, disk_bytes, jvm
        self._running = running or {}
        self.security = security
        self._java = find_java()
        self._classpath = ""
        self._detached = False
        self.data_dir = data_dir

    @classmethod
    def start(
        cls,
        data_dir: Path | str,
        *,
        brokers: int = 1,
        properties: Mapping[str, str] | None = None,
        heap: str = "512m",
        port: int = 0,
        progress: Say | None = None,
        detached: bool = False,
        secured: bool = False,
        disk_bytes: int | None = None,
        jvm: Sequence[str] = (),
        running: Mapping[int, int] | None = None,
    ) -> Self:
        """Start brokers on free ports and wait until they answer.

        A directory that held a Kafka before is started again with its data. `port` asks for a
        certain port of the first broker. A detached broker outlives this process. A secured one has
        `security`. One with `disk_bytes` has a disk of that size, which ends with it. `jvm` are
        more options of Java. `running` are pids by number of brokers that go on as they are: these
        belong to whoever started them.
        """
        classpath = os.pathsep.join(str(jar) for jar in ensure_kafka_jars(progress))
        place = Path(data_dir).absolute()
        security = Security.make(place / "security") if secured else None
        own = dict(properties or {})
        self = cls(place, brokers, own, heap, port, security, disk_bytes, jvm, running)
        self._detached = detached
        self._classpath = classpath
        for attempt in range(_TRIES):
            self._choose_ports(fresh=attempt > 0)
            try:
                self._launch([node for node in self._nodes if node.number not in self._running])
                return self
            except EmbeddedError as error:
                self.kill()
                taken = any(sign in error.message for sign in _PORT_TAKEN)
                # Those that run know the others by the ports they had.
                if not taken or port or running or attempt == _TRIES - 1:
                    raise
            except BaseException:
                self.kill()
                raise
        raise AssertionError("unreachable")

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self._nodes)

    @property
    def client_properties(self) -> dict[str, str]:
        """Of a client that may do everything."""
        own = {} if self.security is None else self.security.client_properties()
        return {"bootstrap.servers": self.bootstrap, **own}

    def mutual_properties(self, user: str) -> dict[str, str]:
        """Of a user of secured brokers who shows a certificate."""
        assert self.security is not None
        addresses = ",".join(f"{HOST}:{node.mutual_port}" for node in self._nodes)
        return {"bootstrap.servers": addresses, **self.security.make_certificate(user)}

    @property
    def pid(self) -> int:
        return self._nodes[0].pid

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(node.pid for node in self._nodes)

    @property
    def _voters(self) -> list[_Node]:
        """Those with a controller: an even number would survive no more than one less."""
        return self._nodes[: len(self._nodes) - (len(self._nodes) + 1) % 2]

    def stop(self) -> None:
        """Shut the brokers down, one after the other."""
        self._stop(self._nodes)

    def kill(self, broker: int | None = None) -> None:
        """SIGKILL every broker, or the one of that number (from 1)."""
        for node in self._chosen(broker):
            self._kill(node)

    def restart(self, broker: int | None = None) -> None:
        """Start again what was stopped or killed: same ports, same data."""
        nodes = self._chosen(broker)
        self._stop(nodes)
        self._launch(nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _chosen(self, broker: int | None) -> list[_Node]:
        return [node for node in self._nodes if broker in (None, node.number)]

    def _stop(self, nodes: list[_Node]) -> None:
        for node in reversed(nodes):
            alive = sum(one.alive() for one in self._voters)
            if not _keeps_quorum(alive, len(self._voters)):
                self._kill(node)
            elif node.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(node.pid, signal.SIGTERM)
                if not node.wait(_DOWN_WITHIN):
                    self._kill(node)
            node.wait(0)

    def _kill(self, node: _Node) -> None:
        if node.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.pid, signal.SIGKILL)
        node.wait(_DOWN_WITHIN)

    def _choose_ports(self, *, fresh: bool) -> None:
        for node in self._nodes:
            kept = {} if fresh else _read_ports(node.directory)
            asked = self._port if node.number == 1 and node.number not in self._running else 0
            node.pid = self._running.get(node.number, 0)
            node.port = asked or kept.get("port", 0) or free_port()
            node.controller_port = kept.get("controller", 0) or free_port()
            node.mutual_port = kept.get("mutual", 0) or free_port()

    def _launch(self, nodes: list[_Node]) -> None:
        for node in nodes:
            self._prepare(node)
            self._spawn(node)
        self._wait_until_up(nodes)

    def _prepare(self, node: _Node) -> None:
        node.directory.mkdir(parents=True, exist_ok=True)
        node.settings.write_text(
            "".join(f"{name}={value}\n" for name, value in self._settings(node).items())
        )
        ports = {"port": node.port, "controller": node.controller_port, "mutual": node.mutual_port}
        (node.directory / "ports.json").write_text(json.dumps(ports))
        if (node.directory / "data" / "meta.properties").exists():
            return
        shutil.rmtree(node.directory / "data", ignore_errors=True)
        command = [*self._jvm("128m"), "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool"]
        command += ["format", "-t", self._cluster_id(), "-c", str(node.settings)]
        if self.security is not None:
            command += self.security.format_arguments()
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise EmbeddedError(
                f"the data directory could not be formatted: {_find_reason(answer.stdout)}"
                f"{_find_reason(answer.stderr)}",
                subject=str(node.directory),
                hint="is there space, and may you write there?",
            )

    def _cluster_id(self) -> str:
        path = self.data_dir / "cluster.id"
        if not path.exists():
            # Kafka's tool takes a leading dash for an option.
            raw = b"\x0f" + uuid.uuid4().bytes[1:]
            path.write_text(urlsafe_b64encode(raw).decode().rstrip("="))
        return path.read_text().strip()

    def _settings(self, node: _Node) -> dict[str, str]:
        voters = ",".join(f"{one.number}@{HOST}:{one.controller_port}" for one in self._voters)
        copies = min(3, len(self._nodes))
        protocol = "PLAINTEXT" if self.security is None else PROTOCOL
        settings = {
            "node.id": str(node.number),
            "process.roles": "broker,controller" if node in self._voters else "broker",
            "listeners": f"{protocol}://{HOST}:{node.port}",
            "advertised.listeners": f"{protocol}://{HOST}:{node.port}",
            "controller.listener.names": "CONTROLLER",
            # Fixed voters: all versions know them, and ports may change between two starts.
            "controller.quorum.voters": voters,
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{protocol}:{protocol}",
            "log.dirs": str(node.directory / "data"),
            "offsets.topic.replication.factor": str(copies),
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": str(copies),
            "transaction.state.log.min.isr": str(max(1, copies - 1)),
            "transaction.state.log.replication.factor": str(copies),
        }
        if node in self._voters:
            settings["listeners"] += f",CONTROLLER://{HOST}:{node.controller_port}"
        secured = {}
        if self.security is not None:
            for name in ("listeners", "advertised.listeners"):
                settings[name] += f",{MUTUAL}://{HOST}:{node.mutual_port}"
            settings["listener.security.protocol.map"] += f",{MUTUAL}:{MUTUAL}"
            secured = self.security.broker_properties()
        return {**settings, **DEFAULT_PROPERTIES, **secured, **self._properties}

    def _jvm(self, heap: str) -> list[str]:
        kept = (f"-XX:SharedArchiveFile={_CLASS_ARCHIVE}",) if _CLASS_ARCHIVE.is_file() else ()
        return [str(self._java), f"-Xmx{heap}", *_JVM_OPTIONS, *kept, "-cp", self._classpath]

    def _spawn(self, node: _Node) -> None:
        command = [*self._jvm(self._heap), *self._options, "kafka.Kafka", str(node.settings)]
        if self._disk_bytes is not None:
            command = limit_disk(command, node.directory / "data", self._disk_bytes)
        with node.log.open("w") as log:
            if self._detached:
                node.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    text=True,
                )
                node.pid = node.process.pid
                return
            # A session of its own keeps Ctrl-C from the broker: we stop it when we are ready.
            node.process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )
        assert node.process.stdout is not None
        pid = node.process.stdout.readline().strip()
        if not pid:
            raise EmbeddedError("the broker's process could not be started", subject=str(node.log))
        node.pid = int(pid)

    def _wait_until_up(self, nodes: list[_Node]) -> None:
        deadline = time.monotonic() + _UP_WITHIN
        for node in nodes:
            while not listens(node.port):
                self._check(node, deadline)
                time.sleep(0.05)
        # Only those that run: `restart(1)` is also asked while another broker is down.
        running = [node for node in self._nodes if node.alive()]
        client = AdminClient(
            {
                **self.client_properties,
                "bootstrap.servers": ",".join(f"{HOST}:{node.port}" for node in running),
                "log_level": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
            }
        )
        wanted = {node.number for node in running}
        while True:
            with contextlib.suppress(KafkaException):
                if wanted <= set(client.list_topics(timeout=1).brokers):
                    return
            for node in nodes:
                self._check(node, deadline)
            time.sleep(0.05)

    def _check(self, node: _Node, deadline: float) -> None:
        if not node.alive():
            why = "the broker ended while it started"
        elif time.monotonic() > deadline:
            why = f"the broker did not answer within {_UP_WITHIN:.0f} s"
        else:
            return
        reason = _find_reason(node.log.read_text(errors="replace"))
        raise EmbeddedError(
            f"{why}: {reason}" if reason else why,
            subject=f"{HOST}:{node.port}",
            hint=f"read {node.log}",
        )


def _read_ports(directory: Path) -> dict[str, int]:
    try:
        return dict(json.loads((directory / "ports.json").read_text()))
    except FileNotFoundError:
        return {}


def _find_reason(text: str) -> str:
    """The line of a JVM's output that says why it ended."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for sign in ("Caused by:", "Exception", "ERROR", "Error", "error"):
        for line in reversed(lines):
            if sign in line and not line.startswith("at "):
                return line[:300]
    return lines[-1][:300] if lines else ""


# Brokers that outlive the process that started them: `backlogctl broker start|stop|status`.
#
# A process is taken for a broker only when its command line names settings of this directory, never
# by the pid of the state file alone.


class BrokerState(NamedTuple):
    """What the state file records of detached brokers, and how many of them run; `started` are the
    numbers of those that `start_broker` has just started."""

    pids: tuple[int, ...]
    bootstrap: str
    alive: int
    started: tuple[int, ...] = ()

    @property
    def running(self) -> bool:
        """Whether all of them do."""
        return self.alive == len(self.pids)


def start_broker(
    directory: Path | str,
    *,
    brokers: int = 1,
    properties: Mapping[str, str] | None = None,
    heap: str = "512m",
    port: int = 0,
    progress: Say | None = None,
) -> BrokerState:
    """Start brokers that outlive this process; those that run there already go on as they are.

    Raises:
        EmbeddedError: another number of them ran there before, or they cannot be started.
    """
    place = Path(directory).resolve()
    place.mkdir(parents=True, exist_ok=True)
    state = broker_state(place)
    there = len(list(place.glob("broker-*/data")))
    if there not in (0, brokers):
        raise EmbeddedError(
            f"there are data of {there} brokers, and {brokers} are asked for",
            subject=str(place),
            hint=f"ask for {there}, or name another directory",
        )
    if state is not None and state.running:
        return state
    running = _find_brokers(state.pids, place) if state else {}
    safe = {"default.replication.factor": "3", "min.insync.replicas": "2"} if brokers > 2 else {}
    kafka = EmbeddedKafka.start(
        place,
        brokers=brokers,
        properties={**safe, **(properties or {})},
        heap=heap,
        port=port,
        progress=progress,
        detached=True,
        running={number: process.pid for number, process in running.items()},
    )
    written = _state_file(place).with_suffix(".tmp")
    written.write_text(json.dumps({"pids": kafka.pids, "bootstrap": kafka.bootstrap}))
    written.replace(_state_file(place))
    started = tuple(number for number in range(1, brokers + 1) if number not in running)
    return BrokerState(kafka.pids, kafka.bootstrap, len(kafka.pids), started)


def broker_state(directory: Path | str) -> BrokerState | None:
    """Those that `start_broker` started in this directory; None when it started none."""
    try:
        state = json.loads(_state_file(Path(directory)).read_text())
    except FileNotFoundError:
        return None
    pids = tuple(int(pid) for pid in state["pids"])
    return BrokerState(pids, str(state["bootstrap"]), len(_find_brokers(pids, directory)))


def stop_broker(directory: Path | str) -> bool:
    """Stop what `start_broker` left here; False when nothing was running."""
    state = broker_state(directory)
    found = [*_find_brokers(state.pids, directory).values()] if state else []
    for left, broker in zip(range(len(found), 0, -1), reversed(found), strict=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if state and _keeps_quorum(left, len(state.pids)):
                broker.terminate()
                psutil.wait_procs([broker], _DOWN_WITHIN)
            if broker.is_running():
                broker.kill()
                psutil.wait_procs([broker], _DOWN_WITHIN)
    _state_file(Path(directory)).unlink(missing_ok=True)
    return bool(found)


def _keeps_quorum(alive: int, brokers: int) -> bool:
    """Whether one of them is let go when it asks; else it would wait in vain for a controller."""
    return brokers == 1 or alive * 2 > brokers


def _state_file(directory: Path) -> Path:
    return directory / "broker.json"


def _find_brokers(pids: Sequence[int], directory: Path | str) -> dict[int, psutil.Process]:
    place, found = Path(directory).resolve(), {}
    for number, pid in enumerate(pids, 1):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if str(place / f"broker-{number}" / "server.properties") in process.cmdline():
                found[number] = process
    return found
