"""Looks at a stream: its status from samples, and from what only the brokers know."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.kafka.admin import describe_topic
from backlogctl.kafka.clients import Admin, Properties, connect
from backlogctl.kafka.errors import TopicMissing
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.kafka.peek import peek_at
from backlogctl.ledger import Hold, Ledger
from backlogctl.ledger.holds import OPERATOR, keeps_longer
from backlogctl.monitoring.offsets.bulk_look import BulkLook
from backlogctl.monitoring.offsets.history import SIMPLE, StreamHistory, is_memberless
from backlogctl.monitoring.offsets.lag import (
    TAIL_AT_MOST,
    TailReading,
    count_lag,
    count_lost,
    find_partition_end,
    judge_tails,
    list_places,
    list_unread,
    read_log_sizes,
    read_reached,
    read_retention,
    read_size_limit,
    read_tails,
)
from backlogctl.monitoring.offsets.observation import (
    OBSERVE_SECONDS,
    Observation,
    find_past,
    observe_stream,
)
from backlogctl.monitoring.offsets.rhythm import Rhythm, RhythmBook, learn_rhythm
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.monitoring.offsets.standstills import find_standstills
from backlogctl.monitoring.offsets.timeline import WINDOW, read_timeline
from backlogctl.monitoring.verdict.judge import PartitionView, Point, judge_partition
from backlogctl.monitoring.verdict.status import (
    UNLIMITED,
    GroupStatus,
    HeldBack,
    Retention,
    Unseen,
    make_unseen,
)
from backlogctl.monitoring.verdict.summary import summarize_group
from backlogctl.monitoring.watch.notes import (
    with_archived_note,
    with_doubt_note,
    with_stopped_warning,
    with_taken_note,
)
from backlogctl.monitoring.watch.open_transactions import find_blocked, make_held, with_way_to_ask
from backlogctl.values import Gap, PartitionSample, Sample

_UNLIMITED = "-1"


def record_hold_state(
    ledger: Ledger, holds: Iterable[Hold], sample: Sample, config: Mapping[str, str]
) -> float:
    """Puts on record which of a topic's holds are in force, by what the broker says.

    Args:
        holds: the topic's open ones.
        config: the topic's settings, as they are in force.

    Returns:
        For how many seconds it is held by the operator yet.

    Raises:
        LedgerError.
    """
    held = 0.0
    for hold in holds:
        if hold.until is not None and hold.holder == OPERATOR:
            held = max(held, (hold.until - sample.taken_at).total_seconds())
        undone = any(
            keeps_longer(value, config.get(name, _UNLIMITED)) for name, value in hold.raised.items()
        )
        if hold.in_force is not (not undone):
            ledger.holds.note_in_force(hold.id, not undone)
    return held


# A stream's status from its samples: pure calculation, nothing here asks Kafka or the ledger.
HORIZON = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What is known of a stream besides its samples; empty where unknown.

    Attributes:
        tails: partitions whose lag holds no data (`read_tails`).
        empty_tails: by partition, the last range [first, end) that was read and held none.
        oldest: by partition, the oldest unread message's own time.
        reached: by partition, what retention by time reaches, and when (`read_reached`).
        sizes: by partition, bytes of its largest replica.
        held: by partition, what lies behind a transaction that has been open for too long.
        held_oldest: by partition, the time of the first message there.
        consumers: how many read now.
        has_consumers, has_source: what the configuration lets the tool do about it.
        seconds_held: how long an operator's hold of the topic lasts yet.
        rhythm: of a job that comes by, and is away.
    """

    retention: Retention = UNLIMITED
    tails: Collection[int] = ()
    empty_tails: Mapping[int, tuple[int, int]] | None = None
    oldest: Mapping[int, datetime] | None = None
    reached: Mapping[int, Sequence[tuple[int, float]]] = field(default_factory=dict)
    sizes: Mapping[int, int] | None = None
    held: Mapping[int, HeldBack] = field(default_factory=dict)
    held_oldest: Mapping[int, datetime] | None = None
    consumers: int | None = None
    has_consumers: bool = False
    has_source: bool = False
    seconds_held: float = 0.0
    rhythm: Rhythm | None = None


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
    rhythm = around.rhythm
    due = None if rhythm is None else (rhythm.due - sample.taken_at).total_seconds()
    parts = [
        judge_partition(
            PartitionView(
                partition=part.partition,
                points=pasts[part.partition].points,
                members=None if not sample.group_state else not is_memberless(sample),
                assigns=sample.group_state == SIMPLE
                and (pasts[part.partition].stands or 0.0) > -window.total_seconds(),
                lost=lost[part.partition].lost,
                likely=lost[part.partition].likely,
                undecided=lost[part.partition].undecided,
                possible=lost[part.partition].possible,
                tail_without_data=part.partition in around.tails,
                empty_tail=marks.empty_tails.get(part.partition),
                retention=around.retention,
                oldest_seconds=_measure_age(around.oldest, part.partition, sample.taken_at),
                reached=around.reached.get(part.partition),
                bytes=(around.sizes or {}).get(part.partition),
                timeline=pasts[part.partition].ends,
                held=around.held.get(part.partition),
                held_oldest_seconds=_measure_age(
                    around.held_oldest, part.partition, sample.taken_at
                ),
                due=due,
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
        rhythm=rhythm,
    )


@dataclass(slots=True)
class _PartitionHistory:
    """One partition's points within two windows, and its ends as far back as is known; `stands`:
    since when something was seen unread behind the same commit, in seconds, at most 0."""

    points: list[Point]
    ends: list[tuple[float, int]]
    committed: int | None = None
    stands: float | None = None


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
            if not count_lag(part, isolation):
                past.stands = None
            elif past.stands is None or part.committed != past.committed:
                past.stands = seconds
            past.committed = part.committed
            if near:
                end = find_partition_end(_skip_empty(part, marks), isolation)
                committed = part.committed
                if part.at_start and past.points:
                    committed = past.points[-1].committed  # it has not moved since
                past.points.append(Point(seconds, part.low, committed, end, part.high))
    return pasts


def _skip_empty(part: PartitionSample, marks: StreamHistory) -> PartitionSample:
    if part.committed is None:
        return part
    committed = marks.skip_empty(part.partition, part.committed)
    return part if committed == part.committed else replace(part, committed=committed)


def _measure_age(
    oldest: Mapping[int, datetime] | None, partition: int, now: datetime
) -> float | None:
    at = (oldest or {}).get(partition)
    return None if at is None else (now - at).total_seconds()


PEEK_SECONDS = 5.0


class WatchLike(Protocol):
    """What judging needs of the configuration."""

    @property
    def window(self) -> timedelta: ...
    @property
    def horizon(self) -> timedelta: ...


@dataclass(frozen=True, slots=True)
class StreamLook:
    """`samples`: earlier ones, of `read_timeline`."""

    observation: Observation
    status: GroupStatus
    samples: Sequence[Sample]


def look_at_stream(
    ledger: Ledger,
    stream: StreamLike,
    properties: Properties,
    watch: WatchLike,
    deadline: Deadline | None = None,
    *,
    admin: Admin | None = None,
    bulk: BulkLook | None = None,
) -> StreamLook:
    """Samples a stream, records its gaps, and judges it.

    Args:
        admin: kept from the last look by those who look often.
        bulk: read for many streams at once; the caller stores the samples of all.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure, LedgerError.
    """
    limit = deadline or Deadline(OBSERVE_SECONDS)
    connection = admin or connect(properties)
    past = find_past(ledger, stream, bulk, watch.window)
    seen = observe_stream(ledger, stream, connection, limit, history=past.history, bulk=bulk)
    timeline = read_timeline(ledger, stream, seen.sample, watch.window, past.known)
    rhythms = RhythmBook(ledger)
    rhythms.recall(stream.name, past.rhythm)
    status = assess_now(
        *(ledger, stream, properties, watch, seen, timeline, limit, connection, rhythms),
        bulk=bulk,
    )
    return StreamLook(seen, status, timeline)


def assess_now(
    ledger: Ledger,
    stream: StreamLike,
    properties: Properties,
    watch: WatchLike,
    seen: Observation,
    history: Sequence[Sample],
    limit: Deadline,
    admin: Admin,
    rhythms: RhythmBook,
    *,
    settle: bool = True,
    bulk: BulkLook | None = None,
) -> GroupStatus:
    """The status at a sample that was just taken, with what only the brokers know.

    Args:
        history: the stream's samples, of `read_timeline`.
        rhythms: kept from the last look by those who look often.
        settle: False leaves it to the next look whether a transaction is open for too long; else
            one that is young is waited for, some seconds.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure, LedgerError.
    """
    sample, facts = seen.sample, seen.facts
    gaps = facts.gaps.get(stream.name, ())
    unseen: list[Unseen] = []
    if seen.unmarked is not None:
        unseen.append(Unseen("bookmarks", seen.unmarked))
    config = None if bulk is None else bulk.settings.get(stream.topic)
    if config is None:
        config = _read_settings(admin, stream.topic, limit, unseen)
    holds = 0.0
    if config is not None:
        holds = record_hold_state(ledger, facts.list_holds(sample), sample, config)
    around = replace(_describe_stream(stream, _find_retention(config)), seconds_held=holds)
    known = facts.list_empty(stream.name, sample.topic_id)
    unread = _read_unread(
        *(properties, stream, sample, known, around.retention, limit, unseen), bulk=bulk
    )
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
            rhythm=rhythms.find(stream, sample, history) if behind else None,
            tails=unread.tails,
            empty_tails={**known, **new},
            oldest=unread.oldest,
            reached=_read_reached(
                admin, sample, behind | held.keys(), unread.oldest, around.retention, watch, limit
            ),
            held=held,
            held_oldest=_read_held(properties, stream.topic, held, around.retention, limit),
            sizes=_read_sizes(
                *(properties, sample, behind | held.keys(), config, limit, unseen), bulk=bulk
            ),
        ),
        undecided=seen.undecided,
        window=watch.window,
        horizon=watch.horizon,
    )
    status = with_way_to_ask(replace(status, unseen=tuple(unseen)), properties)
    status = replace(status, known_by="the commit log" if seen.by_log else "samples")
    if status.lost or status.undecided or status.possible:
        status = replace(status, sentence=f"{status.sentence} (known by {status.known_by})")
    status = _with_gap_notes(status, gaps, sample.topic_id)
    return with_stopped_warning(ledger, status, facts.recoveries.get(stream.name, ()))


def _with_gap_notes(status: GroupStatus, gaps: Sequence[Gap], topic_id: str | None) -> GroupStatus:
    status = with_archived_note(status, gaps, topic_id)
    return with_taken_note(with_doubt_note(status, gaps), gaps)


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
    gaps = ledger.gaps.list(stream=stream.name)
    status = assess_stream(
        newest,
        isolation,
        history[:-1],
        gaps,
        replace(
            _describe_stream(stream, UNLIMITED),
            held=held,
            rhythm=learn_rhythm(history, isolation),
        ),
        window=watch.window,
        horizon=watch.horizon,
    )
    return _with_gap_notes(status, gaps, newest.topic_id)


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
    *,
    bulk: BulkLook | None = None,
) -> TailReading:
    """Without it a reader one control record behind shows as lag, and nobody knows how old the
    oldest unread message is, which retention goes by; where it cannot be read, that is said."""
    if bulk is not None and bulk.samples.get(stream.name) is sample:
        unread = list_unread(sample, stream.isolation, known)
        firsts = bulk.firsts.get(stream.isolation != "read_uncommitted", {})
        if all(place in firsts for place in list_places(sample.topic, unread)):
            return judge_tails(sample.topic, unread, firsts)
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


def _read_reached(
    admin: Admin,
    sample: Sample,
    partitions: Collection[int],
    oldest: Mapping[int, datetime],
    retention: Retention,
    watch: WatchLike,
    limit: Deadline,
) -> Mapping[int, Sequence[tuple[int, float]]]:
    """Of partitions whose oldest unread message may be deleted within the horizon: no message is
    deleted before its own time, nor before those in front of it."""
    if retention.time is None:
        return {}
    # Durations are compared: the date before which "for ever" began does not exist.
    near = [
        number
        for number in partitions
        if number not in oldest
        or sample.taken_at - oldest[number] + watch.horizon >= retention.time
    ]
    try:
        within = Deadline(limit.remaining(PEEK_SECONDS))
        return read_reached(admin, sample.topic, near, retention.time, within, sample.taken_at)
    except BacklogError:
        return {}  # samples and the message's own time tell it, less exactly


def _read_sizes(
    properties: Properties,
    sample: Sample,
    partitions: Collection[int],
    config: Mapping[str, str] | None,
    limit: Deadline,
    unseen: list[Unseen],
    *,
    bulk: BulkLook | None,
) -> dict[int, int]:
    if config is None or read_size_limit(config) is None or not partitions:
        return {}
    topic, within = sample.topic, Deadline(limit.remaining(PEEK_SECONDS))
    log_dirs = None if bulk is None else bulk.log_dirs.get(topic)
    if log_dirs is None:
        log_dirs = read_log_dirs(properties, topic, within)
    why: BacklogError | str = log_dirs.reason
    sizes: dict[int, int] = {}
    if log_dirs.brokers is not None:
        try:
            sizes = read_log_sizes(properties, sample, config, log_dirs, within)
            why = log_dirs.reason or "no broker tells how large its partitions are"
        except BacklogError as error:
            why = error
    if not sizes.keys() >= set(partitions):
        unseen.append(make_unseen("disks", why, f"topic {topic}"))
    return sizes
