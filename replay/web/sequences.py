"""Which holes are told: those that retries can no longer fill."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Event

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Stream, mask_secrets
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.formats import format_plural
from backlogctl.kafka.clients import Properties, assign_partitions, make_admin, make_consumer
from backlogctl.kafka.errors import translate
from backlogctl.kafka.topics import TopicInfo, describe_topic, list_offsets
from backlogctl.monitoring.watch.board import Board, SequenceLook
from backlogctl.monitoring.watch.loop import OnOutage, Outages, RoundThread
from backlogctl.replay.audits.audit import GRACE
from backlogctl.replay.engine.kind import Workspace
from backlogctl_delivery.kafka import unwrap
from backlogctl_delivery.sequenced.checker import Hole, SequenceChecker, SequenceVerdict

_Chain = tuple[int, str, int]


@dataclass(slots=True)
class _Known:
    hole: Hole
    seen_at: float
    # What came before the reader may fill it.
    is_at_head: bool
    is_suspect: bool
    settled_at: float | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What is missing now: messages, and the newest holes that are lost."""

    lost: int
    suspect: int
    waiting: int
    holes: tuple[Hole, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """What a round of reading knew of partitions; times are of one clock that only counts up.

    Attributes:
        now: when the holes were listed.
        reached: a time of which the whole log was read; partitions without one are left out.
        warm: read for so long that nothing from before the reading is still retried.
        blurred: a message that may be any number came lately.
        has_forgotten: whether numberings were given up to save memory.
    """

    now: float
    reached: Mapping[int, float]
    warm: Collection[int]
    blurred: Collection[int]
    has_forgotten: bool = False


class Settling:
    """Follows holes from round to round.

    A hole only shrinks or splits, so that what is in an older one is as old.

    Args:
        grace: seconds in which a retry may still come, counted in what was read of the log.
        keep: seconds for which a settled hole is told.
    """

    def __init__(self, grace: float, keep: float) -> None:
        self._grace, self._keep = grace, keep
        self._known: dict[_Chain, list[_Known]] = {}
        # Told, though the reader began anew there.
        self._left: list[_Known] = []

    def update(self, holes: Iterable[Hole], seen: Round) -> Settled:
        """What the holes that there are now come to."""
        found: defaultdict[_Chain, list[_Known]] = defaultdict(list)
        for hole in sorted(holes):
            chain = (hole.partition, hole.producer, hole.epoch)
            found[chain].append(self._judge(self._find(chain, hole), hole, seen))
        self._known = dict(found)
        return self._count(seen.now)

    def leave(self, partition: int) -> None:
        """The reader begins anew in that partition: what is settled stays so."""
        for chain in [one for one in self._known if one[0] == partition]:
            self._left += [one for one in self._known.pop(chain) if one.settled_at is not None]

    def _find(self, chain: _Chain, hole: Hole) -> _Known | None:
        same = self._known.get(chain, [])
        at = bisect_right(same, hole.first, key=lambda one: one.hole.first) - 1
        return same[at] if at >= 0 and hole.last <= same[at].hole.last else None

    def _judge(self, before: _Known | None, hole: Hole, seen: Round) -> _Known:
        is_blurred = hole.partition in seen.blurred or seen.has_forgotten
        if before is None:
            return _Known(hole, seen.now, hole.partition not in seen.warm, is_blurred)
        if before.settled_at is not None:
            return replace(before, hole=hole)
        reached = seen.reached.get(hole.partition, float("-inf"))
        return replace(
            before,
            hole=hole,
            is_suspect=before.is_suspect or is_blurred,
            settled_at=seen.now if reached - before.seen_at >= self._grace else None,
        )

    def _count(self, now: float) -> Settled:
        self._left = [one for one in self._left if self._is_told(one, now)]
        here = [one for each in self._known.values() for one in each if not one.is_at_head]
        told = [*self._left, *(one for one in here if self._is_told(one, now))]
        lost = [one for one in told if not one.is_suspect]
        lost.sort(key=lambda one: (-(one.settled_at or now), one.hole))
        return Settled(
            lost=_sum(lost),
            suspect=_sum(one for one in told if one.is_suspect),
            waiting=_sum(one for one in here if one.settled_at is None),
            holes=tuple(one.hole for one in lost),
        )

    def _is_told(self, one: _Known, now: float) -> bool:
        is_old = one.settled_at is None or now - one.settled_at > self._keep
        return not one.is_at_head and not is_old


def _sum(holes: Iterable[_Known]) -> int:
    return sum(one.hole.last - one.hole.first + 1 for one in holes)


# Reads a stream's new messages beside its consumers, and has their numbers checked.

LOG = logging.getLogger(__name__)
_BATCH = 500
# Of each second of work three are left to others: the sampling shares the interpreter.
_REST = 3.0
_QUIET_SECONDS = 3.0
_ANSWER_SECONDS = 15.0
_MOST_CHAINS, _MOST_RANGES = 20_000, 50_000
_SHOWN = 5
_EXPIRED = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
_SETTINGS = {
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    # Its memory: what is fetched ahead, and a fetch more.
    "queued.min.messages": 1_000,
    "queued.max.messages.kbytes": 4_096,
    "fetch.message.max.bytes": 1_048_576,
    "fetch.max.bytes": 8_388_608,
}


class SequenceReader:
    """One stream, read from the log's end at the first round on. Of one thread.

    It assigns its partitions, commits nothing and needs no right on a group.

    Args:
        grace: seconds in which a producer's retry may still come.
        keep: seconds for which a hole is told.
        clock: seconds that only count up.
    """

    def __init__(
        self,
        stream: Stream,
        properties: Properties,
        grace: float,
        keep: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._properties = stream, properties
        self._grace, self._keep, self._clock = grace, keep, clock
        self._admin = make_admin(properties)
        self._consumer: Consumer | None = None
        self._checked = self._unreadable = 0
        self._topic_id = ""
        self._forget_all()

    def read(self, seconds: float, stop: Event) -> SequenceLook:
        """Reads what is new, for about so long at most, and says what is missing.

        Raises:
            TopicMissing, AccessDenied, ClusterUnreachable, KafkaFailure: what was read stays known;
                the next round goes on from there.
        """
        limit = Deadline(_ANSWER_SECONDS)
        topic = describe_topic(self._admin, self._stream.topic, limit)
        self._refuse_compacted(topic)
        if topic.topic_id != self._topic_id:
            self.close()
            self._forget_all()
            self._topic_id = topic.topic_id
        asked_at = self._clock()
        ends = list_offsets(
            self._admin, topic.name, range(topic.partitions), "latest", deadline=limit
        )
        self._place(ends, asked_at, limit)
        self._drain(ends, seconds, stop)
        # As far as the round before knew: what was read since may be its first.
        warm = self._list_warm()
        for partition, end in ends.items():
            if self._positions.get(partition, -1) >= end:
                self._reached[partition] = asked_at
        return self._tell(ends, warm)

    def tell_trouble(self, trouble: str) -> SequenceLook:
        """What is known while it cannot be read."""
        return self._make_look(None, None, trouble)

    def close(self) -> None:
        """Lets the connection go; what is known stays."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _forget_all(self) -> None:
        self._checker = SequenceChecker(max_chains=_MOST_CHAINS, max_ranges=_MOST_RANGES)
        self._settling = Settling(self._grace, self._keep)
        # By partition: the next offset, since when it is read, a time of which all was read.
        self._positions: dict[int, int] = {}
        self._began: dict[int, float] = {}
        self._reached: dict[int, float] = {}
        self._blurred: tuple[set[int], set[int]] = (set(), set())
        self._since: datetime | None = None
        self._taken_at: datetime | None = None
        self._lost: int | None = None
        self._suspect: int | None = None
        self._waiting = 0
        self._holes: tuple[str, ...] = ()

    def _refuse_compacted(self, topic: TopicInfo) -> None:
        if "compact" in topic.config.get("cleanup.policy", ""):
            raise KafkaFailure(
                "whether numbered messages are missing cannot be told: it is compacted",
                subject=f"topic {topic.name}",
                hint=f"leave `sequence` out of stream {self._stream.name}",
            )

    def _place(self, ends: dict[int, int], now: float, limit: Deadline) -> None:
        """Where partitions begin that are not read yet: at their end, since nobody knows what came
        before; one that was added to the topic meanwhile at its start."""
        for partition, end in ends.items():
            if end < self._positions.get(partition, 0):  # an unclean election cut the log
                self._begin_anew(partition)
        new = [partition for partition in ends if partition not in self._positions]
        added = [one for one in new if self._began and one > max(self._began)]
        starts = {partition: ends[partition] for partition in new}
        starts |= list_offsets(self._admin, self._stream.topic, added, "earliest", deadline=limit)
        for partition, start in starts.items():
            self._positions[partition], self._began[partition] = start, now
            self._since = utc_now()
        if new or self._consumer is None:
            self._assign()

    def _assign(self) -> None:
        if self._consumer is None:
            self._consumer = make_consumer(
                self._properties, {**_SETTINGS, "isolation.level": "read_committed"}
            )
        topic = self._stream.topic
        places = [TopicPartition(topic, p, at) for p, at in sorted(self._positions.items())]
        assign_partitions(self._consumer, places, _ANSWER_SECONDS)

    def _begin_anew(self, partition: int) -> None:
        self._settling.leave(partition)
        self._checker.forget(self._stream.topic, [partition])
        self._positions.pop(partition, None)
        self._reached.pop(partition, None)

    def _drain(self, ends: dict[int, int], seconds: float, stop: Event) -> None:
        """Reads up to these ends, as far as time and a quarter of one processor go."""
        limit, heard_at = Deadline(seconds), time.monotonic()
        self._blurred = (self._blurred[1], set())
        while self._is_behind(ends) and not limit.expired and not stop.is_set():
            used = time.thread_time()
            messages = self._consume()
            for message in messages:
                self._take(message)
            if messages:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > _QUIET_SECONDS:
                return  # an open transaction, or a leader that is away
            stop.wait((time.thread_time() - used) * _REST)

    def _is_behind(self, ends: dict[int, int]) -> bool:
        return any(self._positions.get(p, end) < end for p, end in ends.items())

    def _consume(self) -> list[Message]:
        assert self._consumer is not None
        try:
            return self._consumer.consume(_BATCH, 0.2)
        except KafkaException as error:
            raise translate(unwrap(error) or error, self._subject, "read it") from error

    def _take(self, message: Message) -> None:
        partition, offset, error = message.partition(), message.offset(), message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            self._endure(error, partition)
            return
        if partition is None or offset is None or offset < self._positions.get(partition, offset):
            return
        if partition not in self._positions:
            return  # it begins anew
        # The end is behind control records, which are not seen otherwise.
        self._positions[partition] = offset if error is not None else offset + 1
        if error is not None:
            return
        verdict = self._checker.check(message)
        if verdict is SequenceVerdict.UNREADABLE:
            self._unreadable += 1
            self._blurred[1].add(partition)
        elif verdict not in (SequenceVerdict.NOT_STAMPED, SequenceVerdict.FOREIGN):
            self._checked += 1

    def _endure(self, error: KafkaError, partition: int | None) -> None:
        if error.code() in _EXPIRED and partition is not None and partition >= 0:
            LOG.warning(
                "stream %s: retention passed the sequence check in partition %s, which goes on at "
                "its end",
                self._stream.name,
                partition,
            )
            self._begin_anew(partition)
        elif error.fatal() or not error.retriable():
            self.close()
            raise translate(error, self._subject, "read its new messages")

    @property
    def _subject(self) -> str:
        return f"topic {self._stream.topic}"

    def _list_warm(self) -> set[int]:
        return {
            partition
            for partition, reached in self._reached.items()
            if reached - self._began[partition] >= self._grace
        }

    def _tell(self, ends: dict[int, int], warm: set[int]) -> SequenceLook:
        seen = Round(
            self._clock(),
            self._reached,
            warm,
            self._blurred[0] | self._blurred[1],
            has_forgotten=self._checker.dropped > 0,
        )
        settled = self._settling.update(self._checker.list_holes(), seen)
        if self._checked and warm:
            self._lost, self._suspect = settled.lost, settled.suspect
        self._waiting = settled.waiting
        self._holes = tuple(_describe(one) for one in settled.holes[:_SHOWN])
        self._taken_at = utc_now()
        behind = sum(max(0, end - self._positions.get(p, 0)) for p, end in ends.items())
        return self._make_look(self._taken_at, behind, "")

    def _make_look(
        self, taken_at: datetime | None, behind: int | None, trouble: str
    ) -> SequenceLook:
        return SequenceLook(
            cluster=self._stream.cluster,
            taken_at=taken_at or self._taken_at,
            since=self._since,
            checked=self._checked,
            unreadable=self._unreadable,
            lost=self._lost,
            suspect=self._suspect,
            waiting=self._waiting,
            unknown=self._checker.unknown,
            behind=behind,
            holes=self._holes,
            trouble=trouble,
        )


def _describe(hole: Hole) -> str:
    count = hole.last - hole.first + 1
    places = str(hole.first) if count == 1 else f"{hole.first} to {hole.last}"
    return (
        f"{format_plural(count, 'message')} (sequence {places}) of producer {hole.producer}, epoch "
        f"{hole.epoch}, for partition {hole.partition}"
    )


# The rounds of the sequence check, in a thread of their own, beside the sampling.

_LEAST_SECONDS = 1.0


class SequenceWatch(RoundThread):
    """Reads the streams that say `sequence: true`."""

    def __init__(
        self,
        workspace: Workspace,
        board: Board,
        on_outage: OnOutage,
        grace: float | None = None,
    ) -> None:
        watch = workspace.config.watch
        self._interval, self._keep = watch.interval.total_seconds(), watch.horizon.total_seconds()
        super().__init__("backlog-sequences", self._interval)
        self._workspace, self._board = workspace, board
        self._outages = Outages(on_outage)
        self._grace = GRACE.total_seconds() if grace is None else grace
        self._streams = [one for one in workspace.config.streams.values() if one.sequence]
        self._readers: dict[str, SequenceReader] = {}
        self._told: dict[str, int] = {}

    def look_once(self) -> None:
        """Each stream for its share of the interval."""
        for stream in self._streams:
            if not self._stop.is_set():
                self._look(stream)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def _look(self, stream: Stream) -> None:
        what = f"the sequence check of {stream.name}"
        try:
            reader = self._find_reader(stream)
            seconds = max(_LEAST_SECONDS, self._interval / len(self._streams))
            look = reader.read(seconds, self._stop)
        except BacklogError as error:
            self._outages.begin(what, error)
            self._fail(stream, mask_secrets(str(error)))
        except Exception as error:
            # A round must not end all rounds in silence.
            LOG.exception("%s failed", what)
            self._fail(
                stream, f"internal error ({type(error).__name__}); see the log and report it"
            )
        else:
            self._outages.end(what)
            self._board.put_sequence(stream.name, look)
            self._tell_new(stream, look)

    def _find_reader(self, stream: Stream) -> SequenceReader:
        if stream.name not in self._readers:
            properties = self._workspace.properties(stream)
            self._readers[stream.name] = SequenceReader(stream, properties, self._grace, self._keep)
        return self._readers[stream.name]

    def _fail(self, stream: Stream, trouble: str) -> None:
        reader = self._readers.get(stream.name)
        look = (
            SequenceLook(stream.cluster, trouble=trouble)
            if reader is None
            else reader.tell_trouble(trouble)
        )
        self._board.put_sequence(stream.name, look)

    def _tell_new(self, stream: Stream, look: SequenceLook) -> None:
        lost = look.lost or 0
        if lost > self._told.get(stream.name, 0):
            LOG.warning(
                "stream %s: %s numbered messages are missing; next: backlogctl audit sequence %s",
                stream.name,
                lost,
                stream.name,
            )
        self._told[stream.name] = lost
