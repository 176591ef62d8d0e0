"""What the relay is measured beside: kcat into kcat, MirrorMaker 2, Spark's Kafka sink, and the
producer test of Kafka itself, which copies nothing: it shows what the broker can take.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backlogctl.clock import Deadline
from backlogctl.jars import ensure_jars, find_java
from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.kafka.clients import make_admin
from benchmarks.harness import KEEP, Broker, Usage, make_orders, measured
from tests.kit.java import name_tools

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS, TARGETS = 3, 30
# Of every producer in Java: larger batches than by default, which suits them.
PRODUCER = {"acks": "all", "compression.type": "lz4", "batch.size": "262144", "linger.ms": "20"}
_LOOK_SECONDS = 0.05
_STALLED_SECONDS = 120.0
_PAYLOADS = 5_000
_MIRROR = Path(__file__).with_name("mirror.jars")
_MIRROR_SETTINGS = """\
clusters = {alias}, target
{alias}.bootstrap.servers = {servers}
target.bootstrap.servers = {servers}
{alias}->target.enabled = true
{alias}->target.topics = {source}
tasks.max = {partitions}
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
emit.offset-syncs.enabled = false
sync.group.offsets.enabled = false
sync.topic.configs.enabled = false
sync.topic.acls.enabled = false
replication.factor = 1
heartbeats.topic.replication.factor = 1
config.storage.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
{alias}.consumer.max.poll.records = 5000
{alias}.consumer.max.partition.fetch.bytes = 4194304
target.plugin.discovery = service_load
"""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that is done: where it is, and what it took.

    Attributes:
        first: seconds until the first messages were there, and how many those were.
        numbered: each message is there once, by its number.
    """

    target: str
    usage: Usage
    first: tuple[float, int]
    partitions: int = TARGETS
    numbered: bool = True


class _Arrivals(threading.Thread):
    """Looks how many messages are in a topic, again and again."""

    def __init__(self, broker: Broker, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self._admin, self._topic = make_admin(broker.properties), topic
        self._partitions, self._over = range(partitions), threading.Event()
        self._began = time.monotonic()
        self.count, self.first = 0, (0.0, 0)

    def run(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            ends = list_offsets(self._admin, self._topic, self._partitions, "latest")
            self.count = sum(ends.values())
            if self.count and not self.first[1]:
                self.first = (time.monotonic() - self._began, self.count)

    def stop(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def _watched(
    broker: Broker, topic: str, partitions: int = TARGETS, spark: SparkSession | None = None
) -> Iterator[tuple[Usage, _Arrivals]]:
    with measured(broker.pid, spark) as usage:
        arrivals = _Arrivals(broker, topic, partitions)
        arrivals.start()
        try:
            yield usage, arrivals
        finally:
            arrivals.stop()


def pipe(broker: Broker, source: str) -> Copy:
    """By kcat into kcat, as fast as it goes: keys and values in lines of text."""
    target = broker.make_topic("kcat", TARGETS)
    reading = ["kcat", "-C", "-b", broker.bootstrap, "-t", source, "-o", "beginning", "-e", "-q"]
    reading += ["-K", r"\t", "-X", "fetch.wait.max.ms=50"]
    writing = ["kcat", "-P", "-b", broker.bootstrap, "-t", target, "-z", "lz4", "-K", r"\t"]
    for setting in (
        "linger.ms=10",
        "queue.buffering.max.messages=500000",
        "topic.partitioner=murmur2_random",
    ):
        writing += ["-X", setting]
    with _watched(broker, target) as (usage, arrivals):
        reader = subprocess.Popen(reading, stdout=subprocess.PIPE)
        writer = subprocess.Popen(writing, stdin=reader.stdout)
        assert reader.stdout is not None
        reader.stdout.close()
        codes = (writer.wait(), reader.wait())
    assert codes == (0, 0), f"kcat ended with {codes}"
    return Copy(target, usage, arrivals.first)


def mirror(broker: Broker, source: str, messages: int, scratch: Path) -> Copy:
    """By MirrorMaker 2 in dedicated mode, partition by partition into as many, until all is there.

    Each copy has an alias of its own, under which MirrorMaker keeps its offsets.
    """
    alias = f"mirror{uuid.uuid4().hex[:8]}"
    target, settings, log = f"{alias}.{source}", scratch / "mm2.properties", scratch / "mm2.log"
    create_topic(broker.properties, target, partitions=PARTITIONS, replication=1, config=KEEP)
    servers = broker.bootstrap
    text = _MIRROR_SETTINGS.format(
        alias=alias, servers=servers, source=source, partitions=PARTITIONS
    )
    more = "".join(f"target.producer.{name} = {value}\n" for name, value in PRODUCER.items())
    settings.write_text(text + more)
    command = _run_java("1g", "org.apache.kafka.connect.mirror.MirrorMaker", str(settings))
    with _watched(broker, target, PARTITIONS) as (usage, arrivals), log.open("w") as file:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            limit, before = Deadline(_STALLED_SECONDS), 0
            while (count := arrivals.count) < messages:
                if count > before:
                    limit, before = Deadline(_STALLED_SECONDS), count
                if process.poll() is not None or limit.expired:
                    sys.exit(f"MirrorMaker 2 copies no more: {log.read_text()[-2000:]}")
                time.sleep(0.02)
            seconds = time.monotonic() - began
        finally:
            process.kill()
            process.wait()
    usage.seconds = seconds  # its end is none of the copy
    admin = make_admin(broker.properties)
    own = [name for name in admin.list_topics(timeout=10).topics if alias in name]
    for deleted in admin.delete_topics([name for name in own if name != target]).values():
        deleted.result(30)
    return Copy(target, usage, arrivals.first, PARTITIONS)


def copy_by_spark(broker: Broker, source: str, spark: SparkSession) -> Copy:
    """A batch query from topic to topic by Spark's own source and sink, after Spark's start."""
    target = broker.make_topic("spark", TARGETS)
    with _watched(broker, target, spark=spark) as (usage, arrivals):
        (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("subscribe", source)
            .option("includeHeaders", "true")
            .load()
            .select("key", "value", "headers")
            .write.format("kafka")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", target)
            .options(**{f"kafka.{name}": value for name, value in PRODUCER.items()})
            .save()
        )
    return Copy(target, usage, arrivals.first)


def run_producer_test(broker: Broker, messages: int, scratch: Path) -> Copy:
    """Kafka's ProducerPerformance: as many messages of that size, without keys."""
    target, payloads = broker.make_topic("producer", TARGETS), scratch / "payloads"
    orders = itertools.islice(make_orders(messages), _PAYLOADS)
    payloads.write_bytes(b"\n".join(key + value for key, value in orders))
    words = ["--topic", target, "--num-records", str(messages), "--throughput", "-1"]
    words += ["--payload-file", str(payloads), "--producer-props"]
    words += [f"bootstrap.servers={broker.bootstrap}", *(f"{n}={v}" for n, v in PRODUCER.items())]
    with _watched(broker, target) as (usage, arrivals):
        command = _run_java("512m", "org.apache.kafka.tools.ProducerPerformance", *words)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Copy(target, usage, arrivals.first, numbered=False)


def _run_java(heap: str, *words: str) -> list[str]:
    classes = os.pathsep.join([name_tools(), *map(str, ensure_jars(_MIRROR))])
    return [str(find_java()), f"-Xmx{heap}", "-cp", classes, *words]
