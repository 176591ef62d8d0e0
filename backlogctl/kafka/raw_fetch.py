"""Batch headers of ranges of a topic, by the Fetch request itself.

confluent-kafka gives messages only: their batches, and the control records, are gone by then. Asked
as read uncommitted, so that aborted transactions and control records are seen too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.kafka.batches import CODECS, BatchHeader, Scan, scan_batches
from backlogctl.kafka.clients import Properties, connect, find_addresses
from backlogctl.kafka.raw_client import (
    RawClient,
    give_back,
    read_leaders,
    take_client,
    translate_error,
    translate_properties,
)
from backlogctl.kafka.topics import list_offsets
from backlogctl.values import OffsetRange
from backlogctl_delivery.kafka import AccessDenied

Look = Callable[[], object]
"""Called often; what it raises ends the reading."""

# Topic names in requests until version 12, ids after; 4 has what follows from transactions.
_OLDEST, _NEWEST = 4, 12
_MAX_BYTES = 4 * 1024 * 1024
# One message may be larger than any limit of the request (KIP-74).
_LARGEST_ANSWER = 2**31 - 1
_MAX_WAIT_MS = 100
_AT_ONCE = 2  # requests under way to a broker: it reads for one while we read the other
_PARTITIONS = 64
_PAUSE = 0.2
_LOOK_EACH = 0.2
_ANSWER_SECONDS = 30.0
_START_SECONDS = 5.0
# Without any answer that has something, for as long as brokers take to elect leaders.
_PATIENCE = 60.0
_OUT_OF_RANGE = 1


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """What one answer had of a partition, in the order of its log.

    Attributes:
        old_format: entries of format 0 or 1; see `batches.Scan`.
        passed_over: offsets before these batches that had expired, or were deleted, before they
            were read.
        next_offset: where the partition is read on; never more than the range's end.
    """

    partition: int
    headers: tuple[BatchHeader, ...]
    old_format: int
    passed_over: OffsetRange | None
    next_offset: int


@dataclass(slots=True)
class _Place:
    """Where a partition is read."""

    end: int
    position: int
    served: int = 0  # when it had something last: who waits longest comes first
    not_before: float = 0.0
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    client: RawClient
    node: int
    partitions: tuple[int, ...]
    outcome: Any  # the answer, or an exception


def fetch_batches(
    properties: Properties,
    topic: str,
    ranges: Sequence[OffsetRange],
    *,
    limit: Deadline | None = None,
    look: Look | None = None,
) -> Iterator[FetchedBatches]:
    """Batch headers of the ranges; the partitions take turns, each in the order of its log.

    A batch belongs to a range that it overlaps. What moves while it is read (leaders, brokers,
    the start of a log) is followed.

    Args:
        limit: for all of it; None has none, but a cluster that gives nothing for a minute fails.
        look: called at least five times a second.

    Raises:
        KafkaFailure: also where kafka-python cannot take these properties, or the log ends before
            a range does.
        BatchesUnreadable, TopicMissing, ClusterUnreachable.
    """
    settings, reason = translate_properties(properties)
    if settings is None:
        raise KafkaFailure(
            f"its batch headers cannot be read {reason}",
            subject=f"topic {topic}",
            hint="kafka-python reads them, which takes SASL PLAIN and SCRAM, and PEM files by path",
        )
    places = {one.partition: _Place(one.end, one.start) for one in ranges if one.count}
    fetch = _Fetch(properties, settings, topic, places, limit, look or (lambda: None))
    try:
        if places:
            yield from fetch.run()
    finally:
        fetch.close()


class _Fetch:
    def __init__(
        self,
        properties: Properties,
        settings: dict[str, Any],
        topic: str,
        places: dict[int, _Place],
        limit: Deadline | None,
        look: Look,
    ) -> None:
        self._properties, self._topic = properties, topic
        self._settings = {**settings, "receive_message_max_bytes": _LARGEST_ANSWER}
        self._places, self._limit, self._look = places, limit, look
        self._client: RawClient | None = None
        self._leaders: dict[int, int] = {}
        self._asked: defaultdict[int, int] = defaultdict(int)
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._turn = 0
        self._patience = Deadline(_PATIENCE)
        self._subject = f"topic {topic} of cluster {find_addresses(properties)}"

    def run(self) -> Iterator[FetchedBatches]:
        while self._places:
            self._look()
            self._check_time()
            self._ask()
            try:
                answer = self._answers.get(timeout=_LOOK_EACH)
            except queue.Empty:
                continue
            if answer.client is not self._client:
                continue  # closed meanwhile; it was asked again
            self._asked[answer.node] -= 1
            for partition in answer.partitions:
                self._places[partition].is_asked = False
            if isinstance(answer.outcome, Exception):
                self._endure(answer.outcome, answer.partitions)
            else:
                yield from self._take(answer)

    def close(self, *, is_well: bool = True) -> None:
        if self._client is not None:
            if is_well and not any(self._asked.values()):
                give_back(self._settings, self._client)
            else:
                self._client.close()
            self._client = None
        self._asked.clear()
        for place in self._places.values():
            place.is_asked = False

    def _check_time(self) -> None:
        if self._limit is None or not self._limit.expired:
            return
        place = ", ".join(f"[{p}] at {one.position}" for p, one in sorted(self._places.items())[:5])
        raise KafkaFailure(
            f"could not read its batch headers within {self._limit.seconds:g} s: {place}",
            subject=self._subject,
            hint="read a shorter range, or take more time",
            retryable=True,
        )

    def _ask(self) -> None:
        """Sends what may be sent: half of a broker's partitions in each of its two requests."""
        now = time.monotonic()
        ready = [p for p, one in self._places.items() if not one.is_asked and one.not_before <= now]
        if not ready:
            return
        try:
            client = self._connect()
            if any(partition not in self._leaders for partition in ready):
                limit = Deadline(min(_ANSWER_SECONDS, max(1.0, self._patience.remaining())))
                self._leaders = read_leaders(client, self._topic, limit)
        except Exception as error:  # noqa: BLE001 - translated, and raised if it lasts
            self._endure(error, ready)
            return
        by_node: defaultdict[int, list[int]] = defaultdict(list)
        for partition in sorted(ready, key=lambda one: self._places[one].served):
            if partition in self._leaders:
                by_node[self._leaders[partition]].append(partition)
            else:
                self._endure(_no_leader(partition, self._subject), [partition])
        for node, partitions in by_node.items():
            while partitions and (free := _AT_ONCE - self._asked[node]) > 0:
                count = min(_PARTITIONS, -(-len(partitions) // free))
                self._send(client, node, tuple(partitions[:count]))
                partitions = partitions[count:]

    def _connect(self) -> RawClient:
        if self._client is None:
            limit = Deadline(_ANSWER_SECONDS)
            self._client = take_client(self._settings, limit, self._properties)
        return self._client

    def _send(self, client: RawClient, node: int, partitions: tuple[int, ...]) -> None:
        request = self._make_request(partitions)
        for partition in partitions:
            self._places[partition].is_asked = True
        self._asked[node] += 1

        def work() -> None:
            try:
                outcome = client.run(lambda: client.send(request, node), Deadline(_ANSWER_SECONDS))
            except Exception as error:  # noqa: BLE001 - handed to the reader
                outcome = error
            self._answers.put(_Answer(client, node, partitions, outcome))

        # `run` hands its work to the client's own thread. A daemon: a Ctrl-C waits for no broker.
        threading.Thread(target=work, name="backlog-fetch", daemon=True).start()

    def _make_request(self, partitions: Sequence[int]) -> Any:
        from kafka.protocol.consumer import FetchRequest

        wanted = FetchRequest.FetchTopic
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=_MAX_BYTES,
            isolation_level=0,
            topics=[
                wanted(
                    topic=self._topic,
                    partitions=[
                        wanted.FetchPartition(
                            partition=partition,
                            fetch_offset=self._places[partition].position,
                            partition_max_bytes=_MAX_BYTES,
                        )
                        for partition in partitions
                    ],
                )
            ],
            min_version=_OLDEST,
            max_version=_NEWEST,
        )

    def _take(self, answer: _Answer) -> Iterator[FetchedBatches]:
        from kafka.errors import for_code

        found = [part for one in answer.outcome.responses for part in one.partitions]
        if answer.outcome.error_code:
            self._endure(for_code(answer.outcome.error_code)(), answer.partitions)
            return
        is_empty = not any(part.records or part.error_code for part in found)
        for part in found:
            partition = part.partition_index
            if part.error_code == _OUT_OF_RANGE:
                yield from self._pass_over(partition)
            elif part.error_code:
                self._endure(for_code(part.error_code)(), [partition])
            elif part.records:
                yield from self._read(partition, part.records)
            elif is_empty and part.high_watermark >= self._places[partition].end:
                # Compaction has left nothing between here and the end of the range.
                yield self._move(partition, Scan((), 0, self._places[partition].end, False))
            elif is_empty:
                self._endure(_ends_before(part, self._subject), [partition])

    def _read(self, partition: int, records: bytes) -> Iterator[FetchedBatches]:
        position = self._places[partition].position
        scan = scan_batches(records, f"topic {self._topic}[{partition}]", position)
        # The last entry of an answer may be cut; the first one of all never is.
        if scan.next_offset is not None and scan.next_offset > position:
            yield self._move(partition, scan)

    def _move(
        self, partition: int, scan: Scan, passed_over: OffsetRange | None = None
    ) -> FetchedBatches:
        place = self._places[partition]
        start, reached = place.position, scan.next_offset or place.position
        headers = scan.headers
        if headers and (headers[0].last_offset < start or headers[-1].base_offset >= place.end):
            headers = tuple(
                one for one in headers if one.last_offset >= start and one.base_offset < place.end
            )
        self._turn += 1
        place.served, place.position = self._turn, min(reached, place.end)
        self._patience = Deadline(_PATIENCE)
        if place.position >= place.end:
            del self._places[partition]
        return FetchedBatches(partition, headers, scan.old_format, passed_over, place.position)

    def _pass_over(self, partition: int) -> Iterator[FetchedBatches]:
        """The log starts later by now, or ends before."""
        place = self._places[partition]
        limit = Deadline(_START_SECONDS)
        try:
            starts = list_offsets(
                self._properties, self._topic, [partition], "earliest", deadline=limit
            )
        except KafkaFailure as error:
            self._endure(error, [partition])
            return
        start = starts[partition]
        if start <= place.position:
            raise KafkaFailure(
                f"could not read on at offset {place.position}: its log ends before",
                subject=f"topic {self._topic}[{partition}]",
                hint="was it made anew, or did a leader start without its newest messages? Look "
                "for unclean elections, then read again",
            )
        passed = OffsetRange(partition, place.position, min(start, place.end))
        yield self._move(partition, Scan((), 0, start, False), passed)

    def _endure(self, error: Exception, partitions: Sequence[int]) -> None:
        """What may pass is tried again; raises what may not, or has lasted too long."""
        from kafka.errors import TopicAuthorizationFailedError, UnknownBrokerIdError

        if isinstance(error, TopicAuthorizationFailedError):
            raise AccessDenied(
                "could not read its batch headers: access denied",
                subject=self._subject,
                hint=f"`Read` on topic {self._topic} must be granted",
            ) from error
        ours = translate_error(error, "read its batch headers", self._subject)
        is_new_broker = isinstance(error, UnknownBrokerIdError)
        if self._patience.expired or not (ours.retryable or is_new_broker):
            raise ours from error
        if is_new_broker:
            self.close(is_well=False)  # a new client knows all brokers
        for partition in partitions:
            self._leaders.pop(partition, None)
            self._places[partition].not_before = time.monotonic() + _PAUSE


# How many offsets of a partition tell its codec, and of how many partitions.
_TELLING_OFFSETS, _TELLING_PARTITIONS = 5, 32
_CODEC_SECONDS = 10.0


def find_codec(
    properties: Properties, topic: str, committed: Mapping[int, int | None]
) -> str | None:
    """The `compression.type` for messages that the clients of a group shall read.

    Not each client knows each codec: KafkaJS by itself only gzip, kafka-python by itself no lz4.
    What they went past, they can read; else what they meet next. Batches that are not compressed
    tell nothing where others are. What the cluster's `properties` say goes before.

    Args:
        committed: where the group is, by partition.

    Returns:
        None where the batch headers could not be read.
    """
    if told := properties.get("compression.type") or properties.get("compression.codec"):
        return str(told)
    limit = Deadline(_CODEC_SECONDS)
    numbers = sorted(committed)[:_TELLING_PARTITIONS]
    try:
        admin = connect(properties)
        low = list_offsets(admin, topic, numbers, "earliest", deadline=limit)
        high = list_offsets(admin, topic, numbers, "latest", "read_uncommitted", limit)
        # One whose commit has expired goes on at the log start.
        places = {
            n: min(max(at, low[n]), high[n]) for n in numbers if (at := committed[n]) is not None
        }
        passed = [
            OffsetRange(n, max(low[n], at - _TELLING_OFFSETS), at) for n, at in places.items()
        ]
        nexts = [
            OffsetRange(n, at, min(high[n], at + _TELLING_OFFSETS)) for n, at in places.items()
        ]
        for ranges in (passed, nexts):
            if found := _list_codecs(properties, topic, ranges, limit):
                used = Counter(codec for codec in found if codec in CODECS[1:])
                return max(used, key=lambda codec: used[codec], default="none")
    except BacklogError:
        return None
    return "none"


def _list_codecs(
    properties: Properties, topic: str, ranges: Sequence[OffsetRange], limit: Deadline
) -> list[str]:
    """Of each batch that holds data."""
    return [
        header.codec
        for fetched in fetch_batches(properties, topic, ranges, limit=limit)
        for header in fetched.headers
        if not header.is_control
    ]


def _no_leader(partition: int, subject: str) -> BacklogError:
    return KafkaFailure(
        f"could not read its batch headers: partition {partition} has no leader, or is not there",
        subject=subject,
        hint="look at the brokers that hold its replicas",
        retryable=True,
    )


def _ends_before(part: Any, subject: str) -> BacklogError:
    return KafkaFailure(
        f"could not read its batch headers: partition {part.partition_index} ends at offset "
        f"{part.high_watermark}, before the range does",
        subject=subject,
        hint="take ranges from offsets that the cluster itself gives",
        retryable=True,
    )
