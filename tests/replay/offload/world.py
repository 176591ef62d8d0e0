"""A topic with a backlog whose consumers are slow, and the offloads of it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as parquet

from backlogctl.fanout.launchers import Role
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.clients import make_producer
from backlogctl.replay.kinds.offload import context, steps
from backlogctl.replay.kinds.offload.plan import ALLOW_DISK, OffloadOptions
from backlogctl.replay.kinds.offload.planning import plan_offload
from backlogctl.replay.observe.stream import note_stream
from backlogctl.values import Recovery
from tests.kit.kafka import read_all, wait_until
from tests.replay.expand.oracle import read_log
from tests.replay.expand.world import KEYS, PARTITIONS, WITHIN, World

# Small segments, by the messages' own times: a deletion frees whole ones.
SEGMENTS = {"segment.ms": "10000", "retention.ms": "-1"}
_APART_MS, _AGO_MS = 100, 600_000


@dataclass
class OffloadWorld(World):
    """The world of expansions, offloaded."""

    shortened: str = "offload"
    archives: str = ""
    read_before: tuple[tuple[int, int, str, int], ...] = ()  # by a group that was set there
    begun_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    def write_config(self) -> None:
        """With the archive's place, and a small Spark."""
        super().write_config()
        path = self.directory / "backlog.yaml"
        document = json.loads(path.read_text())
        document["staging"]["archive"] = self.archives or str(self.directory / "archives")
        document["spark"] = {"master": "local[2]"}
        path.write_text(json.dumps(document, indent=1))

    def publish(self, count: int, **settings: Any) -> None:
        """The next messages of each key, written a little apart some minutes ago."""
        producer = make_producer(self.properties, {"partitioner": "murmur2_random"}, **settings)
        for _ in range(count):
            number = self.produced.total()
            key = f"k{number % KEYS}"
            at = self.begun_ms - _AGO_MS + number * _APART_MS
            producer.produce(self.topic, str(self.produced[key]), key, timestamp=at)
            self.produced[key] += 1
            producer.poll(0)
            if not number % 50:
                producer.flush(90)  # a batch is in one segment
        assert producer.flush(90) == 0

    def change_config(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Changes the whole file."""
        path = self.directory / "backlog.yaml"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    def plan(self, rate: float = 0.0, **options: Any) -> Recovery:
        """Plans an offload; the archive lies beside the broker's log, as all does on this machine."""
        del rate
        workspace = self.open()
        stream = workspace.config.stream(self.stream)
        options["allow"] = (ALLOW_DISK, *options.get("allow", ()))
        return plan_offload(workspace, stream, OffloadOptions(**options))

    @property
    def reaching(self) -> Iterable[ModuleType]:
        """Where an offload reaches points of its protocol."""
        return (steps, context)

    # What is where.

    def read_topic(self) -> list[tuple[int, int, str, int]]:
        """The same of what is left in the topic."""
        return sorted(
            (m.partition() or 0, m.offset() or 0, (m.key() or b"").decode(), int(m.value() or 0))
            for m in read_all(self.properties, self.topic, range(PARTITIONS))
        )

    def read_lows(self) -> dict[int, int]:
        return verbs.list_offsets(self.properties, self.topic, range(PARTITIONS), "earliest")

    def read_commits(self) -> dict[int, int | None]:
        return verbs.committed_offsets(self.properties, self.group, self.topic, range(PARTITIONS))


def find_place(recovery: Recovery) -> Path:
    """The archive's folder."""
    return Path(recovery.plan["place"]["location"])


def read_archive(recovery: Recovery) -> list[tuple[int, int, str, int]]:
    """(partition, offset, key, sequence) of each message of the manifest's files."""
    place, found = find_place(recovery), []
    manifest = json.loads((place / "manifest.json").read_text())
    for file in manifest["files"]:
        rows = parquet.ParquetFile(place / file["path"]).read().to_pylist()
        found += [
            (file["partition"], row["offset"], row["key"].decode(), int(row["value"]))
            for row in rows
        ]
    return sorted(found)


def judge_offload(
    world: OffloadWorld, recovery: Recovery, *, state: str = "verified", processes: bool = True
) -> list[str]:
    """What must hold after an offload, whatever happened during it; sentences, empty where it does.

    Args:
        processes: none of the recovery's is left.
    """
    problems = []
    if (now := world.read(recovery)).state != state:
        problems.append(f"it is {now.state}: {dict(now.detail)}")
    archived = read_archive(recovery)
    places = Counter(row[:2] for row in archived)
    if doubled := [place for place, count in places.items() if count > 1]:
        problems.append(f"{len(doubled)} offsets are in the archive twice: {min(doubled)}")
    world.set_speed(Role.ORIGINAL, None)
    problems += _judge_messages(world, archived)
    recorded = world.open().ledger.archives.get(recovery.id)
    if recorded.messages != len(archived):
        problems.append(f"{recorded.messages} messages are recorded, {len(archived)} are there")
    fence = find_fence(world, recovery)
    lows, commits = world.read_lows(), world.read_commits()
    for number, at in fence.items():
        if lows[number] != at:
            problems.append(f"partition {number} starts at {lows[number]}, the fence is {at}")
        if (commits[number] or 0) < at:
            problems.append(f"the group is at {commits[number]} of {number}, the fence is {at}")
    if processes and (left := world.list_processes(without=(Role.ORIGINAL,))):
        problems.append(f"processes are left: {left}")
    if not world.find_members():
        problems.append("nobody is in the group")
    workspace = world.open()
    for _ in range(2):  # what a watcher sees now
        note_stream(workspace, workspace.config.stream(world.stream))
    return [*problems, *judge_gaps(world, recovery, archived)]


def _judge_messages(
    world: OffloadWorld, archived: Iterable[tuple[int, int, str, int]]
) -> list[str]:
    """Nothing is in none of archive, topic and what consumers handled; nothing is in both of
    archive and topic."""
    kept = {(key, number) for _, _, key, number in archived}
    there = {(key, number) for _, _, key, number in world.read_topic()}
    handled = {(line.key, line.sequence) for line in read_log(world)}
    wanted = {(key, n) for key, count in world.produced.items() for n in range(count)}
    problems = []
    read_before = {row[2:] for row in world.read_before}
    if lost := wanted - kept - there - handled - read_before:
        problems.append(f"{len(lost)} of {len(wanted)} messages are nowhere: {min(lost)}")
    if both := kept & there:
        problems.append(f"{len(both)} messages are in the archive and in the topic: {min(both)}")
    if again := kept & handled:
        problems.append(f"{len(again)} archived messages were handled: {min(again)}")
    return problems


def judge_gaps(
    world: OffloadWorld, recovery: Recovery, archived: Iterable[tuple[int, int, str, int]]
) -> list[str]:
    """Each archived message is in one gap, which waits in the archive; and no other gap is there."""
    gaps = world.open().ledger.gaps.list(world.stream)
    waiting = world.open().ledger.gaps.list_waiting(world.stream)
    problems = [
        f"gap {gap.id} is {gap.state}, {gap.cause}, of archive {gap.archive}"
        for gap in gaps
        if gap.archive != recovery.id and str(gap.state) != "waived"
    ]
    for partition, offset, *_ in archived:
        own = [
            gap
            for gap in waiting
            if gap.partition == partition and (gap.start or 0) <= offset < (gap.end or 0)
        ]
        if len(own) != 1:
            problems.append(f"{partition}:{offset} is in {len(own)} gaps that wait")
            break
    return problems


def find_fence(world: OffloadWorld, recovery: Recovery) -> dict[int, int]:
    """As it is on record."""
    for event in world.open().ledger.events.list(recovery.id):
        if event.action == "the fence is set":
            return {int(number): at for number, at in event.detail["fence"].items()}
    return {}


def await_fresh(world: OffloadWorld, count: int) -> None:
    """The consumers read what is written now."""
    before = Counter(world.produced)
    world.publish(count)
    wanted = {(key, n) for key, many in world.produced.items() for n in range(before[key], many)}
    world.set_speed(Role.ORIGINAL, None)
    wait_until(
        lambda: wanted <= {(line.key, line.sequence) for line in read_log(world)},
        WITHIN,
        "the consumers handle what is fresh",
    )
