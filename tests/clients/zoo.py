"""The zoo: which clients there are, and one class that starts any of them.

    with Client("franz", kafka.bootstrap, topic, group, record=tmp_path / "record") as client:
        client.await_handled(300)
        client.stop()

A client writes a line `partition offset` into its record when it has handled a message, and before
it commits it: the record is the oracle. A third word is another topic.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from backlogctl.jars import find_java
from backlogctl.sandbox import watchdog
from tests.clients.building import HERE, build_go, build_java, build_node, find, find_version
from tests.kit.kafka import wait_until

_JVM = (
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx192m"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
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
        assignor: as the broker names it; empty where the group never has members.
        leaves: whether its member leaves at its end; else it is there until its session ends.
    """

    language: str
    library: str
    program: str
    mode: str
    commits: str
    epoch: bool | None = True
    assignor: str = "range"
    leaves: bool = True

    @property
    def version(self) -> str:
        """Of the library, as it is locked."""
        return find_version(self.language, self.library)


_CLIENTS, _SPRING = "kafka-clients", "spring-kafka"
_ITSELF = "by itself, what the poll before gave"
KINDS: Mapping[str, Kind] = {
    "java-range": Kind("Java", _CLIENTS, "Plain", "range", _ITSELF),
    "java-cooperative": Kind(
        "Java", _CLIENTS, "Plain", "cooperative", _ITSELF, assignor="cooperative-sticky"
    ),
    "java-map": Kind("Java", _CLIENTS, "Plain", "map", "commitSync(Map)", False),
    "java-async": Kind(
        "Java", _CLIENTS, "Plain", "async", "commitAsync(), at the end commitSync()"
    ),
    "java-kip848": Kind("Java", _CLIENTS, "Plain", "consumer", _ITSELF, assignor="uniform"),
    "java-assign": Kind("Java", _CLIENTS, "Plain", "assign", "commitSync(Map)", False, ""),
    "spring-record": Kind("Java", _SPRING, "Listening", "record", "after each record", False),
    "spring-batch": Kind("Java", _SPRING, "Listening", "batch", "after each poll", False),
    "spring-manual": Kind("Java", _SPRING, "Listening", "manual", "acknowledge()", False),
    "spring-retry": Kind("Java", _SPRING, "Listening", "retry", "after each poll", False),
    "streams": Kind(
        "Java", "kafka-streams", "Streaming", "", "each commit interval", True, "stream", False
    ),
    "connect-sink": Kind("Java", "connect-runtime", "Connecting", "sink", "at each flush", False),
    "mirror-maker": Kind(
        "Java", "connect-mirror", "Connecting", "mirror", "never: in Connect's offsets", None, ""
    ),
    # Where nothing arrives, its commit waits for the end of a fetch, which takes 10 s; the last
    # ones before its end do not come at all.
    "flink": Kind(
        "Java", "flink-connector-kafka", "Checkpointing", "", "at checkpoints", False, ""
    ),
    "spark": Kind("Python", "pyspark", "spark", "", "never: in its checkpoint", None, ""),
    "franz": Kind(
        "Go", "github.com/twmb/franz-go", "", "franz", _ITSELF, assignor="cooperative-sticky"
    ),
    "sarama": Kind("Go", "github.com/IBM/sarama", "", "sarama", "by itself, what is marked", False),
    "kafkajs": Kind(
        "Node", "kafkajs", "kafkajs.js", "", "by itself", False, assignor="RoundRobinAssigner"
    ),
    "librdkafka": Kind("Python", "confluent-kafka", "librdkafka", "", "by itself"),
    "kafka-python": Kind("Python", "kafka-python", "kafka_python", "", "by itself"),
}
JOBS = ("java-range", "java-map", "franz")
_HAVE_SETTINGS = {
    _CLIENTS,
    _SPRING,
    "kafka-streams",
    "flink-connector-kafka",
    "pyspark",
    "confluent-kafka",
}

Place = tuple[int, int]  # partition, offset


class Client:
    """One process of a client; it ends with this one, however that ends.

    Args:
        record: the file of lines; clients that work together may share it.
        delay_ms: how long each message takes.
        commit_ms: how long between two commits.
        once: a job, one of JOBS: it reads up to where the end was at its start, commits and leaves.
        out: the topic into which Kafka Streams writes.
        dlq: the topic for values that begin with `poison` (Streams, Connect).
        settings: of the client, in the library's words. Go's, Node's, kafka-python and Connect
            take none.
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
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = KINDS[kind]
        assert not once or kind in JOBS, f"{kind} is no job"
        assert not settings or self.kind.library in _HAVE_SETTINGS, f"{kind} takes no settings"
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
            **{f"set.{name}": value for name, value in (settings or {}).items()},
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def start(self) -> Self:
        """Starts it, and builds it where that was not done before; returns at once."""
        command, environment = self._find_command()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, *command],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        return self

    def become(self) -> NoReturn:
        """This process is the client from now on."""
        command, environment = self._find_command()
        os.execvpe(command[0], command, {**os.environ, **environment})

    def _find_command(self) -> tuple[list[str], dict[str, str]]:
        command, environment = self._find_program()
        return [*command, *(f"{name}={value}" for name, value in self._words.items())], environment

    def _find_program(self) -> tuple[list[str], dict[str, str]]:
        program = self.kind.program
        match self.kind.language:
            case "Java":
                return [str(find_java()), *_JVM, "-cp", build_java(), program], {}
            case "Go":
                return [str(build_go())], {}
            case "Node":
                modules = {"NODE_PATH": str(build_node())}
                return [find("node"), str(HERE / "node" / program)], modules
        module = f"tests.clients.python.{program}"
        return [sys.executable, "-m", module], {"PYTHONPATH": str(HERE.parents[1])}

    def lines(self) -> list[list[str]]:
        """The words of each line of the record."""
        written = self.record.read_text() if self.record.exists() else ""
        return [line.split() for line in written.splitlines()]

    def handled(self, of: str = "") -> list[Place]:
        """What it handled of its topic, in that order.

        Args:
            of: another topic that it reads too.
        """
        third = [of] if of else []
        return [(int(line[0]), int(line[1])) for line in self.lines() if line[2:] == third]

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def await_handled(self, count: int, of: str = "", seconds: float = 180.0) -> None:
        """Until it has handled so many different messages."""

        def is_done() -> bool:
            if len(set(self.handled(of))) >= count:
                return True
            assert self.is_running, "it has ended"
            return False

        try:
            wait_until(is_done, seconds, f"{count} messages are handled")
        except AssertionError as error:
            has = len(set(self.handled(of)))
            raise AssertionError(f"{error}; {has} are: {self.log.read_text()}") from error

    def wait(self, seconds: float = 180.0) -> None:
        """Until it has ended by itself, well."""
        self._reap(seconds, 0)

    def stop(self, seconds: float = 180.0) -> None:
        """It ends as its service would at SIGTERM, and commits what such a client commits then."""
        os.kill(self.pid, signal.SIGTERM)
        self._reap(seconds, 0, _SIGTERM_CODE)

    def kill(self) -> None:
        """SIGKILL, for those that it started too: Spark's JVM."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
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


def serve(kind: str, record: str, delay_ms: str, *settings: str) -> NoReturn:
    """A consumer of a stream, as the launcher of backlogctl starts it: a file of records a topic.

    Args:
        delay_ms: of the original consumers; those of a recovery are as fast as they can be.
        settings: of the client, as `name=value`.
    """
    topic, group = os.environ["BACKLOG_TOPIC"], os.environ["BACKLOG_GROUP"]
    is_slow = os.environ["BACKLOG_ROLE"] == "original"
    Client(
        *(kind, os.environ["BACKLOG_BOOTSTRAP_SERVERS"], topic, group),
        record=Path(f"{record}.{topic}"),
        delay_ms=int(delay_ms) if is_slow else 0,
        commit_ms=500,
        settings=dict(setting.split("=") for setting in settings),
    ).become()


if __name__ == "__main__":
    serve(*sys.argv[1:])
