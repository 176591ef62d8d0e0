"""What an offload's plan is computed from: what is unread, the brokers' disks, who else reads."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Config, Stream
from backlogctl.errors import Refused
from backlogctl.fanout.disk import SAFETY, PartitionBacklog, measure_share
from backlogctl.formats import format_bytes, format_plural
from backlogctl.kafka.admin import TopicInfo, describe_group_state
from backlogctl.kafka.groups import GroupState
from backlogctl.kafka.log_dirs import BrokerLogDirs, LogDirs, read_log_dirs
from backlogctl.kafka.readers import TopicReaders
from backlogctl.monitoring.watch.disks import WINDOW, Forecast, forecast_full, make_readings
from backlogctl.replay.engine.guards import refuse_beyond_end, refuse_missing_group
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.kinds.offload.plan import ALLOW_OTHERS, ALLOW_UNKNOWN, CutGroup, PlannedPlace
from backlogctl.replay.observe.snapshot import Draft, StreamSnapshot
from backlogctl.replay.observe.stream import list_other_topics
from backlogctl.values import PartitionSample, Sample
from backlogctl_delivery.visible import quote_word

_ARCHIVES = "archives"
# Each of a broker's log directories has this file.
_BROKERS_FILE = "meta.properties"
_SAME_DISK = 1 << 20


def name_place(config: Config, recovery_id: str) -> str:
    """The archive's folder or URL, each recovery's own."""
    base = config.staging.archive or str(config.staging.dir / _ARCHIVES)
    return f"{base.rstrip('/')}/{recovery_id}"


def find_path(location: str) -> Path | None:
    """The folder of a location on this machine's file systems; None in an object store."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    return Path(parts.path if parts.scheme else location).absolute()


def look_at_place(location: str, unread_bytes: int | None, log_dirs: LogDirs) -> PlannedPlace:
    """What is known of it now; changes nothing."""
    needed = None if unread_bytes is None else round(unread_bytes * SAFETY)
    path = find_path(location)
    if path is None:
        return PlannedPlace(
            location=location,
            needed=needed,
            free=None,
            enough=True,
            on_broker=False,
            told="an object store: its room is not measured",
        )
    there = _find_existing(path)
    free = shutil.disk_usage(there).free
    broker, unseen = _find_broker(there, log_dirs)
    told = f"{format_bytes(free)} are free, "
    if needed is None:
        told += f"and what is needed is not known: {log_dirs.reason or 'sizes are not told'}"
    else:
        told += f"and at most about {format_bytes(needed)} are needed"
    if broker is not None:
        told += f"; it is on the disk of broker {broker}: it would fill what it is to free"
    elif unseen:
        told += f"; whether it is on a broker's own disk is not known: {unseen}"
    return PlannedPlace(
        location=location,
        needed=needed,
        free=free,
        enough=None if needed is None else needed <= free,
        on_broker=True if broker is not None else (None if unseen else False),
        told=told,
    )


def describe_place_problem(place: PlannedPlace) -> str:
    """Why an archive should not go there; "" where nothing speaks against it."""
    if place.on_broker or place.enough is None:
        return place.told
    return "" if place.enough else f"there is not enough room: {place.told}"


def _find_existing(path: Path) -> Path:
    """The folder itself, or the nearest one above that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _is_another(directory: str, broker: BrokerLogDirs) -> bool:
    """Whether the folder that we see is on another disk than the one that the broker sees there: it
    runs in a container, or mounts its own."""
    if broker.total_bytes is None or len(broker.directories) > 1:
        return False
    return abs(shutil.disk_usage(directory).total - broker.total_bytes) > _SAME_DISK


def _find_broker(there: Path, log_dirs: LogDirs) -> tuple[int | None, str]:
    """The broker whose disk it is; else why that is not known, "" where it is none's."""
    if log_dirs.brokers is None:
        return None, log_dirs.reason
    seen = False
    for broker in log_dirs.brokers:
        for directory in broker.directories:
            try:
                if not (Path(directory) / _BROKERS_FILE).is_file():
                    continue
                if _is_another(directory, broker):
                    continue
                seen = True
                if Path(directory).stat().st_dev == there.stat().st_dev:
                    return broker.broker, ""
            except OSError:
                continue
    return None, "" if seen else "the brokers' folders are not on this machine"


# Which other groups a deletion would cut: DeleteRecords deletes for every group.


def find_cut_groups(
    readers: TopicReaders, group: str, lows: Mapping[int, int], fence: Mapping[int, int]
) -> tuple[CutGroup, ...]:
    """The other groups that have not read all below the fence, and what each would lose.

    Where a group has no commit it may read from the log's start: `auto.offset.reset` is its own.
    Of a share group at most what it has not acknowledged: its start may lag behind that.
    """
    found = []
    for name, commits in readers.known.items():
        stands = {n: max(commits.get(n, 0), lows.get(n, 0)) for n in fence}
        below = {n: fence[n] - at for n, at in stands.items() if at < fence[n]}
        most = readers.unacknowledged.get(name, {})
        lost = {n: left for n, many in below.items() if (left := min(many, most.get(n, many)))}
        if name != group and lost:
            found.append(CutGroup(group=name, messages=sum(lost.values()), partitions=lost))
    return tuple(found)


def warn_about_shares(readers: TopicReaders) -> list[str]:
    """Where share groups cannot be asked for, what they lose is not known, and not nothing."""
    if not readers.shares_unknown:
        return []
    return [f"whether share groups lose unread messages is unknown: {readers.shares_unknown}"]


def refuse_cutting(
    cut: Sequence[CutGroup], allowed: frozenset[str], unknown: str, *, topic: str, hint: str
) -> None:
    """Each group that would lose something is allowed by its own name.

    Args:
        unknown: why there may be more groups; "" where those are all, or that is allowed.

    Raises:
        Refused: names the groups, and what they lose.
    """
    missing = [item for item in cut if item.group not in allowed]
    if missing:
        told = ", ".join(
            f"{item.group} (at most {format_plural(item.messages, 'message')})" for item in missing
        )
        words = " ".join(f"--allow {quote_word(f'{ALLOW_OTHERS}:{m.group}')}" for m in missing)
        raise Refused(
            f"other groups have not read what would be deleted: {told}",
            subject=f"topic {topic}",
            hint=f"let them read on first; {hint.format(words=words)}",
        )
    if unknown:
        words = f"--allow {ALLOW_UNKNOWN}"
        raise Refused(
            f"whether other groups have read what would be deleted is unknown: the tool {unknown}",
            subject=f"topic {topic}",
            hint=f"grant that; {hint.format(words=words)}",
        )


# What an offload's plan is computed from: what is unread, the brokers' disks, who else reads.

# Between two readings of the disks: enough to see one fill that is filling fast.
READINGS_APART = 3.0
_DISK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class OffloadRange:
    """Offsets `[start, end)` of a partition that the group has not read; `end` is the LSO."""

    sample: PartitionSample
    committed: int
    start: int
    end: int
    bytes: int | None

    @property
    def count(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class OffloadBacklog:
    """What is unread, the brokers' disks, and who reads, as they are now."""

    snapshot: StreamSnapshot
    group: GroupState
    other_topics: tuple[str, ...]  # that the group reads too
    partitions: tuple[OffloadRange, ...]
    log_dirs: LogDirs
    forecast: Forecast

    @property
    def unread(self) -> int:
        """Unread offsets, all partitions together."""
        return sum(part.count for part in self.partitions)

    @property
    def bytes(self) -> int | None:
        """Those of one replica of what is unread; None where that of a partition is unknown."""
        known = [part.bytes for part in self.partitions]
        return None if None in known else sum(size for size in known if size is not None)

    @property
    def fence(self) -> Mapping[int, int]:
        return {part.sample.partition: part.end for part in self.partitions}


def inspect_backlog(draft: Draft, snapshot: StreamSnapshot) -> OffloadBacklog:
    """What is unread, and the brokers' disks; keeps readings of these.

    Raises:
        Refused: the topic cannot be cut, the group's commits do not fit, or nothing is unread.
    """
    stream, sample, limit = draft.stream, snapshot.sample, Deadline(60.0)
    refuse_undeletable(snapshot.topic)
    refuse_missing_group(stream, sample, snapshot.gaps)
    refuse_beyond_end(sample)
    _refuse_uncommitted(sample)
    group = describe_group_state(draft.properties, stream.group, limit)
    others = list_other_topics(draft.properties, stream, limit)
    draft.say("reading the brokers' disks")
    log_dirs, forecast = look_at_disks(draft.workspace, stream)
    partitions = tuple(_place(part, log_dirs) for part in sample.partitions)
    if not any(part.count for part in partitions):
        raise Refused(
            "nothing is unread, so there is nothing to offload",
            subject=f"stream {stream.name}",
            hint=f"see `backlogctl status {stream.name}`",
        )
    return OffloadBacklog(snapshot, group, others, partitions, log_dirs, forecast)


def look_at_disks(
    workspace: Workspace, stream: Stream, *, apart: float | None = None
) -> tuple[LogDirs, Forecast]:
    """The disks now, and when they are full; two readings, and those of the last minutes.

    Args:
        apart: seconds between the two; 0 for only one.
    """
    wait = READINGS_APART if apart is None else apart
    log_dirs = read_disks(workspace, stream)
    if log_dirs.brokers is None:
        return log_dirs, Forecast(None, None, log_dirs.reason, is_known=False)
    if wait:
        time.sleep(wait)
        log_dirs = read_disks(workspace, stream)
    now = utc_now()
    history = workspace.ledger.disks.history(stream.cluster, now - WINDOW)
    return log_dirs, forecast_full(history, now)


def read_disks(workspace: Workspace, stream: Stream) -> LogDirs:
    """The disks now; what was read is kept."""
    found = read_log_dirs(workspace.properties(stream), stream.topic, Deadline(_DISK_SECONDS))
    workspace.ledger.disks.add(make_readings(stream.cluster, found, stream.topic))
    return found


def refuse_undeletable(topic: TopicInfo) -> None:
    """Refuses a topic whose records are never deleted: brokers answer PolicyViolation."""
    policy = topic.config.get("cleanup.policy", "delete")
    if "delete" not in policy:
        raise Refused(
            f"its records cannot be deleted: its cleanup.policy is {policy}, without `delete`",
            subject=f"topic {topic.name}",
            hint="compaction keeps the newest message of each key; an offload is for topics that "
            "expire",
        )


def _refuse_uncommitted(sample: Sample) -> None:
    """Refuses partitions without a commit: where the group is in them is unknown (fault 21)."""
    missing = [part.partition for part in sample.partitions if part.committed is None]
    if missing:
        places = ",".join(map(str, missing))
        raise Refused(
            "it has no committed offset on partitions "
            f"{', '.join(map(str, missing))}: what it has not read there is unknown",
            subject=f"group {sample.group} on topic {sample.topic}",
            hint="set one while its consumers are stopped, such as `kafka-consumer-groups.sh "
            f"--bootstrap-server HOST:PORT --group {quote_word(sample.group)} --topic "
            f"{sample.topic}:{places} --reset-offsets --to-earliest --execute`, and plan again",
        )


def _place(part: PartitionSample, log_dirs: LogDirs) -> OffloadRange:
    assert part.committed is not None
    start = max(part.committed, part.low)
    count = max(0, part.lso - start)
    share = measure_share(log_dirs, PartitionBacklog(part.partition, count, part.low, part.high))
    size = None if share is None else round(share)
    return OffloadRange(part, part.committed, start, part.lso, size)
