"""Whether a topic's holds are in force: what the broker says, not what was asked of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.formats import format_moment, format_plural
from backlogctl.kafka.admin import describe_topic
from backlogctl.kafka.clients import Admin, Properties, connect
from backlogctl.kafka.errors import TopicMissing
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.kafka.peek import peek_at
from backlogctl.ledger import Ledger
from backlogctl.ledger.holds import OPERATOR, keeps_longer
from backlogctl.ledger.steps import has_stopped_consumers
from backlogctl.monitoring.offsets.certainty import MAYBE_EMPTY
from backlogctl.monitoring.offsets.history import StreamHistory, is_memberless
from backlogctl.monitoring.offsets.lag import (
    TAIL_AT_MOST,
    TailReading,
    count_lag,
    count_lost,
    find_partition_end,
    read_retention,
    read_size_limit,
    read_tails,
)
from backlogctl.monitoring.offsets.observation import OBSERVE_SECONDS, Observation, observe_stream
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.monitoring.offsets.standstills import find_standstills
from backlogctl.monitoring.verdict.commands import redrive_stream, show_recovery
from backlogctl.monitoring.verdict.judge import PartitionView, Point, judge_partition
from backlogctl.monitoring.verdict.status import (
    UNLIMITED,
    GroupStatus,
    HeldBack,
    Retention,
    Unseen,
    Verdict,
    find_worst,
    make_unseen,
)
from backlogctl.monitoring.verdict.summary import summarize_group
from backlogctl.monitoring.watch.open_transactions import find_blocked, make_held, with_way_to_ask
from backlogctl.values import Cause, Gap, GapState, PartitionSample, Recovery, RecoveryState, Sample

_UNLIMITED = "-1"


def record_hold_state(ledger: Ledger, sample: Sample, config: Mapping[str, str]) -> float:
    """Puts on record which of the topic's holds are in force.

    Args:
        config: the topic's settings, as they are in force.

    Returns:
        For how many seconds it is held by the operator yet.

    Raises:
        LedgerError.
    """
    held = 0.0
    for hold in ledger.holds.list_of_topic(sample.cluster, sample.topic, sample.topic_id):
        if hold.until is not None and hold.holder == OPERATOR:
            held = max(held, (hold.until - sample.taken_at).total_seconds())
        undone = any(
            keeps_longer(value, config.get(name, _UNLIMITED)) for name, value in hold.raised.items()
        )
        if hold.in_force is not (not undone):
            ledger.holds.note_in_force(hold.id, not undone)
    return held


# A stream of which messages wait in an archive, or were committed and never handled: what of it
# is there still, and what puts it back.

_SETTLED = (GapState.VERIFIED, GapState.WAIVED)


def with_archived_note(status: GroupStatus, gaps: Iterable[Gap]) -> GroupStatus:
    """The status, with how many messages an offload put aside, or were never handled, and what puts
    them back."""
    place = (status.topic, status.group)
    known = [gap for gap in gaps if gap.state not in _SETTLED and (gap.topic, gap.group) == place]
    waiting = [gap for gap in known if gap.archive is not None]
    if waiting:
        status = _add(
            status,
            f"at most {_count(waiting)} of it in an archive, not put back yet",
            *(
                redrive_stream(status.stream, f"archive:{archive}")
                for archive in dict.fromkeys(gap.archive for gap in waiting)
            ),
        )
    lows = {part.partition: part.log_start for part in status.partitions}
    unhandled = [
        gap
        for gap in known
        if gap.cause is Cause.UNPROCESSED and (gap.end or 0) > lows.get(gap.partition, 0)
    ]
    if unhandled:
        status = _add(
            status,
            f"at most {_count(unhandled)} were committed and never handled, and are in the log",
            redrive_stream(status.stream, "unprocessed"),
        )
    return status


def with_doubt_note(status: GroupStatus, gaps: Iterable[Gap]) -> GroupStatus:
    """The status, with how much of what is lost may be no messages at all."""
    place = (status.topic, status.group)
    unsure = [
        gap
        for gap in gaps
        if gap.maybe_empty and gap.state not in _SETTLED and (gap.topic, gap.group) == place
    ]
    if not unsure:
        return status
    many = format_plural(sum(gap.count or 0 for gap in unsure), "offset")
    return _add(status, f"{many} of it {MAYBE_EMPTY}")


def _count(gaps: Iterable[Gap]) -> str:
    return format_plural(sum(gap.count or 0 for gap in gaps), "message")


def _add(status: GroupStatus, told: str, *commands: str) -> GroupStatus:
    return replace(
        status,
        sentence=f"{status.sentence}; {told}",
        next_commands=tuple(dict.fromkeys((*status.next_commands, *commands))),
    )


# A stream whose own consumers a recovery has stopped: its lag alone would say that all is well.

_BEGUN = (RecoveryState.RUNNING, RecoveryState.PAUSED, RecoveryState.FAILED)


def with_stopped_warning(ledger: Ledger, status: GroupStatus) -> GroupStatus:
    """The status, never `ok` while a recovery keeps the stream's consumers stopped.

    What was relayed and not handled is read from the source, and so in no lag: `warn` where a
    runner works on it, `stop` where nobody does.

    Raises:
        LedgerError.
    """
    for recovery in ledger.recoveries.list(status.stream, _BEGUN):
        same = (recovery.topic, recovery.group) == (status.topic, status.group)
        if same and recovery.stops_consumers and _is_stopped(ledger, recovery):
            runner = ledger.leases.find_runner(recovery.id)
            least = Verdict.STOP if runner is None else Verdict.WARN
            told = _describe(ledger, recovery, is_at_work=runner is not None)
            show = show_recovery(recovery.id)
            return replace(
                status,
                verdict=find_worst((status.verdict, least)),
                sentence=f"{status.sentence}; {told}",
                next_commands=tuple(dict.fromkeys((show, *status.next_commands))),
            )
    return status


def _is_stopped(ledger: Ledger, recovery: Recovery) -> bool:
    return has_stopped_consumers(ledger.steps.list(recovery.id))


def _describe(ledger: Ledger, recovery: Recovery, *, is_at_work: bool) -> str:
    told = f"its consumers are stopped by {recovery.kind} {recovery.id}"
    if not is_at_work:
        told += f", which is {recovery.state}, and on which nobody works"
    temporary = ledger.temporary_topics.get(recovery.id)
    if temporary is None or temporary.deleted_at is not None:
        return told
    last = ledger.burndown.latest(recovery.id)
    if last is None:
        return f"{told}; how many messages are only in {temporary.name} is not known"
    many = format_plural(last.temporary_lag, "message")
    return f"{told}; {many} only in {temporary.name} at {format_moment(last.at)}"


# A stream's status from its samples: pure calculation, nothing here asks Kafka or the ledger.
WINDOW = timedelta(minutes=10)
HORIZON = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What is known of a stream besides its samples; empty where unknown.

    Attributes:
        tails: partitions whose lag holds no data (`read_tails`).
        empty_tails: by partition, the last range [first, end) that was read and held none.
        oldest: by partition, the oldest unread message's own time.
        sizes: by partition, bytes of its largest replica.
        held: by partition, what lies behind a transaction that has been open for too long.
        held_oldest: by partition, the time of the first message there.
        consumers: how many read now.
        has_consumers, has_source: what the configuration lets the tool do about it.
        seconds_held: how long an operator's hold of the topic lasts yet.
    """

    retention: Retention = UNLIMITED
    tails: Collection[int] = ()
    empty_tails: Mapping[int, tuple[int, int]] | None = None
    oldest: Mapping[int, datetime] | None = None
    sizes: Mapping[int, int] | None = None
    held: Mapping[int, HeldBack] = field(default_factory=dict)
    held_oldest: Mapping[int, datetime] | None = None
    consumers: int | None = None
    has_consumers: bool = False
    has_source: bool = False
    seconds_held: float = 0.0


NOTHING = StreamContext()


def assess_stream(
    sample: Sample,
    isolation: str,
    history: Iterable[Sample] = (),
    gaps: Iterable[Gap] = (),
    around: StreamContext = NOTHING,
    *,
    undecided: Mapping[int, int] | None = None,
    window: timedelta = WINDOW,
    horizon: timedelta = HORIZON,
) -> GroupStatus:
    """The status of a stream at its newest sample.

    Args:
        history: earlier samples of the same topic and group; those of the topic's earlier lives
            are left out.
        gaps: the ledger's gaps of the stream; those of this topic and group that are neither
            verified nor waived count as lost.
        undecided: of an observation, by partition: gone, and perhaps read.
    """
    earlier = [
        one for one in history if one.topic_id == sample.topic_id and one.taken_at < sample.taken_at
    ]
    marks = StreamHistory(empty_tails=around.empty_tails or {})
    pasts = _group_by_partition([*earlier, sample], isolation, 2 * window, marks)
    known = tuple(gaps)
    lost = {
        part.partition: count_lost(
            _skip_empty(part, marks),
            sample,
            known,
            None if undecided is None else undecided.get(part.partition, 0),
        )
        for part in sample.partitions
    }
    parts = [
        judge_partition(
            PartitionView(
                partition=part.partition,
                points=pasts[part.partition].points,
                members=None if not sample.group_state else not is_memberless(sample),
                lost=lost[part.partition].lost,
                likely=lost[part.partition].likely,
                undecided=lost[part.partition].undecided,
                possible=lost[part.partition].possible,
                tail_without_data=part.partition in around.tails,
                empty_tail=marks.empty_tails.get(part.partition),
                retention=around.retention,
                oldest_seconds=_measure_age(around.oldest, part.partition, sample.taken_at),
                bytes=(around.sizes or {}).get(part.partition),
                timeline=pasts[part.partition].ends,
                held=around.held.get(part.partition),
                held_oldest_seconds=_measure_age(
                    around.held_oldest, part.partition, sample.taken_at
                ),
                window=window.total_seconds(),
                horizon=horizon.total_seconds(),
            )
        )
        for part in sample.partitions
    ]
    return summarize_group(
        parts,
        stream=sample.stream,
        cluster=sample.cluster,
        topic=sample.topic,
        group=sample.group,
        group_state=sample.group_state,
        taken_at=sample.taken_at,
        written=[part.high > 0 for part in sample.partitions],
        retention=around.retention,
        consumers=around.consumers,
        window=window.total_seconds(),
        has_consumers=around.has_consumers,
        has_source=around.has_source,
        seconds_held=around.seconds_held,
    )


@dataclass(slots=True)
class _PartitionHistory:
    """One partition's points within two windows, and its ends as far back as is known."""

    points: list[Point]
    ends: list[tuple[float, int]]


def _group_by_partition(
    timeline: Sequence[Sample], isolation: str, reach: timedelta, marks: StreamHistory
) -> dict[int, _PartitionHistory]:
    now = timeline[-1].taken_at
    pasts: dict[int, _PartitionHistory] = {}
    for sample in timeline:
        seconds = (sample.taken_at - now).total_seconds()
        near = now - sample.taken_at <= reach
        for part in sample.partitions:
            past = pasts.setdefault(part.partition, _PartitionHistory([], []))
            past.ends.append((seconds, part.high))
            if near:
                end = find_partition_end(_skip_empty(part, marks), isolation)
                past.points.append(Point(seconds, part.low, part.committed, end, part.high))
    return pasts


def _skip_empty(part: PartitionSample, marks: StreamHistory) -> PartitionSample:
    if part.committed is None:
        return part
    return replace(part, committed=marks.skip_empty(part.partition, part.committed))


def _measure_age(
    oldest: Mapping[int, datetime] | None, partition: int, now: datetime
) -> float | None:
    at = (oldest or {}).get(partition)
    return None if at is None else max(0.0, (now - at).total_seconds())


PEEK_SECONDS = 5.0


class WatchLike(Protocol):
    """What judging needs of the configuration."""

    @property
    def window(self) -> timedelta: ...
    @property
    def horizon(self) -> timedelta: ...


@dataclass(frozen=True, slots=True)
class StreamLook:
    observation: Observation
    status: GroupStatus


def look_at_stream(
    ledger: Ledger,
    stream: StreamLike,
    properties: Properties,
    watch: WatchLike,
    deadline: Deadline | None = None,
    *,
    admin: Admin | None = None,
    history: StreamHistory | None = None,
) -> StreamLook:
    """Samples a stream, records its gaps, and judges it.

    Args:
        admin, history: kept from the last look by those who look often.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure, LedgerError.
    """
    limit = deadline or Deadline(OBSERVE_SECONDS)
    connection = admin or connect(properties)
    seen = observe_stream(ledger, stream, connection, limit, history=history)
    status = assess_now(
        *(ledger, stream, properties, watch, seen.sample, limit, connection),
        seen=seen,
    )
    return StreamLook(seen, status)


def assess_now(
    ledger: Ledger,
    stream: StreamLike,
    properties: Properties,
    watch: WatchLike,
    sample: Sample,
    limit: Deadline,
    admin: Admin,
    history: Sequence[Sample] | None = None,
    *,
    seen: Observation | None = None,
    settle: bool = True,
) -> GroupStatus:
    """The status at a sample that was just taken, with what only the brokers know.

    Args:
        history: the stream's samples; None reads the ledger.
        settle: False leaves it to the next look whether a transaction is open for too long; else
            one that is young is waited for, some seconds.
        seen: what else was seen with the sample.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure, LedgerError.
    """
    if history is None:
        history = read_timeline(ledger, stream)
    gaps = ledger.gaps.list(stream=stream.name)
    unseen: list[Unseen] = []
    if seen is not None and seen.unmarked is not None:
        unseen.append(Unseen("bookmarks", seen.unmarked))
    config = _read_settings(admin, stream.topic, limit, unseen)
    holds = 0.0 if config is None else record_hold_state(ledger, sample, config)
    around = replace(_describe_stream(stream, _find_retention(config)), seconds_held=holds)
    known = ledger.empties.list(stream.name, sample.topic_id)
    unread = _read_unread(properties, stream, sample, known, around.retention, limit, unseen)
    new = {number: one for number, one in unread.empty.items() if known.get(number) != one}
    ledger.empties.note(stream.name, sample.topic_id, new, sample.taken_at)
    standing = find_standstills(history, sample, stream.isolation)
    held = find_blocked(properties, admin, stream, sample, standing, limit, unseen, settle=settle)
    # Only partitions that are behind need more.
    behind = {
        part.partition
        for part in sample.partitions
        if part.partition not in unread.tails and count_lag(part, stream.isolation)
    }
    status = assess_stream(
        sample,
        stream.isolation,
        history,
        gaps,
        replace(
            around,
            tails=unread.tails,
            empty_tails={**known, **new},
            oldest=unread.oldest,
            held=held,
            held_oldest=_read_held(properties, stream.topic, held, around.retention, limit),
            sizes=_read_sizes(
                *(properties, stream.topic, behind | held.keys(), around.retention, limit, unseen)
            ),
        ),
        undecided=None if seen is None else seen.undecided,
        window=watch.window,
        horizon=watch.horizon,
    )
    status = with_way_to_ask(replace(status, unseen=tuple(unseen)), properties)
    by_log = seen is not None and seen.by_log
    status = replace(status, known_by="the commit log" if by_log else "samples")
    if status.lost or status.undecided or status.possible:
        status = replace(status, sentence=f"{status.sentence} (known by {status.known_by})")
    status = with_doubt_note(with_archived_note(status, gaps), gaps)
    return with_stopped_warning(ledger, status)


def without_ledger(status: GroupStatus, error: BacklogError) -> GroupStatus:
    """A status of what the brokers say now alone: never `ok`, since nobody knows what was lost; and
    without commands, which all need the ledger."""
    parts = tuple(
        replace(part, lost=None, verdict=find_worst((part.course, Verdict.UNKNOWN)))
        for part in status.partitions
    )
    return replace(
        status,
        verdict=find_worst((status.course, Verdict.UNKNOWN)),
        lost=None,
        partitions=parts,
        next_commands=(),
        sentence=f"{status.sentence}; what was lost is unknown: the ledger does not answer",
        unseen=(*status.unseen, Unseen("ledger", error)),
    )


def judge_stored(
    ledger: Ledger, stream: StreamLike, watch: WatchLike, now: datetime
) -> GroupStatus | None:
    """The status at the newest stored sample, without asking a broker; None without a sample.

    Retention is not in the ledger, so no losses are forecast; nor is there the warning of
    `with_stopped_warning`.

    Args:
        now: samples younger than this are left out.

    Raises:
        LedgerError.
    """
    history = [sample for sample in read_timeline(ledger, stream) if sample.taken_at <= now]
    if not history:
        return None
    newest, isolation = history[-1], stream.isolation
    held = {
        one.partition: make_held(one, None, newest.taken_at, isolation)
        for one in find_standstills(history[:-1], newest, isolation)
        if newest.taken_at - one.since >= one.patience
    }
    return assess_stream(
        newest,
        isolation,
        history[:-1],
        ledger.gaps.list(stream=stream.name),
        replace(_describe_stream(stream, UNLIMITED), held=held),
        window=watch.window,
        horizon=watch.horizon,
    )


def read_timeline(ledger: Ledger, stream: StreamLike) -> tuple[Sample, ...]:
    """The samples of the stream's present topic and group, oldest first."""
    return tuple(
        sample
        for sample in ledger.samples.history(stream.name)
        if (sample.cluster, sample.topic, sample.group)
        == (stream.cluster, stream.topic, stream.group)
    )


def _read_settings(
    admin: Admin, topic: str, limit: Deadline, unseen: list[Unseen]
) -> Mapping[str, str] | None:
    """The topic's settings in force; None where they may not be read, which is said."""
    try:
        return describe_topic(admin, topic, limit).config
    except KafkaFailure as error:
        if error.retryable or isinstance(error, TopicMissing):
            raise
        unseen.append(Unseen("retention", error))
        return None


def _read_unread(
    properties: Properties,
    stream: StreamLike,
    sample: Sample,
    known: Mapping[int, tuple[int, int]],
    retention: Retention,
    limit: Deadline,
    unseen: list[Unseen],
) -> TailReading:
    """Without it a reader one control record behind shows as lag, and nobody knows how old the
    oldest unread message is, which retention goes by; where it cannot be read, that is said."""
    within = Deadline(limit.remaining(PEEK_SECONDS))
    try:
        reading = read_tails(properties, sample, stream.isolation, within, known)
    except BacklogError as error:
        reading = TailReading(denied=error)
    if reading.denied is not None:
        lags = [count_lag(part, stream.isolation) or 0 for part in sample.partitions]
        if any(0 < lag <= TAIL_AT_MOST for lag in lags):
            unseen.append(Unseen("tails", reading.denied))
        if retention.time is not None and max(lags) > TAIL_AT_MOST:
            unseen.append(Unseen("oldest", reading.denied))
    return reading


def _find_retention(config: Mapping[str, str] | None) -> Retention:
    if config is None:
        return UNLIMITED
    return Retention(read_retention(config), read_size_limit(config))


def _describe_stream(stream: StreamLike, retention: Retention) -> StreamContext:
    # Not every stream can be repaired: one of `--bootstrap` has no such sections.
    consumers: Any = getattr(stream, "consumers", None)
    return StreamContext(
        retention=retention,
        consumers=None if consumers is None else consumers.replicas,
        has_consumers=consumers is not None,
        has_source=getattr(stream, "source", None) is not None,
    )


def _read_held(
    properties: Properties,
    topic: str,
    held: Mapping[int, HeldBack],
    retention: Retention,
    limit: Deadline,
) -> dict[int, datetime]:
    """The own times of the first messages that lie behind open transactions; where they cannot be
    read, the samples tell."""
    if retention.time is None or not held:
        return {}
    starts = {number: one.offset for number, one in held.items()}
    within = Deadline(limit.remaining(PEEK_SECONDS))
    try:
        found = peek_at(properties, topic, starts, 1, within, isolation="read_uncommitted")
    except BacklogError:
        return {}
    return {
        number: messages[0].at
        for number, messages in found.items()
        if messages and messages[0].at is not None
    }


def _read_sizes(
    properties: Properties,
    topic: str,
    starts: Collection[int],
    retention: Retention,
    limit: Deadline,
    unseen: list[Unseen],
) -> dict[int, int]:
    if retention.bytes is None or not starts:
        return {}
    log_dirs = read_log_dirs(properties, topic, Deadline(limit.remaining(PEEK_SECONDS)))
    if log_dirs.brokers is None:
        unseen.append(make_unseen("disks", log_dirs.reason, f"topic {topic}"))
    sizes = {number: log_dirs.partition_bytes(number) for number in starts}
    return {number: size for number, size in sizes.items() if size is not None}
