"""Follows what groups commit, by the brokers' own log of it.

Each commit is a record of `__consumer_offsets`, and so is each change of a group's members. All
records of a group are in one partition of it, in the order in which its coordinator took them.

What Kafka guarantees of them: the log is compacted, so of each group and partition the newest
commit stays, and earlier ones may go once their segment is closed (100 MB or 7 days by default) and
cleaned. Cleaning leaves holes in the offsets. So do the ends of transactions, and what was aborted;
the headers of the batches tell which it is. Where no offset is missing, no commit is.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import BacklogError
from backlogctl.kafka.batches import BatchHeader
from backlogctl.kafka.clients import (
    Connection,
    ask,
    assign_partitions,
    connect,
    make_consumer,
    wait_for,
)
from backlogctl.kafka.commit_records import (
    CommitRecord,
    GroupMembers,
    MembersRecord,
    SkippedEntry,
    decode_record,
    find_group_name,
    find_log_partition,
    is_known_key,
    to_log_time,
)
from backlogctl.kafka.errors import TopicMissing, translate
from backlogctl.kafka.groups import TRUNCATED_SECONDS, EndsBehind, list_consumer_groups
from backlogctl.kafka.raw_fetch import fetch_batches
from backlogctl.kafka.topics import list_offsets, read_metadata
from backlogctl.values import OffsetRange
from backlogctl_delivery.kafka import AccessDenied, unwrap

COMMIT_LOG = "__consumer_offsets"
LogRecord = CommitRecord | MembersRecord


class LogCondition(StrEnum):
    """Whether a group's commits are all known, or why not."""

    FOLLOWED = "followed"
    BEHIND = "behind"  # there are records left to read
    HELD = "held"  # an open transaction, of any group, hides what follows it
    DENIED = "denied"  # READ on the topic is missing
    MISSING = "missing"  # the topic is not there: no group has committed yet
    AWAY = "away"  # not read yet, or a broker does not answer


@dataclass(frozen=True, slots=True)
class LogState:
    """Between which times every commit of a group is known.

    Attributes:
        complete_since: each commit from this time on was still in the log when it was read.
        complete_to: each commit that was written before this time has been read; None: unknown.
            By this host's clock where the end of the log was reached, else by the brokers'. They
            write a commit some milliseconds after they took it.
        behind: records that are left, of all groups, at most.
        held_since: since when an open transaction was seen to hold the log.
        error: what failed, where it is DENIED or AWAY.
    """

    condition: LogCondition
    complete_since: datetime
    complete_to: datetime | None = None
    behind: int = 0
    held_since: datetime | None = None
    error: BacklogError | None = None


_SETTINGS: Mapping[str, Any] = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    # What is fetched ahead of what is taken.
    "queued.max.messages.kbytes": 8192,
    "queued.min.messages": 10_000,
}
_AT_ONCE = 1000
_MOST_RECORDS = 20_000
_MOST_HOLES = 10_000
_POLL_SECONDS = 0.2
# Nothing is at the offset that was asked for: the log was cut, at its start or at its end.
_LOST = frozenset(
    {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION}
)
_SUBJECT, _DOING, _LISTING = f"topic {COMMIT_LOG}", "follow what groups commit", "list its groups"


class _Hole(NamedTuple):
    """Offsets without a record; `at` is the time of the first one behind them."""

    start: int
    end: int
    at: datetime


@dataclass(slots=True)
class _Part:
    """A partition of the log.

    Attributes:
        since: from when on it is to be read.
        position: where it is read on; None until that is found.
        begin: where what was read of it begins.
        expected: the offset that comes next if nothing is missing.
        high, stable: its ends at the beginning of this reading.
        last_at: the time of the last record that was read.
        held: the last stable offset behind which a transaction is open, and since when.
        beyond_since: since when it ends before the position, by the monotonic clock.
    """

    number: int
    groups: tuple[str, ...]
    since: datetime
    complete_since: datetime
    complete_to: datetime | None = None
    position: int | None = None
    begin: int = 0
    expected: int = 0
    high: int = 0
    stable: int = 0
    last_at: datetime | None = None
    holes: list[_Hole] = field(default_factory=list)
    held: tuple[int, datetime] | None = None
    beyond_since: float | None = None
    error: BacklogError | None = None

    @property
    def left(self) -> int:
        return 0 if self.position is None else max(0, self.stable - self.position)

    def lose(self) -> None:
        """Its position is no more: it is looked for anew by the time of what was read last."""
        self.since = self.last_at or self.since
        self.position, self.beyond_since = None, None

    def move(self, found: int, reached: int, at: datetime) -> None:
        """A record, or the end, was found at an offset; `at` is its time."""
        if found > self.expected:
            self.holes.append(_Hole(self.expected, found, at))
        self.position = self.expected = reached


class CommitLog:
    """The commits and members of some groups, as they come. Not thread-safe."""

    def __init__(self, connection: Connection, groups: Collection[str], since: datetime) -> None:
        """Asks nothing yet. `since`: from when on commits are wanted; earlier ones may come too."""
        self._admin = connect(connection)
        self._groups = {name.encode(): name for name in sorted(groups)}
        self._members = {name: GroupMembers(name) for name in self._groups.values()}
        self._since = self._complete_since = since
        self._count = 0
        self._parts: dict[int, _Part] = {}
        self._consumer: Consumer | None = None
        self._outcome: tuple[LogCondition, BacklogError | None] = (LogCondition.AWAY, None)
        self._missing_to: datetime | None = None
        self.skipped: Counter[str] = Counter()
        """Records of these groups that were passed over, by what they are; unknown ones of all."""

    def read(self, limit: Deadline) -> tuple[LogRecord, ...]:
        """All new records up to the ends that the log has at the beginning of this call; in the
        order of the log, partition by partition as they come.

        At most some ten thousand; what is left comes with the next call. Nothing is raised for a
        broker that is away or refuses: `state` tells it.
        """
        found: list[LogRecord] = []
        bases: list[LogRecord] = []
        began = utc_now()
        self._outcome = (LogCondition.FOLLOWED, None)
        try:
            self._find_parts(began, limit)
            states = self._list_states(limit)
            self._list_ends(limit)
            self._find_positions(limit)
            try:
                self._follow(found, limit)
            finally:
                self._note_progress(began)
            bases = list(self._settle(states, began))
            self._explain_holes(limit)
        except TopicMissing:
            self._outcome = (LogCondition.MISSING, None)
            self._forget(began)
            self._missing_to = began
        except AccessDenied as error:
            self._outcome = (LogCondition.DENIED, error)
        except BacklogError as error:
            self._outcome = (LogCondition.AWAY, error)
        return (*bases, *found)

    @property
    def state(self) -> Mapping[str, LogState]:
        """How far each group is known, after the last reading."""
        parts = {group: part for part in self._parts.values() for group in part.groups}
        return {name: self._judge(parts.get(name)) for name in self._members}

    def close(self) -> None:
        """Lets go of the connections; a later reading makes new ones, and goes on."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _judge(self, part: _Part | None) -> LogState:
        condition, error = self._outcome
        if part is None:
            return LogState(condition, self._complete_since, self._missing_to, error=error)
        since = max([part.complete_since, *(hole.at for hole in part.holes)])
        held = part.held[1] if part.held is not None else None
        if condition is LogCondition.FOLLOWED and (part.error or part.position is None):
            condition, error = LogCondition.AWAY, part.error
        elif condition is LogCondition.FOLLOWED and part.left:
            condition = LogCondition.BEHIND
        elif condition is LogCondition.FOLLOWED and held:
            condition = LogCondition.HELD
        return LogState(condition, since, part.complete_to, part.left, held, error)

    def _find_parts(self, now: datetime, limit: Deadline) -> None:
        # Not described: that asks one broker, which may have died (tried, librdkafka 2.16).
        found = read_metadata(self._admin, COMMIT_LOG, limit).topics[COMMIT_LOG]
        if found.error is not None:
            raise self._admin.translate(found.error, _SUBJECT, _DOING)
        count = len(found.partitions)
        if count == self._count:
            return
        self._forget(now)
        self._count, self._missing_to = count, None
        numbers: defaultdict[int, list[str]] = defaultdict(list)
        for group in self._members:
            numbers[find_log_partition(group, count)].append(group)
        self._parts = {
            number: _Part(number, tuple(groups), self._since, self._complete_since)
            for number, groups in numbers.items()
        }

    def _forget(self, now: datetime) -> None:
        """The topic is gone, or has more partitions: of what it had then, only what was read is
        known."""
        if not self._count:
            return
        times = [part.last_at or part.since for part in self._parts.values()]
        self._since = min(times, default=self._since)
        self._complete_since = now
        self._count, self._parts = 0, {}
        self._members = {name: GroupMembers(name) for name in self._members}

    def _list_states(self, limit: Deadline) -> Mapping[str, str] | None:
        """States of the groups, where the log has not told who is in them; of no coordinator."""
        if all(one.is_known for one in self._members.values()):
            return None
        try:
            listed = list_consumer_groups(self._admin, "the cluster", _LISTING, _share(limit))
        except BacklogError:
            return None  # asked again at the next reading
        return {one.group_id: one.state.name.lower() for one in listed if one.state is not None}

    def _list_ends(self, limit: Deadline) -> None:
        """High watermarks first: a stable offset below them then proves an open transaction."""
        for part in self._parts.values():
            part.error = None
        highs = self._ask_ends(IsolationLevel.READ_UNCOMMITTED, limit)
        stables = self._ask_ends(IsolationLevel.READ_COMMITTED, limit)
        for number in highs.keys() & stables.keys():
            part = self._parts[number]
            part.high, part.stable = highs[number], stables[number]
            if part.position is not None and part.high < part.position:
                _judge_truncated(part, part.position)
            else:
                part.beyond_since = None

    def _ask_ends(self, level: IsolationLevel, limit: Deadline) -> dict[int, int]:
        """Of the partitions that answer; the others have their error."""
        doing, admin, limit = "read its ends", self._admin, _share(limit)
        latest: Any = OffsetSpec.latest
        request = {TopicPartition(COMMIT_LOG, number): latest() for number in self._parts}
        futures = ask(
            admin, admin.list_offsets, _SUBJECT, doing, limit, request, isolation_level=level
        )
        ends = {}
        for place, future in futures.items():
            subject = f"{_SUBJECT}[{place.partition}]"
            try:
                found = wait_for(admin, future, subject, doing, limit).offset
            except AccessDenied:
                raise
            except BacklogError as error:
                self._parts[place.partition].error = error
                continue
            if found >= 0:
                ends[place.partition] = found
            else:  # librdkafka's word of a leader that did not answer in time
                self._parts[place.partition].error = admin.translate(TimeoutError(), subject, doing)
        return ends

    def _find_positions(self, limit: Deadline) -> None:
        """Where to begin: at the record before the first one of the time, which shows that nothing
        is missing between; never behind an open transaction, whose commits count from its end."""
        lost = [p for p in self._parts.values() if p.position is None and p.error is None]
        lows = list_offsets(
            self._admin, COMMIT_LOG, [p.number for p in lost], "earliest", deadline=limit
        )
        for since in {part.since for part in lost}:
            parts = [part for part in lost if part.since == since]
            at = max(0, int(since.timestamp() * 1000))
            numbers = [part.number for part in parts]
            firsts = list_offsets(self._admin, COMMIT_LOG, numbers, at, deadline=limit)
            for part in parts:
                first = firsts[part.number] if firsts[part.number] >= 0 else part.high
                first = min(first, part.stable)
                part.expected = max(0, first - 1)
                part.position = part.begin = max(part.expected, lows[part.number])
                for group in part.groups:
                    self._members[group] = GroupMembers(group)

    def _follow(self, found: list[LogRecord], limit: Deadline) -> None:
        parts = {p.number: p for p in self._parts.values() if p.error is None and p.left}
        if not parts:
            return
        consumer = self._open_consumer()
        places = [
            TopicPartition(COMMIT_LOG, number, p.position or 0) for number, p in parts.items()
        ]
        try:
            assign_partitions(consumer, places, limit.remaining(30.0))
            while any(p.left for p in parts.values()) and len(found) < _MOST_RECORDS:
                if limit.expired:
                    break
                first = consumer.consume(1, limit.remaining(_POLL_SECONDS))
                # For all that it was asked for it would wait.
                for message in (*first, *consumer.consume(_AT_ONCE, 0)):
                    number = message.partition()
                    part = None if number is None else parts.get(number)
                    if part is not None and part.position is not None:
                        self._take(part, part.position, message, found)
        except KafkaException as error:
            raise translate(unwrap(error) or error, _SUBJECT, _DOING) from error
        finally:
            consumer.unassign()
        if limit.expired and any(parts[p.partition].position == p.offset for p in places):
            # Nothing came: it may hold on to the leaders of a topic that was made anew meanwhile.
            self.close()

    def _open_consumer(self) -> Consumer:
        if self._consumer is None:
            self._consumer = make_consumer(self._admin.properties, _SETTINGS)
        return self._consumer

    def _take(self, part: _Part, position: int, message: Message, found: list[LogRecord]) -> None:
        offset, error = message.offset(), message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            if offset is not None and offset >= position:
                part.move(offset, offset, utc_now())
            return
        if error is not None:
            if error.code() in _LOST:
                part.lose()
            elif error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise translate(error, _SUBJECT, _DOING)
            return  # leaders move, brokers go and come
        if offset is None or offset < position:
            return  # of an earlier reading
        at = to_log_time(message.timestamp()[1]) or utc_now()
        part.move(offset, offset + 1, at)
        part.last_at = at
        record = self._decode(message, at, (part.number, offset))
        if record is not None:
            found.append(record)

    def _decode(self, message: Message, at: datetime, place: tuple[int, int]) -> LogRecord | None:
        key = message.key() or b""
        group = self._groups.get(find_group_name(key))
        if group is None and is_known_key(key):
            return None
        entry = decode_record(key, message.value(), at, place)
        if isinstance(entry, SkippedEntry):
            self.skipped[entry.what] += 1
            return None
        if isinstance(entry, CommitRecord):
            return entry
        return self._members[entry.group].take(entry, at, place)

    def _note_progress(self, began: datetime) -> None:
        for part in self._parts.values():
            if part.error is not None or part.position is None:
                continue
            if part.left == 0 and part.stable >= part.high:
                part.complete_to, part.held = began, None
                continue
            known = [at for at in (part.complete_to, part.last_at) if at is not None]
            part.complete_to = max(known, default=None)
            if part.stable >= part.high:
                part.held = None
            elif part.held is None or part.held[0] != part.stable:
                part.held = (part.stable, began)

    def _settle(self, states: Mapping[str, str] | None, now: datetime) -> Iterable[MembersRecord]:
        """What the listing tells, of partitions that have been read to a later end."""
        for part in self._parts.values():
            if part.position is None or part.complete_to != now:
                continue
            begin, reached = (part.number, part.begin - 1), (part.number, part.position - 1)
            for group in part.groups:
                state = None if states is None else states.get(group, "")
                told = self._members[group].settle(state, now, begin, reached)
                if told is not None:
                    yield told

    def _explain_holes(self, limit: Deadline) -> None:
        """Holes that are no ends of transactions, nor aborted, were commits: what is complete
        begins behind them. One that cannot be looked at stays, and may be one."""
        parts = [part for part in self._parts.values() if part.holes]
        if not parts:
            return
        ranges = [OffsetRange(p.number, p.holes[0].start, p.holes[-1].end) for p in parts]
        headers: defaultdict[int, list[BatchHeader]] = defaultdict(list)
        try:
            for one in fetch_batches(self._admin.properties, COMMIT_LOG, ranges, limit=limit):
                headers[one.partition] += one.headers
        except BacklogError as error:
            if error.retryable and all(len(part.holes) < _MOST_HOLES for part in parts):
                return
        for part in parts:
            bad = [one.at for one in part.holes if not _explains(headers[part.number], one)]
            part.complete_since = max([part.complete_since, *bad])
            part.holes.clear()


def _share(limit: Deadline) -> Deadline:
    """Of one question before the log is read: a broker that is away takes all that it is given."""
    return Deadline(limit.remaining() / 3)


def _judge_truncated(part: _Part, position: int) -> None:
    """A broker that was restarted may not have recovered its ends yet; later they are the truth."""
    part.beyond_since = part.beyond_since or time.monotonic()
    if time.monotonic() - part.beyond_since >= TRUNCATED_SECONDS:
        part.lose()
        part.complete_since = utc_now()
        return
    part.error = EndsBehind(
        f"what groups committed is unknown: it ends at {part.high}, and was read to {position}",
        subject=f"{_SUBJECT}[{part.number}]",
        hint="try again when the brokers are back",
    )


def _explains(headers: Sequence[BatchHeader], hole: _Hole) -> bool:
    """Whether batches that belong to transactions, and that nobody cleaned, fill all of it."""
    at = hole.start
    first = bisect_right(headers, at, key=lambda one: one.base_offset) - 1
    for one in headers[max(0, first) :]:
        is_whole = one.record_count == one.last_offset - one.base_offset + 1
        if not (one.base_offset <= at <= one.last_offset and is_whole):
            return False
        if not (one.is_control or one.is_transactional):
            return False
        at = one.last_offset + 1
        if at >= hole.end:
            return True
    return False
