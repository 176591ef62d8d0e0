"""Whether the brokers' disks have space for a copy of the backlog and for what a hold keeps.

Figures only. They are estimates: partitions are taken to spread evenly over the brokers, and what
is needed is multiplied by a safety factor. What is not known is reported as unknown, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError
from backlogctl.formats import format_bytes
from backlogctl.kafka.admin import TopicInfo
from backlogctl.kafka.clients import Properties
from backlogctl.kafka.log_dirs import LogDirs
from backlogctl.values import DiskFloor, Sample

SAFETY = 1.2
TIERED = "remote.storage.enable"
LOCAL_MS, LOCAL_BYTES = "local.retention.ms", "local.retention.bytes"
NO_FLOOR = DiskFloor(0, "B")
_SHORTEST = 30.0  # seconds that samples must span to give a rate


@dataclass(frozen=True, slots=True)
class PartitionBacklog:
    """Unread messages of a partition, and the offsets `[low, high)` that its bytes hold."""

    partition: int
    lag: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class DiskCheck:
    """Bytes that each broker needs, and those that the fullest one has above the floor.

    `enough` is None where one of them is not known; `reason` says what was compared, or why not.
    """

    needed_bytes: int | None
    usable_bytes: int | None
    enough: bool | None
    reason: str


def estimate_copy(
    log_dirs: LogDirs,
    backlog: Iterable[PartitionBacklog],
    *,
    replication: int,
    factor: float = SAFETY,
    floor: DiskFloor = NO_FLOOR,
) -> DiskCheck:
    """What a copy of the unread messages needs on each broker.

    A partition's backlog is its share of the log, `lag / (high - low)`, of its bytes there.
    """
    needed = 0.0
    for part in backlog:
        share = measure_share(log_dirs, part)
        if share is None:
            reason = _explain(log_dirs, part.partition)
            return DiskCheck(None, _find_usable(log_dirs, floor), None, reason)
        needed += share
    return _compare(log_dirs, needed, replication, factor, floor)


def count_per_second(
    log_dirs: LogDirs, backlog: Iterable[PartitionBacklog], bytes_per_second: float | None
) -> float | None:
    """Messages a second, about, that are copied at this rate, if they are as large as the unread
    ones are in the log; None without a rate, or where their size is not known."""
    parts = list(backlog)
    sizes = [measure_share(log_dirs, part) for part in parts]
    known = [size for size in sizes if size is not None]
    count = sum(part.lag for part in parts)
    if bytes_per_second is None or len(known) < len(parts) or not any(known):
        return None
    return bytes_per_second * count / sum(known)


def measure_share(
    log_dirs: LogDirs, part: PartitionBacklog, *, is_local: bool = False
) -> float | None:
    """Bytes of one replica that these messages take, about; None where that is unknown.

    The bytes of an offset on the brokers' own disks stand for all.

    Args:
        is_local: only what of them lies on the brokers' own disks; of any but a tiered topic, all.
    """
    if part.lag <= 0 or part.high <= part.low:
        return 0.0
    size, start = log_dirs.partition_bytes(part.partition), _find_start(log_dirs, part)
    count = min(part.lag, part.high - part.low)
    if is_local and start is not None:
        count = max(0, part.low + count - start)
    if not count:
        return 0.0
    if size is None or start is None or start >= part.high:
        return None
    return size * (count / (part.high - start))


def _find_start(log_dirs: LogDirs, part: PartitionBacklog) -> int | None:
    """Where its bytes on the brokers' own disks begin."""
    if log_dirs.local_starts is None:
        return part.low
    start = log_dirs.local_starts.get(part.partition)
    return None if start is None else max(start, part.low)


def _explain(log_dirs: LogDirs, partition: int) -> str:
    if log_dirs.partition_bytes(partition) is None:
        return log_dirs.reason or f"no broker reports the size of partition {partition}"
    return (
        f"the topic is tiered, and what of partition {partition} lies on the brokers' own disks is "
        "not known"
    )


def find_local_part(
    log_dirs: LogDirs, properties: Properties, topic: TopicInfo, limit: Deadline
) -> LogDirs:
    """With where the part of a tiered topic begins that brokers tell the size of; that of any other
    topic is all of it."""
    if topic.config.get(TIERED) != "true":
        return log_dirs
    from backlogctl.kafka.bulk import read_local_starts  # numpy takes a while

    starts: Mapping[int, int] = {}
    with suppress(BacklogError):  # unknown
        starts = read_local_starts(properties, topic.name, limit)
    return replace(log_dirs, local_starts=starts)


@dataclass(frozen=True, slots=True)
class FreedEstimate:
    """Bytes of all replicas that a deletion frees, about; None is unknown, and `reason` says why.

    `kept` of `most` may stay.
    """

    most: int | None
    kept: int | None
    reason: str = ""


def estimate_freed(
    log_dirs: LogDirs,
    cuts: Iterable[PartitionBacklog],
    *,
    replication: int,
    segment_bytes: int | None,
    ended: Collection[int],
) -> FreedEstimate:
    """What brokers free where the offsets `[low, low + lag)` of each partition are deleted.

    Whole segments only: the one in which a cut lies stays, and is at most `segment_bytes` large.
    Of a tiered topic only what lies on the brokers' own disks.

    Args:
        segment_bytes: the topic's `segment.bytes`; None where it is unknown.
        ended: partitions whose cut is at the end of a segment.
    """
    most = kept = 0.0
    for cut in cuts:
        share = measure_share(log_dirs, cut, is_local=True)
        if share is None:
            return FreedEstimate(None, None, _explain(log_dirs, cut.partition))
        most += share
        if cut.partition not in ended:
            kept += share if segment_bytes is None else min(share, segment_bytes)
    return FreedEstimate(round(most * replication), round(kept * replication))


class FreedTally:
    """What brokers have freed of a topic, at least: by how much replicas got smaller between two
    looks. What producers add takes nothing off it."""

    def __init__(self, before: Mapping[tuple[int, int], int]) -> None:
        """Args: `before` are bytes by broker and partition."""
        self._last = dict(before)
        self._grew = set[tuple[int, int]]()
        self._freed = dict.fromkeys(before, 0)

    def note(self, now: Mapping[tuple[int, int], int]) -> None:
        """A later look; replicas that it does not see have not got smaller."""
        for replica in self._last.keys() & now.keys():
            if now[replica] > self._last[replica]:
                self._grew.add(replica)
            self._freed[replica] += max(0, self._last[replica] - now[replica])
            self._last[replica] = now[replica]

    @property
    def freed(self) -> int:
        """Bytes of all replicas."""
        return sum(self._freed.values())

    @property
    def is_hidden(self) -> bool:
        """Whether what was freed may be less than what was added between two looks."""
        return not self.freed and bool(self._grew)

    @property
    def is_everywhere(self) -> bool:
        """Whether each replica got smaller: a broker deletes all that it may of one at once."""
        return all(self._freed.values())


def estimate_hold(
    log_dirs: LogDirs,
    bytes_per_second: float | None,
    duration: timedelta,
    *,
    replication: int,
    factor: float = SAFETY,
    floor: DiskFloor = NO_FLOOR,
    config: Mapping[str, str] | None = None,
) -> DiskCheck:
    """What a topic grows by on each broker while nothing of it is deleted.

    Args:
        config: the topic's settings: of a tiered one brokers move on what is beyond their local
            retention, also while the retention of all of it is raised.
    """
    if bytes_per_second is None:
        reason = log_dirs.reason or "how fast the topic grows is not known yet"
        return DiskCheck(None, _find_usable(log_dirs, floor), None, reason)
    grown = bytes_per_second * duration.total_seconds()
    if log_dirs.local_starts is not None:
        time, size = (int((config or {}).get(name, "-2")) for name in (LOCAL_MS, LOCAL_BYTES))
        if time >= 0:  # -2 is as long as all of it
            grown = min(grown, bytes_per_second * time / 1000)
        if size >= 0:
            grown = min(grown, size * len(log_dirs.local_starts))
    return _compare(log_dirs, grown, replication, factor, floor)


def combine_checks(*checks: DiskCheck) -> DiskCheck:
    """Several needs on the same disks."""
    reasons = "; ".join(dict.fromkeys(check.reason for check in checks if check.enough is None))
    usable = next((c.usable_bytes for c in checks if c.usable_bytes is not None), None)
    known = [check.needed_bytes for check in checks if check.needed_bytes is not None]
    needed = sum(known)
    if usable is not None and needed > usable:  # whatever the unknown ones need besides
        return DiskCheck(needed, usable, False, _describe(needed, usable))
    if reasons or usable is None:
        whole = needed if len(known) == len(checks) else None
        return DiskCheck(whole, usable, None, reasons or "the free disk space is not known")
    return DiskCheck(needed, usable, True, _describe(needed, usable))


def measure_growth(log_dirs: LogDirs, samples: Sequence[Sample]) -> float | None:
    """Bytes a second that producers add to one replica of the topic; None where not known.

    Messages a second between the oldest and the newest sample, times the bytes of one as it lies
    on the disk.
    """
    if len(samples) < 2 or samples[0].topic_id != samples[-1].topic_id:
        return None
    seconds = (samples[-1].taken_at - samples[0].taken_at).total_seconds()
    if seconds < _SHORTEST:
        return None
    before = {part.partition: part.high for part in samples[0].partitions}
    total = 0.0
    for part in samples[-1].partitions:
        grown = max(0, part.high - before.get(part.partition, 0))
        if not grown:
            continue
        held = PartitionBacklog(part.partition, part.high - part.low, part.low, part.high)
        size = measure_share(log_dirs, held)
        if size is None or part.high <= part.low:
            return None
        total += grown * size / (part.high - part.low)
    return total / seconds


def _compare(
    log_dirs: LogDirs, bytes_once: float, replication: int, factor: float, floor: DiskFloor
) -> DiskCheck:
    usable = _find_usable(log_dirs, floor)
    if log_dirs.brokers is None:
        return DiskCheck(None, None, None, log_dirs.reason)
    # A replica is on one broker: more brokers than replicas share them.
    share = min(1.0, replication / (len(log_dirs.brokers) + len(log_dirs.silent)))
    needed = math.ceil(bytes_once * share * factor)
    if usable is None:
        reason = "the brokers do not report their free disk space (Kafka before 3.3)"
        return DiskCheck(needed, None, None, reason)
    enough = needed <= usable
    if log_dirs.silent and enough:
        return DiskCheck(needed, usable, None, log_dirs.reason)
    return DiskCheck(needed, usable, enough, _describe(needed, usable))


def _find_usable(log_dirs: LogDirs, floor: DiskFloor) -> int | None:
    """Above the floor, of the broker that has the least, of those that told."""
    free = [
        broker.usable_bytes - floor.count_bytes(broker.total_bytes)
        for broker in log_dirs.brokers or ()
        if broker.usable_bytes is not None and broker.total_bytes is not None
    ]
    return max(0, min(free)) if free and len(free) == len(log_dirs.brokers or ()) else None


def _describe(needed: int, usable: int) -> str:
    return (
        f"each broker needs about {format_bytes(needed)}, and the fullest one has "
        f"{format_bytes(usable)} left"
    )
