"""The zoo: which clients there are, and one class that starts any of them.

    with Client("franz", kafka.bootstrap, topic, group, record=tmp_path / "record") as client:
        client.await_handled(300)
        client.stop()

A client writes a line `partition offset` into its record when it has handled a message, and before
it commits it: the record is the oracle.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from backlogctl.jars import find_java
from backlogctl.sandbox import watchdog
from tests.clients.building import HERE, build_go, build_java, build_node, find
from tests.kit.kafka import wait_until

_SIGTERM_CODE = 128 + signal.SIGTERM  # how a JVM ends after its shutdown hooks


@dataclass(frozen=True)
class Kind:
    """A row of the table.

    Attributes:
        library: as its registry names it.
        program: a Java class, a script, a Python module.
        mode: of the program.
        commits: in words, how its offsets come to the broker.
        epoch: whether they come with the leader's epoch; None where none come.
        has_members: whether the group has members while it runs.
    """

    language: str
    library: str
    program: str
    mode: str
    commits: str
    epoch: bool | None = True
    has_members: bool = True


_CLIENTS, _SPRING = "kafka-clients", "spring-kafka"
_ITSELF = "by itself, what the poll before gave"
KINDS: Mapping[str, Kind] = {
    "java-range": Kind("Java", _CLIENTS, "Plain", "range", _ITSELF),
    "java-cooperative": Kind("Java", _CLIENTS, "Plain", "cooperative", _ITSELF),
    "java-map": Kind("Java", _CLIENTS, "Plain", "map", "commitSync(Map)", False),
    "java-async": Kind(
        "Java", _CLIENTS, "Plain", "async", "commitAsync(), at the end commitSync()"
    ),
    "java-kip848": Kind("Java", _CLIENTS, "Plain", "consumer", _ITSELF),
    "java-assign": Kind(
        "Java", _CLIENTS, "Plain", "assign", "assign(), commitSync(Map)", False, False
    ),
    "spring-record": Kind("Java", _SPRING, "Listening", "record", "after each record", False),
    "spring-batch": Kind("Java", _SPRING, "Listening", "batch", "after each poll", False),
    "spring-manual": Kind("Java", _SPRING, "Listening", "manual", "acknowledge()", False),
    "spring-retry": Kind("Java", _SPRING, "Listening", "retry", "after each poll", False),
    "streams": Kind("Java", "kafka-streams", "Streaming", "", "at each commit interval"),
    "connect-sink": Kind("Java", "connect-runtime", "Connecting", "sink", "at each flush", False),
    "mirror-maker": Kind(
        "Java", "connect-mirror", "Connecting", "mirror", "never: in Connect's offsets", None, False
    ),
    # Where nothing arrives, its commit waits for the end of a fetch, which takes 10 s; the last
    # ones before its end do not come at all.
    "flink": Kind(
        "Java",
        "flink-connector-kafka",
        "Checkpointing",
        "",
        "assigns; at checkpoints",
        False,
        False,
    ),
    "spark": Kind("Python", "pyspark", "spark", "", "never: in its checkpoint", None, False),
    "franz": Kind("Go", "github.com/twmb/franz-go", "", "franz", _ITSELF),
    "sarama": Kind("Go", "github.com/IBM/sarama", "", "sarama", "by itself, what is marked", False),
    "kafkajs": Kind("Node", "kafkajs", "kafkajs.js", "", "by itself", False),
    "librdkafka": Kind("Python", "confluent-kafka", "librdkafka", "", "by itself"),
    "kafka-python": Kind("Python", "kafka-python", "kafka_python", "", "by itself"),
}
PRODUCERS: Mapping[str, Kind] = {
    f"producer-{mode}": Kind("Java", _CLIENTS, "Producing", mode, "", None, False)
    for mode in ("plain", "idempotent", "acks0", "micros", "commit", "abort", "open")
}

Place = tuple[int, int]  # partition, offset


class Client:
    """One process of a client; it ends with this one, however that ends.

    Args:
        record: the file of lines; clients that work together may share it.
        delay_ms: how long each message takes.
        commit_ms: how long between two commits.
        once: a job: it reads up to where the end was at its start, commits and leaves.
        out: the topic into which Kafka Streams writes.
        dlq: the topic for values that begin with `poison` (Streams, Connect).
        count: how many messages a producer sends.
        each: how many are in one transaction.
        settings: of the client, in the library's words (Java, librdkafka, Spark's source).
    """

    def __init__(
        self,
        kind: str,
        bootstrap: str,
        topic: str,
        group: str = "",
        *,
        record: Path,
        delay_ms: int = 0,
        commit_ms: int = 1000,
        once: bool = False,
        out: str = "",
        dlq: str = "",
        count: int = 0,
        each: int = 100,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = {**KINDS, **PRODUCERS}[kind]
        self.record = record
        self.log = record.with_name(f"{record.name}.{kind}.log")
        self._words = {
            "bootstrap": bootstrap,
            "topic": topic,
            "group": group,
            "record": str(record),
            "mode": self.kind.mode,
            "delay_ms": str(delay_ms),
            "commit_ms": str(commit_ms),
            "once": str(int(once)),
            "state": f"{record}.{kind}.state",
            "out": out,
            "dlq": dlq,
            "count": str(count),
            "each": str(each),
            **{f"set.{name}": value for name, value in (settings or {}).items()},
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def start(self) -> Self:
        """Starts it, and builds it where that was not done before; returns at once."""
        command, environment = self._find_command()
        words = [f"{name}={value}" for name, value in self._words.items()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, *command, *words],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        return self

    def _find_command(self) -> tuple[list[str], dict[str, str]]:
        kind = self.kind
        if kind.language == "Java":
            options = [
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-XX:-UsePerfData",
                "-Xmx192m",
            ]
            logs = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
            return [str(find_java()), *options, logs, "-cp", build_java(), kind.program], {}
        if kind.language == "Go":
            return [str(build_go())], {}
        if kind.language == "Node":
            return [find("node"), str(HERE / "node" / kind.program)], {
                "NODE_PATH": str(build_node())
            }
        module = f"tests.clients.python.{kind.program}"
        return [sys.executable, "-m", module], {"PYTHONPATH": str(HERE.parents[1])}

    def lines(self) -> list[list[str]]:
        """The words of each line of the record."""
        written = self.record.read_text() if self.record.exists() else ""
        return [line.split() for line in written.splitlines()]

    def handled(self, topic: str | None = None) -> list[Place]:
        """What it handled of its topic, or of another one that it reads too, in that order."""
        more = [] if topic is None else [topic]
        return [(int(line[0]), int(line[1])) for line in self.lines() if line[2:] == more]

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def await_handled(self, count: int, seconds: float = 180.0) -> None:
        """Until it has handled so many different messages."""

        def is_done() -> bool:
            assert self.is_running, f"it ended: {self.log.read_text()}"
            return len(set(self.handled())) >= count

        try:
            wait_until(is_done, seconds, f"{count} messages are handled")
        except AssertionError as error:
            raise AssertionError(
                f"{error}; {len(set(self.handled()))} are; {self.log.read_text()}"
            ) from error

    def wait(self, seconds: float = 180.0) -> None:
        """Until it has ended by itself, well."""
        self._reap(seconds, 0)

    def stop(self, seconds: float = 180.0) -> None:
        """It ends as its service would at SIGTERM, and commits what such a client commits then."""
        os.kill(self.pid, signal.SIGTERM)
        self._reap(seconds, 0, _SIGTERM_CODE)

    def kill(self) -> None:
        """SIGKILL."""
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._reap(10.0)

    def _reap(self, seconds: float, *codes: int) -> None:
        process = self._process
        assert process is not None
        code = process.wait(seconds)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        self._process = None
        assert not codes or code in codes, f"it ended with {code}: {self.log.read_text()}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
