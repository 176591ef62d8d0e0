"""Stops an injection before it fills the brokers' disks: a full broker stops for everybody.

What is put back takes space like any message; after an offload it may be as much as was freed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backlog.clock import Deadline
from backlog.errors import Paused
from backlog.kafka.log_dirs import LogDirs, read_log_dirs
from backlog.manifest import Manifest
from backlog.numbers import format_bytes
from spark_backfill.injection.brakes import InjectionProgress

# Our headers, a record's own bytes, indexes: beside key and value.
MESSAGE_BYTES = 300
_LOOK_EACH = 2.0
_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Room:
    """What an injection still adds on each broker at most, and what its next chunks do."""

    left: int
    next: int


def measure_room(manifest: Manifest, left: int, share: float) -> Room:
    """Uncompressed: an upper bound.

    Args:
        left: messages that are not sent yet.
        share: of all replicas, those that lie on one broker.
    """
    total = max(1, manifest.count)
    largest: dict[int, int] = {}
    for chunk in manifest.chunks:
        size = chunk.bytes + chunk.count * MESSAGE_BYTES
        largest[chunk.slot] = max(largest.get(chunk.slot, 0), size)
    whole = sum(chunk.bytes for chunk in manifest.chunks) + manifest.count * MESSAGE_BYTES
    rest = math.ceil(whole * left / total * share)
    return Room(rest, min(rest, math.ceil(sum(largest.values()) * share)))


class DiskBrake:
    """Raises Paused where the fullest broker has no space for the next chunks; where the brokers do
    not tell their space, it lets all pass."""

    def __init__(
        self,
        properties: Mapping[str, str],
        topic: str,
        manifest: Manifest,
        read: Callable[[Mapping[str, str], str, Deadline], LogDirs] = read_log_dirs,
    ) -> None:
        self._properties, self._topic, self._manifest, self._read = (
            properties,
            topic,
            manifest,
            read,
        )
        self._next_look = 0.0

    def look(self, progress: InjectionProgress) -> str:
        """Never waits.

        Raises:
            Paused: a broker's disks are too full.
        """
        if not progress.left or time.monotonic() < self._next_look:
            return ""
        found = self._read(self._properties, self._topic, Deadline(_ANSWER_SECONDS))
        self._next_look = time.monotonic() + _LOOK_EACH
        needed = measure_room(self._manifest, progress.left, found.replica_share).next
        for broker in found.brokers or ():
            if broker.usable_bytes is not None and broker.usable_bytes < needed:
                raise Paused(
                    f"stopped between two chunks: the disks of broker {broker.broker} have "
                    f"{format_bytes(broker.usable_bytes)} left, and the next chunks may take "
                    f"{format_bytes(needed)}",
                    subject=f"topic {self._topic}",
                    hint="make room: consumers that go on, a shorter retention; then run it "
                    "again, it goes on where it stopped",
                )
        return ""
