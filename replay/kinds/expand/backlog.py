"""What an expansion's plan is computed from: topic, group, backlog, speed and time left."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.config import Stream
from backlogctl.errors import Refused, UsageError
from backlogctl.fanout.keys import Skew, measure_key_skew, sample_keys
from backlogctl.fanout.retention import TimeToLoss, UnreadRange, find_time_to_loss
from backlogctl.formats import format_plural
from backlogctl.kafka.admin import TopicInfo, describe_group_state, read_group_state
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.groups import GroupState
from backlogctl.kafka.log_dirs import LogDirs, read_log_dirs
from backlogctl.kafka.peek import Peeked, peek_at
from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets.history import estimate_time
from backlogctl.monitoring.offsets.lag import (
    RATE_WINDOW,
    find_partition_end,
    read_retention,
    read_size_limit,
)
from backlogctl.monitoring.verdict.judge import Pace, measure_pace
from backlogctl.replay.engine.guards import refuse_beyond_end
from backlogctl.replay.kinds.expand.plan import NAME
from backlogctl.replay.observe.snapshot import Draft, StreamSnapshot
from backlogctl.replay.observe.stream import list_other_topics, note_stream, read_history
from backlogctl.values import PartitionSample, Sample

_PEEKED = 20  # messages a partition: enough to see where keys lie
_SAMPLED = 40  # in each of several places of a partition


@dataclass(frozen=True, slots=True)
class Behind:
    """One partition: where the group is, and where the relay begins (`unread.start`)."""

    unread: UnreadRange
    committed: int | None
    lost: int | None
    lag: int


@dataclass(frozen=True, slots=True)
class StreamBacklog:
    """What is behind, how fast it is read, and when retention reaches it, as it is now."""

    snapshot: StreamSnapshot
    group: GroupState
    other_topics: tuple[str, ...]  # that the group reads too
    partitions: tuple[Behind, ...]
    pace: Pace
    loss: TimeToLoss
    peeked: Mapping[int, tuple[Peeked, ...]]
    skew: Skew
    log_dirs: LogDirs
    recent: tuple[Sample, ...]  # the samples that rates are taken over

    @property
    def topic(self) -> TopicInfo:
        return self.snapshot.topic

    @property
    def lost(self) -> int | None:
        """Messages that expired unread, at most."""
        lost: int | None = self.snapshot.status["lost"]
        return lost

    @property
    def lag(self) -> int:
        """Unread messages, at most; all partitions together."""
        return sum(part.lag for part in self.partitions)


def inspect_backlog(draft: Draft, snapshot: StreamSnapshot, start_at: str) -> StreamBacklog:
    """What is behind; a look at keys, disks and the oldest unread messages.

    Raises:
        Refused: nothing is behind, or a commit lies beyond the end.
    """
    stream, properties, sample = draft.stream, draft.properties, snapshot.sample
    refuse_beyond_end(sample)
    limit = Deadline(60.0)
    group = describe_group_state(properties, stream.group, limit)
    others = list_other_topics(properties, stream, limit)
    history = leave_out_relayed(draft.workspace.ledger, stream, snapshot.history)
    pace = measure_pace(history, group.is_active)
    rows = {row["partition"]: row for row in snapshot.status["partitions"]}
    behind = [
        _place(part, rows[part.partition], stream.isolation, start_at, pace)
        for part in sample.partitions
    ]
    if not any(part.lag for part in behind):
        raise Refused(
            "nothing is behind, so there is nothing to drain",
            subject=f"stream {stream.name}",
            hint=f"see `backlogctl status {stream.name}`",
        )
    draft.say("reading the oldest unread messages")
    starts = {part.unread.partition: part.unread.start for part in behind if part.lag}
    peeked = peek_at(properties, stream.topic, starts, _PEEKED, Deadline(20.0))
    dated = tuple(_date(part, peeked, snapshot.history, sample.topic_id) for part in behind)
    log_dirs = read_log_dirs(properties, stream.topic, Deadline(10.0))
    return StreamBacklog(
        snapshot=snapshot,
        group=group,
        other_topics=others,
        partitions=dated,
        pace=pace,
        loss=_find_loss(dated, snapshot.topic, log_dirs, sample.taken_at),
        peeked=peeked,
        skew=_measure_skew(properties, stream.topic, behind),
        log_dirs=log_dirs,
        recent=tuple(s for s in history if sample.taken_at - s.taken_at <= RATE_WINDOW),
    )


def _measure_skew(properties: Mapping[str, str], topic: str, parts: list[Behind]) -> Skew:
    admin = make_admin(properties)  # kept, so that it connects once
    unread = {
        part.unread.partition: (part.unread.start, part.unread.end) for part in parts if part.lag
    }

    def peek(starts: Mapping[int, int], limit: Deadline) -> Mapping[int, tuple[Peeked, ...]]:
        return peek_at(admin, topic, starts, _SAMPLED, limit)

    lag = {part.unread.partition: part.lag for part in parts}
    return measure_key_skew(sample_keys(peek, unread), lag)


def leave_out_relayed(
    ledger: Ledger, stream: Stream, history: Iterable[Sample]
) -> tuple[Sample, ...]:
    """The samples since the last expansion: the commits of its relays are no consumption."""
    ends = [
        step.last_started_at
        for recovery in ledger.recoveries.list(stream.name)
        if recovery.kind == NAME
        for step in ledger.steps.list(recovery.id)
    ]
    return tuple(s for s in history if not ends or s.taken_at > max(ends))


def find_rate(backlog: StreamBacklog, stream: Stream, given: float | None) -> tuple[float, str]:
    """Messages a second of one consumer, and where that comes from.

    Raises:
        UsageError: it was not given, and the samples do not show it.
    """
    if given is not None:
        return given, "given"
    assert stream.consumers is not None
    pace = backlog.pace
    if not pace.consumed:
        raise UsageError(
            f"how fast one consumer is, is not known: {_describe_silence(backlog)}",
            subject=f"stream {stream.name}",
            hint="first repair the consumer, and know its speed; then plan with `--rate N`, the "
            "messages one consumer handles in a second",
        )
    running = len(backlog.group.members) or stream.consumers.replicas
    each = pace.consumed / min(running, backlog.topic.partitions)
    return each, f"measured over {_format_window(pace.seconds)} from samples"


def _describe_silence(backlog: StreamBacklog) -> str:
    members = len(backlog.group.members)
    if not members:
        return "the group has no members, and the samples of the last minutes show no consumption"
    seen = f" in {_format_window(backlog.pace.seconds)}" if backlog.pace.seconds else ""
    return f"it has {format_plural(members, 'member')}, which committed nothing{seen}"


def _find_loss(
    partitions: Iterable[Behind],
    topic: TopicInfo,
    log_dirs: LogDirs,
    now: datetime,
) -> TimeToLoss:
    """The earliest loss: by the messages' own times, by when the samples saw them, or by size."""
    unread = [
        replace(part.unread, bytes=log_dirs.partition_bytes(part.unread.partition))
        for part in partitions
        if part.lag
    ]
    limit = read_size_limit(topic.config)
    return find_time_to_loss(unread, read_retention(topic.config), limit, now)


def _format_window(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _place(
    part: PartitionSample, row: Mapping[str, Any], isolation: str, start_at: str, pace: Pace
) -> Behind:
    end = find_partition_end(part, isolation)
    if part.committed is not None:
        start, lag = max(part.committed, part.low), row["lag"]
    else:
        start = max(end, part.low) if start_at == "latest" else part.low
        lag = max(0, end - start)
    unread = UnreadRange(
        partition=part.partition,
        log_start=part.low,
        start=start,
        end=end,
        high=part.high,
        produced_per_second=pace.produced.get(part.partition),
    )
    return Behind(unread, part.committed, row["lost"], lag)


def _date(
    part: Behind,
    peeked: Mapping[int, tuple[Peeked, ...]],
    history: tuple[Sample, ...],
    topic_id: str,
) -> Behind:
    if not part.lag:
        return part
    number = part.unread.partition
    first = next(iter(peeked.get(number, ())), None)
    # Retention goes by the message's own time; without one, by when the samples saw it.
    at = first.at if first is not None else None
    if at is None:
        at = estimate_time(history, number, part.unread.start, topic_id)
    return replace(part, unread=replace(part.unread, oldest_at=at))


# How fast consumers are that nobody has watched yet: a plan looks for itself, for a while.

# Consumers commit every 5 s by themselves: three of those tell a speed.
ENOUGH_SECONDS = 15.0
LONGEST_SECONDS = 25.0
_LOOK_EACH = 2.5


def watch_pace(draft: Draft) -> None:
    """Samples a stream until its samples tell how fast its consumers are, 25 s at most.

    Where the group has no members there is nothing to wait for, and where `watch` has looked long
    enough nothing is done.
    """
    workspace, stream, admin = draft.workspace, draft.stream, make_admin(draft.properties)
    limit, is_said = Deadline(LONGEST_SECONDS), False
    while True:
        note_stream(workspace, stream)
        if not read_group_state(admin, stream.group, Deadline(30.0)).is_active:
            return
        history = read_history(workspace, stream)
        own = leave_out_relayed(workspace.ledger, stream, history)
        if _is_enough(measure_pace(own, running=True)):
            return
        if limit.expired:
            return
        if not is_said:
            draft.say(
                "nobody has watched this stream of late: looking for "
                f"{ENOUGH_SECONDS:.0f} to {LONGEST_SECONDS:.0f} s how fast its consumers are"
            )
            is_said = True
        time.sleep(limit.remaining(_LOOK_EACH))


def _is_enough(pace: Pace) -> bool:
    return bool(pace.consumed) and pace.seconds >= ENOUGH_SECONDS
