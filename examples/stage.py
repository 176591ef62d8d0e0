"""How a demo looks, runs `backlogctl`, sends orders, and reads what is in a topic."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.formats import Say, format_duration
from backlogctl.kafka.admin import committed_offsets, list_offsets
from backlogctl.kafka.clients import Properties, make_admin
from backlogctl.ledger import open_ledger
from backlogctl.replay.engine.interrupts import Interrupts
from backlogctl.replay.present.layout import Text
from backlogctl.sandbox.embedded import EmbeddedKafka

# How a demo's customers order; Kafka's own partitioner, so that a key keeps its partition.
PRODUCER: dict[str, str | int | bool] = {
    "partitioner": "murmur2_random",
    "enable.idempotence": True,
    "linger.ms": 20,
    "compression.type": "lz4",
    "log_level": 0,
}
_TICK, _PATIENCE_SECONDS = 0.05, 180.0


def send(producer: Producer, topic: str, value: bytes, key: bytes, **more: Any) -> None:
    """Waits while the producer's queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, **more)
            return
        except BufferError:
            producer.poll(0.1)


def flush(producer: Producer, topic: str) -> None:
    """Waits until the broker has all messages. Raises KafkaFailure: it has not after a minute."""
    if producer.flush(60):
        raise KafkaFailure("the demo's orders could not be published", subject=f"topic {topic}")


def read_topic(client: Properties, topic: str, partitions: int) -> list[Message]:
    """Every committed message; those of a partition in their order."""
    reader = Consumer(
        {
            **client,
            "group.id": "demo-audit",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    # Assigned, never committed: the audit does not become a group that reads the topic.
    reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Message] = []
    open_partitions = set(range(partitions))
    try:
        while open_partitions:
            for message in reader.consume(2000, timeout=1.0):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(message.partition() or 0)
                else:
                    raise RuntimeError(str(error))
    finally:
        reader.close()
    return found


def await_handled(
    client: Properties, topic: str, group: str, partitions: int, *, slack: int = 0
) -> None:
    """Waits until a group has committed everything that is in its topic.

    Args:
        slack: offsets at the end of each partition that hold no message: the control record of a
            transaction is never committed.

    Raises:
        KafkaFailure: it has not after some minutes.
    """
    admin, limit, numbers = make_admin(client), Deadline(_PATIENCE_SECONDS), range(partitions)
    while True:
        ends = list_offsets(admin, topic, numbers, "latest", "read_committed")
        commits = committed_offsets(admin, group, topic, numbers)
        if all((commits[number] or 0) + slack >= ends[number] for number in numbers):
            return
        if limit.expired:
            raise KafkaFailure(
                f"not all of {topic} is handled after {_PATIENCE_SECONDS:g} s",
                subject=f"group {group}",
            )
        time.sleep(_TICK)


class Judged(Protocol):
    """What the story came to, as its last line says it."""

    @property
    def passed(self) -> bool: ...


T = TypeVar("T")
Whole = TypeVar("Whole", bound=Judged)
_STOP_SECONDS = 10.0
# Spark lives for seconds here: compiling its code for hours of work would take half of them.
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
_ROOT = Path(__file__).resolve().parents[1]


class Stage:
    """Prints chapters and runs `backlogctl` as a reader would type it, in the shop's directory."""

    def __init__(self, console: Console, directory: Path, environment: Mapping[str, str]) -> None:
        self._console = console
        self._directory = directory
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        self.environment = {**os.environ, **environment, "PYTHONPATH": path}
        self.environment.setdefault("JDK_JAVA_OPTIONS", SHORT_LIVED_JVM)
        # A configuration of the reader's own must not get into the story.
        self.environment.pop("BACKLOG_CONFIG", None)
        if not console.is_terminal:
            self.environment.setdefault("COLUMNS", "100")
        self._chapter = 0

    def open_chapter(self, title: str) -> None:
        self._chapter += 1
        self._console.print()
        heading = Text(f"{self._chapter}  {title}", style="bold cyan")
        self._console.print(Rule(heading, align="left", style="cyan"))

    def tell(self, text: str) -> None:
        """A sentence or two, broken where the terminal ends."""
        shown = Text.from_markup(text.replace("\n", " "))
        self._console.print(Padding(shown, (0, 0, 0, 2), expand=False))

    def show(self, part: RenderableType) -> None:
        """A table, or what else there is to see."""
        self._console.print(part)

    def show_command(self, *words: str) -> str:
        """Shows a command line, and returns it without its first word."""
        line = " ".join(word if " " not in word else f'"{word}"' for word in words)
        self._console.print()
        shown = Text.assemble(("  $ ", "dim"), (f"backlogctl {line}", "bold green"))
        self._console.print(shown, soft_wrap=True)
        self._console.file.flush()
        return line

    def run(self, *words: str, quiet: bool = False, kill: Callable[[], bool] | None = None) -> None:
        """Shows a command line, and runs it; `quiet` leaves out what it prints on stdout.

        Args:
            kill: asked all the while; once it says so, the process is killed with SIGKILL.

        Raises:
            BacklogError: it failed, and its own output says why; or it ended before it was killed.
        """
        line = self.show_command(*words)
        process = subprocess.Popen(
            make_command(*words),
            cwd=self._directory,
            env=self.environment,
            stdout=subprocess.DEVNULL if quiet else None,
        )
        try:
            while kill is not None and process.poll() is None:
                if kill():
                    process.kill()
                time.sleep(_TICK)
            code = process.wait()
        except BaseException:
            _stop(process)
            raise
        if code != (0 if kill is None else -signal.SIGKILL):
            raise BacklogError(f"it ended with exit code {code}", subject=f"backlogctl {line}")


def make_command(*words: str) -> tuple[str, ...]:
    """How a process runs `backlogctl`."""
    return (sys.executable, "-m", "backlogctl.replay.cli", *words)


def write_report(stage: Stage, recovery_id: str, report: Path | None) -> None:
    """The incident report, where somebody wants to keep it."""
    if report is None:
        return
    stage.open_chapter("For the incident review")
    began = time.monotonic()
    stage.run("report", recovery_id, "--html", str(report.resolve()))
    took = format_duration(time.monotonic() - began)
    stage.tell(f"One file that needs nothing else, on a screen or on paper; it took {took}.")


def tell_whole(
    console: Console,
    title: str,
    opening: str,
    closing: str,
    play: Callable[[Path, EmbeddedKafka], Whole],
    **settings: Any,
) -> Whole:
    """Plays a story on a broker, in a directory that is gone at the end, as is every process.

    Args:
        opening, closing: what it is about, and where a reader goes on; in rich's markup.
        settings: how the broker is started.
    """
    started = time.monotonic()
    _print_opening(console, title, opening)
    with (
        Interrupts(once=True).installed(),
        tempfile.TemporaryDirectory(prefix="backlogctl-demo-") as name,
        EmbeddedKafka.start(
            Path(name) / "kafka", progress=tell_progress(console), **settings
        ) as kafka,
    ):
        result = play(Path(name), kafka)
    _print_end(console, closing, result, time.monotonic() - started)
    return result


def _print_opening(console: Console, title: str, text: str) -> None:
    opening = Panel(
        Text.from_markup(text.replace("\n", " ")),
        title=f"backlogctl {title}",
        title_align="left",
        border_style="cyan",
    )
    console.print()
    console.print(opening)


def tell_progress(console: Console) -> Say:
    """Prints what is fetched before the story can begin."""
    return lambda text: console.print(f"  [dim]{text}[/]")


def find_recovery(directory: Path) -> str:
    with open_ledger(f"sqlite:///{directory / 'ledger.db'}") as ledger:
        return ledger.recoveries.list(stream="orders")[-1].id


def _stop(process: subprocess.Popen[bytes]) -> None:
    for ask in (process.terminate, process.kill):
        with suppress(ProcessLookupError):
            ask()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
            return


@dataclass(frozen=True, slots=True)
class Audit:
    """Was every order handled, and none twice?"""

    total: int
    handled: int
    twice: int
    missing: int

    @property
    def is_whole(self) -> bool:
        return self.handled == self.total and not (self.twice or self.missing)

    @property
    def passed(self) -> bool:
        return self.is_whole

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}

    def __str__(self) -> str:
        return (
            f"{self.handled:,} of {self.total:,} orders handled, "
            f"{self.twice:,} twice, {self.missing:,} missing"
        )


def count_orders(handled: Counter[T], expected: Collection[T]) -> dict[str, int]:
    """Of the orders that there are: how often each was handled."""
    return {
        "total": len(expected),
        "handled": sum(1 for order in expected if handled[order]),
        "twice": sum(1 for count in handled.values() if count > 1),
        "missing": sum(1 for order in expected if not handled[order]),
    }


def draw_checks(lines: Iterable[tuple[str, str, str, bool | None]]) -> Table:
    """Each figure, what it says, and whether it is what it should be; None: it may be any."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    table.add_column(no_wrap=True)
    marks = {True: Text("✔", "green"), False: Text("✘", "bold red"), None: Text()}
    for name, figure, how, is_right in lines:
        table.add_row(name, Text(figure, "bold"), how, marks[is_right])
    return table


def _print_end(console: Console, told: str, result: Judged, seconds: float) -> None:
    console.print()
    console.print(Padding(Text.from_markup(told), (0, 0, 0, 2)))
    console.print(f"  [dim]That took {format_duration(seconds)}; everything it started is gone.[/]")
    console.print()
    mark, style = ("✔", "bold green") if result.passed else ("✘", "bold red")
    console.print(Text(f"{mark} {result}", style=style))
