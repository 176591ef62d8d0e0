"""What an offload's plan is computed from: what is unread, the brokers' disks, who else reads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from backlog.clock import Deadline, utc_now
from backlog.config import Stream
from backlog.errors import Refused
from backlog.kafka.admin import TopicInfo, describe_group_state, describe_topic, list_topic_readers
from backlog.kafka.groups import GroupState
from backlog.kafka.log_dirs import LogDirs, read_log_dirs
from backlog.kafka.readers import TopicReaders
from backlog.values import PartitionSample, Sample
from backlogctl_delivery.visible import quote_word
from fanout.disk import PartitionBacklog, measure_share
from monitoring.disks import WINDOW, Forecast, forecast_full, make_readings
from replay.around.observation import list_group_topics, look_at_stream
from replay.kinds.offload.cutting import warn_about_shares
from replay.recovery.guards import refuse_beyond_end, refuse_changed, refuse_missing_group
from replay.recovery.kind import Say
from replay.recovery.workspace import Workspace

# Between two readings of the disks: enough to see one fill that is filling fast.
READINGS_APART = 3.0
_DISK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Unread:
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
class Seen:
    """A stream and its brokers as they are now."""

    topic: TopicInfo
    sample: Sample
    group: GroupState
    readers: TopicReaders
    other_topics: tuple[str, ...]  # that the group reads too
    partitions: tuple[Unread, ...]
    log_dirs: LogDirs
    forecast: Forecast
    lost: int | None
    warnings: tuple[str, ...]

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
    def lows(self) -> Mapping[int, int]:
        return {part.sample.partition: part.sample.low for part in self.partitions}

    @property
    def ends(self) -> Mapping[int, int]:
        return {part.sample.partition: part.end for part in self.partitions}


def look(workspace: Workspace, stream: Stream, say: Say) -> Seen:
    """Looks at the stream now; samples it, records gaps, and keeps readings of the disks.

    Raises:
        Refused: the topic cannot be cut, the group's commits do not fit, or nothing is unread.
        PlanStale: the topic was made anew meanwhile.
    """
    limit = Deadline(60.0)
    properties = workspace.properties(stream)
    say("looking at the topic")
    topic = describe_topic(properties, stream.topic, limit)
    refuse_undeletable(topic)
    observed, status = look_at_stream(workspace, stream, limit)
    sample = observed.sample
    refuse_changed(topic, sample)
    refuse_missing_group(workspace, stream, sample)
    refuse_beyond_end(sample)
    _refuse_uncommitted(sample)
    readers = list_topic_readers(properties, stream.topic, limit)
    topics = [n for n in list_group_topics(properties, stream.group, limit) if n != stream.topic]
    group = describe_group_state(properties, stream.group, limit)
    say("reading the brokers' disks")
    log_dirs, forecast = look_at_disks(workspace, stream)
    partitions = tuple(_place(part, log_dirs) for part in sample.partitions)
    if not any(part.count for part in partitions):
        raise Refused(
            "nothing is unread, so there is nothing to offload",
            subject=f"stream {stream.name}",
            hint=f"see `backlogctl status {stream.name}`",
        )
    return Seen(
        topic=topic,
        sample=sample,
        group=group,
        readers=readers,
        other_topics=tuple(topics),
        partitions=partitions,
        log_dirs=log_dirs,
        forecast=forecast,
        lost=status["lost"],
        warnings=(*status["warnings"], *warn_about_shares(readers)),
    )


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


def _place(part: PartitionSample, log_dirs: LogDirs) -> Unread:
    assert part.committed is not None
    start = max(part.committed, part.low)
    count = max(0, part.lso - start)
    share = measure_share(log_dirs, PartitionBacklog(part.partition, count, part.low, part.high))
    size = None if share is None else round(share)
    return Unread(part, part.committed, start, part.lso, size)
