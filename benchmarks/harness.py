"""What all benchmarks share: options, turns, a broker, Spark, CPU seconds, tables, results."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import confluent_kafka
import psutil
from rich.console import Console
from rich.table import Table

from backlogctl.config import SparkSection
from backlogctl.formats import Say
from backlogctl.kafka.admin import create_topic
from backlogctl.sandbox.embedded import EmbeddedKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULTS = Path(__file__).parent / "results"
KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}
USERS = 100_000
Figures = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark: its sizes, how it measures, and how what it measured is drawn.

    Attributes:
        sizes: the options and their defaults.
        smoke: the sizes of `--smoke`: every part runs once, in seconds; the figures mean nothing.
        plot: an SVG of the document, kept beside it.
    """

    name: str
    text: str | None
    sizes: Mapping[str, int]
    smoke: Mapping[str, int]
    measure: Callable[[argparse.Namespace, Say], Figures]
    draw: Callable[[Figures], Iterable[Table]]
    plot: Callable[[Figures], str] | None = None

    def main(self, arguments: Sequence[str] | None = None) -> Figures:
        """Measures, prints the tables and keeps the document."""
        parser = argparse.ArgumentParser(
            description=self.text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        for name, default in self.sizes.items():
            parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
        parser.add_argument("--load", type=int, default=0, help="so many busy processes beside it")
        parser.add_argument("--smoke", action="store_true", help="tiny sizes, nothing is kept")
        parser.add_argument("--output", type=Path, help="where the document is kept")
        options = parser.parse_args(arguments)
        if options.smoke:
            vars(options).update(self.smoke)
        machine, say = describe_machine(), Console(stderr=True).print
        with _busy(options.load):
            measured_here = self.measure(options, say)
        document = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine,
            "load": options.load,
            **{name: getattr(options, name) for name in self.sizes},
            **measured_here,
        }
        for table in self.draw(document):
            Console(width=120).print(table)
        output = options.output or (None if options.smoke else RESULTS / f"{self.name}.json")
        if output is not None:
            output.write_text(json.dumps(document, indent=1) + "\n")
            if self.plot is not None:
                output.with_suffix(".svg").write_text(self.plot(document) + "\n")
        return document


# It ends with the process that started it, however that ends.
_SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(9999))"


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    children = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def describe_machine() -> Figures:
    """What every document notes; `load_before` says whether others were at work."""
    return {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "confluent_kafka": confluent_kafka.version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "load_before": round(os.getloadavg()[0], 2),
    }


def take_turns(
    ways: Mapping[str, Callable[[], Figures]], repeat: int, say: Say
) -> dict[str, list[Figures]]:
    """Each way `repeat` times, in turns, so that all meet the same machine.

    The first turn warms up and does not count, unless it is the only one.
    """
    runs: dict[str, list[Figures]] = {way: [] for way in ways}
    for turn in range(repeat + 1):
        for way, run in ways.items():
            figures = run()
            what = f"{turn} of {repeat}" if turn else "warm-up"
            say(f"{way}, {what}: {next(iter(figures.items()))}")
            if turn or not repeat:
                runs[way].append(figures)
    return runs


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, median and most."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def summarize(runs: Sequence[Figures]) -> Figures:
    """The spread of every figure; None where a run has none."""
    columns = {name: [run[name] for run in runs] for name in runs[0]}
    return {n: None if None in values else spread(values) for n, values in columns.items()}


def format_figure(figure: Mapping[str, float] | None, form: str = "{:,.0f}") -> str:
    if figure is None:
        return "–"
    least, middle, most = (form.format(figure[name]) for name in ("min", "median", "max"))
    return f"{middle}\n({least}–{most})" if least != most else middle


def tabulate(
    title: str, columns: Mapping[str, str], rows: Iterable[Sequence[str]], **more: Any
) -> Table:
    """A table with one column of labels; `columns` are the titles of the others."""
    table = Table("", title=title, **more)
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def row(label: str, summaries: Iterable[Figures], name: str, form: str = "{:,.0f}") -> list[str]:
    return [label, *(format_figure(summary[name], form) for summary in summaries)]


def run_apart(work: Callable[..., T], *arguments: Any) -> T:
    """Runs it in a new process, so that memory, CPU and Spark are its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *arguments).result()


@dataclass(frozen=True, slots=True)
class Broker:
    """Where messages are; its process is not known where somebody else started it."""

    bootstrap: str
    pid: int | None

    @property
    def properties(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap}

    def make_topic(self, name: str, partitions: int) -> str:
        """A new topic that keeps its messages; its name is nobody else's."""
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        create_topic(self.properties, topic, partitions=partitions, replication=1, config=KEEP)
        return topic


@contextmanager
def open_world() -> Iterator[tuple[Broker, Path]]:
    """A broker with 1 GB of heap, or the one of BENCH_KAFKA, and a directory."""
    with tempfile.TemporaryDirectory(prefix="backlogctl-bench-") as name:
        if shared := os.environ.get("BENCH_KAFKA"):
            yield Broker(shared, None), Path(name)
            return
        with EmbeddedKafka.start(Path(name) / "kafka", heap="1g") as kafka:
            yield Broker(kafka.bootstrap, kafka.pid), Path(name)


@contextmanager
def open_spark() -> Iterator[SparkSession]:
    """The session that is open here, or one of its own."""
    from pyspark.sql import SparkSession

    from backlogctl.spark_backfill.spark.session import open_session

    if (shared := SparkSession.getActiveSession()) is not None:
        yield shared
        return
    spark = open_session(SparkSection(), "benchmark")
    try:
        yield spark
    finally:
        spark.stop()


@dataclass
class Usage:
    """Seconds, and CPU seconds of this process, of its children that ended, and of two JVMs."""

    seconds: float = 0.0
    own: float = 0.0
    children: float = 0.0
    broker: float = 0.0
    spark: float = 0.0


@contextmanager
def measured(broker: int | None = None, spark: SparkSession | None = None) -> Iterator[Usage]:
    """Time and CPU of what happens inside; `broker` is the pid of its JVM."""
    usage, driver = Usage(), None if spark is None else _find_driver(spark)
    before = (_cpu(resource.RUSAGE_SELF), _cpu(resource.RUSAGE_CHILDREN))
    jvms = (cpu_of(broker), cpu_of(driver))
    began = time.monotonic()
    yield usage
    usage.seconds = time.monotonic() - began
    usage.own = _cpu(resource.RUSAGE_SELF) - before[0]
    usage.children = _cpu(resource.RUSAGE_CHILDREN) - before[1]
    usage.broker, usage.spark = cpu_of(broker) - jvms[0], cpu_of(driver) - jvms[1]


def _find_driver(spark: SparkSession) -> int:
    gateway: Any = spark.sparkContext._gateway
    return int(gateway.proc.pid)


def cpu_of(pid: int | None) -> float:
    """CPU seconds of a process; 0 where it is not known."""
    if pid is None:
        return 0.0
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def _cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def make_orders(messages: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of about 400 B: an order with some items, as a shop has them.

    Characters 15 to 25 of a value are its number.
    """
    dice = random.Random(7)
    streets = ["Hill Road", "Station Street", "Market Square", "Mill Lane", "Church Street"]
    tails = []
    for _ in range(min(messages, 5_000)):
        items = ",".join(
            f'{{"sku":"SKU-{dice.randrange(10**6):06}","quantity":{dice.randrange(1, 6)},'
            f'"price":"{dice.randrange(99, 20_000) / 100:.2f}"}}'
            for _ in range(3)
        )
        tails.append(
            f'"status":"{dice.choice(("paid", "shipped", "refunded"))}","currency":"EUR",'
            f'"amount":"{dice.randrange(999, 99_999) / 100:.2f}","items":[{items}],'
            f'"ship_to":{{"street":"{dice.randrange(1, 200)} {dice.choice(streets)}",'
            f'"postal_code":"{dice.randrange(10_000, 99_999)}","country":"DE"}},'
            f'"updated_at":"2026-11-21T08:{dice.randrange(60):02}:{dice.randrange(60):02}.000Z"}}'
        )
    for number in range(messages):
        user = int(dice.random() * USERS)
        value = f'{{"order_id":"o-{number:010}","user_id":{user},{dice.choice(tails)}'
        yield f"u-{user}".encode(), value.encode()


NUMBER = slice(15, 25)  # where a value has its number


def send(producer: confluent_kafka.Producer, *message: Any, **more: Any) -> None:
    """Produces as soon as the producer's queue has room."""
    while True:
        try:
            producer.produce(*message, **more)
            return
        except BufferError:
            producer.poll(0.05)
