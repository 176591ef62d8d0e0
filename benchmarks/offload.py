"""The archive alone: two million messages from 3 partitions into files that were read back.

`python -m benchmarks.offload [--messages 2000000] [--repeat 3]`. Beside it, in turns: Spark's own
Kafka reader into Parquet with its defaults, and kcat into a file. Spark's start does not count. At
the end an archive is put back by a redrive.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from backlogctl.config import load_config
from backlogctl.formats import Say
from backlogctl.kafka.admin import list_offsets, read_topic_id
from backlogctl.kafka.clients import make_admin
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.runner import Run
from backlogctl.replay.kinds import REDRIVE
from backlogctl.replay.kinds.redrive.plan import RedriveOptions
from backlogctl.replay.opening import open_workspace
from backlogctl.spark_backfill.archive.job import ArchiveJob, ArchiveProgress
from backlogctl.spark_backfill.archive.reading import read_archive
from backlogctl.spark_backfill.archive.writing import write_archive
from backlogctl.values import OffsetRange
from benchmarks.harness import (
    Benchmark,
    Broker,
    Figures,
    Usage,
    measured,
    open_spark,
    open_world,
    row,
    summarize,
    tabulate,
    take_turns,
)
from benchmarks.relay import publish_orders
from benchmarks.relay_others import PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from backlogctl.archive_manifest import ArchiveManifest

TITLES = {"archive": "archive", "spark": "Spark's own to Parquet", "kcat": "kcat > file"}
ROWS = (
    ("messages/s, all of it", "per_second", "{:,.0f}"),
    ("messages/s, writing alone", "write_per_second", "{:,.0f}"),
    ("messages/s, reading back and hashing", "check_per_second", "{:,.0f}"),
    ("CPU s, who reads", "reader_cpu_seconds", "{:.1f}"),
    ("CPU s, broker", "broker_cpu_seconds", "{:.1f}"),
    ("bytes of files a message", "bytes_per_message", "{:.1f}"),
    ("… by bytes of keys and values", "bytes_ratio", "{:.3f}"),
)
PROMISES = (
    ("read back, and hashed", "yes", "no", "no"),
    ("headers, timestamps, null values", "yes", "no headers", "no"),
    ("killed, it goes on", "yes", "no", "no"),
)
_TEXT = """\
ledger: sqlite:///ledger.db
staging: {dir: ./staging}
clusters:
  main: {bootstrap.servers: "@SERVERS@"}
streams:
  bench:
    cluster: main
    topic: @TOPIC@
    group: bench
    limits: {max_messages: 100000000}
"""


@dataclass
class World:
    """A topic, and where the archives of it are.
    `kept`: the manifest of the archive that was written last, and its place.
    """

    broker: Broker
    spark: SparkSession
    source: str
    messages: int
    payload: float
    scratch: Path
    kept: list[tuple[ArchiveManifest, Path]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def archive(self) -> Figures:
        """Ours, reading back included; its files stay until the next one."""
        for _, place in self.kept:
            shutil.rmtree(place)
        self.kept.clear()
        broker, place = self.broker, self._choose("archive")
        admin = make_admin(broker.properties)
        ends = list_offsets(admin, self.source, range(PARTITIONS), "latest", "read_committed")
        job = ArchiveJob(
            recovery_id="r-20000101-0001",
            stream="bench",
            cluster="main",
            topic=self.source,
            topic_id=read_topic_id(admin, self.source)[0],
            group="bench",
            partitions=PARTITIONS,
            plan_hash="0" * 64,
            made_by="bench",
            location=str(place),
            ranges=tuple(OffsetRange(p, 0, end) for p, end in ends.items()),
            properties=broker.properties,
            bytes_per_message=self.payload,
        )
        progress: list[ArchiveProgress] = []
        with measured(self.broker.pid, self.spark) as usage:
            manifest = write_archive(self.spark, job, on_progress=progress.append)
        self.kept.append((manifest, place))
        count = read_archive(self.spark, str(place), manifest).count()
        self._check("archive", count if manifest.count == count else -1)
        last = progress[-1]
        return self._conclude(usage, manifest.bytes, last.write_seconds, last.check_seconds)

    def write_plainly(self) -> Figures:
        """Spark's own way, with its defaults: uncommitted messages too, no headers."""
        place = self._choose("spark")
        with measured(self.broker.pid, self.spark) as usage:
            (
                self.spark.read.format("kafka")
                .option("kafka.bootstrap.servers", self.broker.bootstrap)
                .option("subscribe", self.source)
                .option("startingOffsets", "earliest")
                .option("endingOffsets", "latest")
                .load()
                .write.parquet(str(place))
            )
        size = sum(file.stat().st_size for file in place.glob("*.parquet"))
        self._check("spark", self.spark.read.parquet(str(place)).count())
        shutil.rmtree(place)
        return self._conclude(usage, size, usage.seconds, None)

    def dump(self) -> Figures:
        """kcat into a file: keys and values in lines of text."""
        place = self._choose("kcat")
        words = ["kcat", "-C", "-b", self.broker.bootstrap, "-t", self.source, "-o", "beginning"]
        words += ["-e", "-q", "-K", r"\t", "-X", "fetch.wait.max.ms=50"]
        with place.open("wb") as file, measured(self.broker.pid) as usage:
            subprocess.run(words, stdout=file, check=True)
        size = place.stat().st_size
        with place.open("rb") as lines:
            self._check("kcat", sum(1 for _ in lines))
        place.unlink()
        time.sleep(1.0)  # the broker is quiet
        return self._conclude(usage, size, usage.seconds, None)

    def redrive(self) -> Figures:
        """All of the archive into a topic of its own: messages a second of each part."""
        manifest, place = self.kept[-1]
        target = self.broker.make_topic("put-back", PARTITIONS)
        file = self.scratch / "backlog.yaml"
        text = _TEXT.replace("@SERVERS@", self.broker.bootstrap).replace("@TOPIC@", self.source)
        file.write_text(text)
        workspace = open_workspace(load_config(file))
        stream, ledger = workspace.config.stream("bench"), workspace.ledger
        offload = ledger.recoveries.create(
            *("offload", stream.name, stream.cluster, stream.topic, stream.group),
            *({}, "0" * 64, (), "bench"),
            id=manifest.recovery_id,
            stops_consumers=True,
            holds_when_failed=True,
        )
        ledger.archives.record(
            offload.id,
            stream=stream.name,
            cluster=stream.cluster,
            topic=stream.topic,
            topic_id=manifest.topic_id,
            location=str(place),
            manifest_sha256=manifest.sha256(),
            messages=manifest.count,
            bytes=manifest.bytes,
            ranges=manifest.ranges,
        )
        options = RedriveOptions(source=f"archive:{offload.id}", everything=True, to=target)
        began = ledger.now()
        recovery = REDRIVE.make_plan(workspace, stream, options)
        seconds = {"plan": (ledger.now() - began).total_seconds()}
        approve_plan(workspace, recovery, by="bench")
        Run(workspace, recovery.id, Console(quiet=True)).carry_out()
        for step in ledger.steps.list(recovery.id):
            if step.completed_at is not None:
                seconds[step.step] = (step.completed_at - step.first_started_at).total_seconds()
        done = ledger.recoveries.get(recovery.id)
        found: Figures = {"messages": done.injected, "state": str(done.state)}
        for part in ("plan", "inject", "verify"):
            found[f"{part}_seconds"] = round(seconds[part], 1)
            found[f"{part}_per_second"] = round(manifest.count / max(seconds[part], 0.001))
        return found

    def _choose(self, way: str) -> Path:
        return self.scratch / f"{way}-{next(self.numbers)}"

    def _check(self, way: str, count: int) -> None:
        if count != self.messages:
            sys.exit(f"{TITLES[way]}: not each message is there exactly once")

    def _conclude(
        self, usage: Usage, size: int, write: float | None, check: float | None
    ) -> Figures:
        messages = self.messages
        return {
            "per_second": round(messages / usage.seconds),
            "write_per_second": write and round(messages / write),
            "check_per_second": check and round(messages / check),
            "reader_cpu_seconds": round(usage.children + usage.spark, 2),
            "broker_cpu_seconds": round(usage.broker, 2),
            "bytes_per_message": round(size / messages, 1),
            "bytes_ratio": round(size / (messages * self.payload), 3),
        }


def measure(options: Namespace, say: Say) -> Figures:
    with open_world() as (broker, scratch):
        say(f"publishing {options.messages:,} messages")
        source, payload = publish_orders(broker, options.messages)
        with open_spark() as spark:
            world = World(broker, spark, source, options.messages, payload, scratch)
            ways: dict[str, Callable[[], Figures]] = {
                "archive": world.archive,
                "spark": world.write_plainly,
                "kcat": world.dump,
            }
            runs = take_turns(ways, options.repeat, say)
            say("putting the last archive back")
            back = world.redrive()
    ways_found = {way: summarize(found) for way, found in runs.items()}
    return {"bytes": round(payload), "ways": ways_found, "redrive": back, "runs": runs}


def draw(document: Figures) -> Iterable[Table]:
    table = tabulate(
        f"{document['messages']:,} messages of {document['bytes']} B, lz4, {PARTITIONS} "
        f"partitions; median (least–most) of {document['repeat']}",
        *(TITLES, [row(one[0], (document["ways"][w] for w in TITLES), *one[1:]) for one in ROWS]),
        caption="After Spark's start. Spark's own way is with its defaults: Snappy, no headers, "
        "aborted messages too. CPU seconds are for all of the messages.",
    )
    table.add_section()
    for promise in PROMISES:
        table.add_row(*promise)
    yield table
    back = document["redrive"]
    parts = ("plan", "inject", "verify")
    yield tabulate(
        f"{back['messages']:,} messages put back from the archive, {back['state']}",
        {"s": "s", "rate": "messages/s"},
        [(p, f"{back[f'{p}_seconds']:g}", f"{back[f'{p}_per_second']:,}") for p in parts],
        caption="Each chunk a transaction, on one broker. The plan verifies the archive's files.",
    )


BENCHMARK = Benchmark(
    *("offload", __doc__, {"messages": 2_000_000, "repeat": 3}),
    *({"messages": 2_000, "repeat": 0}, measure, draw),
)

if __name__ == "__main__":
    BENCHMARK.main()
