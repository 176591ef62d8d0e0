"""What of the temporary topic is unread, by reading it (protocol P4.8).

Lag is no test: each transaction leaves a control record, which keeps it above zero for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from backlogctl.clock import Deadline
from backlogctl.errors import ClusterUnreachable
from backlogctl.kafka.clients import Admin, assign_partitions, find_addresses, make_consumer
from backlogctl.kafka.errors import translate
from backlogctl.kafka.groups import GroupStanding, read_standing

IDLE_SECONDS = 60.0
_READ_AT_ONCE = 10_000
_SETTINGS: Mapping[str, object] = {
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 50,
}


def find_unread(
    admin: Admin,
    properties: Mapping[str, str],
    topic: str,
    group: str,
    partitions: int,
    limit: Deadline | None = None,
    *,
    expires: bool = False,
) -> dict[int, int]:
    """The first data record in `[committed, LSO)` of each partition that has one.

    Empty when the group has read every committed message.

    Args:
        expires: retention may have removed unread messages; it is read from the log start then.
            Else that is an error: in a temporary topic nothing expires.

    Raises:
        ClusterUnreachable, KafkaFailure: it is not known.
    """
    deadline = limit or Deadline(60.0)
    there = read_standing(admin, group, topic, range(partitions), deadline, require_stable=True)
    ends = there.ends
    starts = {n: there.find_next(n) if expires else there.commits[n] or 0 for n in ends}
    lagging = {number: at for number, at in starts.items() if at < ends[number]}
    found: dict[int, int] = {}
    reading = _Reading(properties, topic, lagging, ends)
    for batch in reading.batches(lambda: None, deadline.remaining()):
        for number, offset in batch.first.items():
            if number not in found:
                found[number] = offset
                reading.leave(number)
    return dict(sorted(found.items()))


def count_records(
    properties: Mapping[str, str],
    topic: str,
    ends: Mapping[int, int],
    look: Callable[[], None] = lambda: None,
    *,
    starts: Mapping[int, int] | None = None,
) -> dict[int, int]:
    """Committed data records of each partition up to `ends`, from `starts` or its beginning on.

    Args:
        look: called between two batches; raises what stops the run.

    Raises:
        ClusterUnreachable, KafkaFailure: it was not read to the end.
    """
    counts = dict.fromkeys(ends, 0)
    known = starts or {}
    begins = {n: known.get(n, 0) for n, end in ends.items() if end > known.get(n, 0)}
    for batch in _Reading(properties, topic, begins, ends).batches(look, IDLE_SECONDS):
        for number, count in batch.counts.items():
            counts[number] += count
    return counts


@dataclass(frozen=True, slots=True)
class _Batch:
    """Data records of one read, by partition: how many, and the first one's offset."""

    counts: Mapping[int, int]
    first: Mapping[int, int]


class _Reading:
    """A committed read of several partitions up to their ends."""

    def __init__(
        self,
        properties: Mapping[str, str],
        topic: str,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
    ) -> None:
        self._properties = properties
        self._topic = topic
        self._starts = starts
        self._ends = ends
        self._open = set(starts)

    def leave(self, partition: int) -> None:
        self._open.discard(partition)

    def batches(self, look: Callable[[], None], idle: float) -> Iterator[_Batch]:
        """Until every partition is at its end, or left.
        `idle`: seconds without a record after which it is given up.
        """
        if not self._open:
            return
        subject, limit = f"topic {self._topic}", Deadline(idle)
        starts = [TopicPartition(self._topic, p, at) for p, at in self._starts.items()]
        consumer = make_consumer(self._properties, _SETTINGS)
        try:
            assign_partitions(consumer, starts)
            while self._open:
                look()
                if limit.expired:
                    raise ClusterUnreachable(
                        f"could not read it to the end: nothing came for {idle:g} s",
                        subject=subject,
                        hint=f"check the brokers at {find_addresses(self._properties)}",
                    )
                messages = consumer.consume(_READ_AT_ONCE, 0.2)
                if messages:
                    limit = Deadline(idle)
                    before = set(self._open)
                    yield self._sort(messages, subject)
                    if left := before - self._open:
                        consumer.pause([TopicPartition(self._topic, number) for number in left])
        except KafkaException as error:
            raise translate(error, subject, "read it") from error
        finally:
            consumer.close()

    def _sort(self, messages: list[Message], subject: str) -> _Batch:
        """Counts a batch; whole columns at a time, since there may be millions."""
        data = [message for message in messages if message.error() is None]
        places = cast(list[int], [message.partition() for message in data])
        offsets = cast(list[int], [message.offset() for message in data])
        # In the order they were read, so the last of a partition is its highest.
        last = dict(zip(places, offsets, strict=True))
        if any(at >= self._ends[place] for place, at in last.items()):
            pairs = zip(places, offsets, strict=True)
            inside = [(place, at) for place, at in pairs if at < self._ends[place]]
            places, offsets = [place for place, _ in inside], [at for _, at in inside]
        first = dict(zip(reversed(places), reversed(offsets), strict=True))
        for place, at in last.items():
            if at + 1 >= self._ends[place]:
                self._open.discard(place)
        for message in messages:
            if len(data) < len(messages) and (error := message.error()) is not None:
                self._note_error(message, error, subject)
        return _Batch(Counter(places), first)

    def _note_error(self, message: Message, error: KafkaError, subject: str) -> None:
        if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            return
        if error.code() != KafkaError._PARTITION_EOF:
            raise translate(error, subject, "read it")
        place, at = message.partition(), message.offset()
        if place in self._open and at is not None and at >= self._ends[place]:
            self._open.discard(place)


# What is left in both topics while a backlog is drained.


@dataclass(frozen=True, slots=True)
class Lags:
    """Offsets left, so upper bounds on messages; by partition.

    Attributes:
        source: not relayed yet.
        temporary: relayed, and not handled yet.
    """

    source: Mapping[int, int]
    temporary: Mapping[int, int]

    @property
    def source_total(self) -> int:
        return sum(self.source.values())

    @property
    def temporary_total(self) -> int:
        return sum(self.temporary.values())


def read_lags(
    admin: Admin,
    *,
    source: str,
    group: str,
    partitions: int,
    temporary: str,
    recovery_group: str,
    temporary_partitions: int,
    last_offsets: Mapping[int, int] | None = None,
    limit: Deadline | None = None,
) -> Lags:
    """Reads both lags; commits first, then the ends, so that no lag is negative.

    Args:
        last_offsets: the last data record of temporary partitions, where it is known: what lies
            behind it are control records, which no consumer commits past.

    Raises:
        EndsBehind, LogTruncated: an end lies below a commit, or below `last_offsets`.
    """
    deadline = limit or Deadline(30.0)
    known = last_offsets or {}
    left = read_standing(admin, group, source, range(partitions), deadline)
    copied = read_standing(
        admin,
        recovery_group,
        temporary,
        range(temporary_partitions),
        deadline,
        written={number: last + 1 for number, last in known.items()},
    )
    data = {p: min(end, known[p] + 1) if p in known else end for p, end in copied.ends.items()}
    return Lags(left.lag, GroupStanding(copied.commits, data, copied.log_starts).lag)
