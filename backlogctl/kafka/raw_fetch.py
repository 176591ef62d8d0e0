"""Record batches of ranges of a topic as they lie in its log, by the Fetch request itself.

confluent-kafka gives messages only: their batches, and the control records, are gone by then. Read
uncommitted, aborted transactions and control records are seen too.
"""

from __future__ import annotations

import heapq
import queue
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.kafka.batches import CODECS, BatchHeader, Scan, scan_batches
from backlogctl.kafka.clients import Properties, connect, find_addresses
from backlogctl.kafka.leaders import read_leaders
from backlogctl.kafka.raw_client import (
    RawClient,
    give_back,
    take_client,
    translate_error,
    translate_properties,
)
from backlogctl.kafka.topics import list_offsets
from backlogctl.values import OffsetRange
from backlogctl_delivery.kafka import AccessDenied, EncryptionRefused, LoginRefused

Look = Callable[[], object]
"""Called often; what it raises ends the reading."""
Isolation = Literal["read_uncommitted", "read_committed"]

ENDLESS = 2**62
"""The end of a range that is read on for as long as it is asked for."""
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
        headers: read committed, neither of control batches, nor of aborted or empty ones.
        data: the bytes of each of these batches. The first and the last may reach beyond the range.
        old_format: entries of format 0 or 1; see `batches.Scan`.
        passed_over: offsets before these batches that had expired, or were deleted, before they
            were read.
        next_offset: where the partition is read on; never more than the range's end.
        is_end: nothing more can be read of it now.
    """

    partition: int
    headers: tuple[BatchHeader, ...]
    old_format: int
    passed_over: OffsetRange | None
    next_offset: int
    data: tuple[memoryview, ...] = ()
    is_end: bool = False


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
    """Batches of the ranges, read uncommitted; the partitions take turns, each in its order.

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
    fetch = RawFetch(properties, topic, ranges)
    try:
        while not fetch.is_done:
            if look is not None:
                look()
            fetch.check_time(limit)
            yield from fetch.read(_LOOK_EACH)
    finally:
        fetch.close()


class RawFetch:
    """Reads ranges of a topic; the next requests are under way while its caller works on an answer.

    Args:
        ranges: one of a partition; up to ENDLESS it follows the log.
        max_bytes: of an answer.
    """

    def __init__(
        self,
        properties: Properties,
        topic: str,
        ranges: Sequence[OffsetRange],
        isolation: Isolation = "read_uncommitted",
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        settings, reason = translate_properties(properties)
        if settings is None:
            raise KafkaFailure(
                f"its batches cannot be read {reason}",
                subject=f"topic {topic}",
                hint="kafka-python reads them: docs/clusters.md says which logins it takes",
            )
        self._properties, self._topic = properties, topic
        self._settings = {**settings, "receive_message_max_bytes": _LARGEST_ANSWER}
        self._places = {one.partition: _Place(one.end, one.start) for one in ranges if one.count}
        self._is_committed, self._max_bytes = isolation == "read_committed", max_bytes
        self._client: RawClient | None = None
        self._leaders: dict[int, int] = {}
        self._asked: defaultdict[int, int] = defaultdict(int)
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._turn = 0
        self._has_connected = False
        self._patience = Deadline(_PATIENCE)
        self._subject = f"topic {topic} of cluster {find_addresses(properties)}"

    @property
    def is_done(self) -> bool:
        return not self._places

    def read(self, within: float) -> list[FetchedBatches]:
        """What the next answer had; nothing where there is none within so many seconds.
        Raises as `fetch_batches`.
        """
        self._ask()
        try:
            answer = self._answers.get(timeout=within)
        except queue.Empty:
            return []
        if answer.client is not self._client:
            return []  # closed meanwhile; it was asked again
        self._asked[answer.node] -= 1
        for partition in answer.partitions:
            self._places[partition].is_asked = False
        if isinstance(answer.outcome, Exception):
            self._endure(answer.outcome, answer.partitions)
            return []
        found = list(self._take(answer))
        self._ask()
        return found

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

    def check_time(self, limit: Deadline | None) -> None:
        """Raises KafkaFailure, with where it is, when the limit is over."""
        if limit is None or not limit.expired:
            return
        place = ", ".join(f"[{p}] at {one.position}" for p, one in sorted(self._places.items())[:5])
        raise KafkaFailure(
            f"could not read its batch headers within {limit.seconds:g} s: {place}",
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
            self._has_connected = True
        return self._client

    def _send(self, client: RawClient, node: int, partitions: tuple[int, ...]) -> None:
        request = self._make_request(partitions)
        for partition in partitions:
            self._places[partition].is_asked = True
        self._asked[node] += 1

        sent = client.send_soon(request, node)

        def take(_: object) -> None:
            outcome = sent.value if sent.exception is None else sent.exception
            self._answers.put(_Answer(client, node, partitions, outcome))

        sent.add_both(take)

    def _make_request(self, partitions: Sequence[int]) -> Any:
        from kafka.protocol.consumer import FetchRequest

        wanted = FetchRequest.FetchTopic
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=int(self._is_committed),
            topics=[
                wanted(
                    topic=self._topic,
                    partitions=[
                        wanted.FetchPartition(
                            partition=partition,
                            fetch_offset=self._places[partition].position,
                            partition_max_bytes=self._max_bytes,
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
                yield from self._read(part)
            elif is_empty:
                yield from self._rest(part)

    def _read(self, part: Any) -> Iterator[FetchedBatches]:
        partition, view = part.partition_index, memoryview(part.records)
        position = self._places[partition].position
        scan = scan_batches(view, f"topic {self._topic}[{partition}]", position)
        # The last entry of an answer may be cut; the first one of all never is.
        if scan.next_offset is None or scan.next_offset <= position:
            return
        batches = [
            (header, view[at : at + header.size])
            for header, at in zip(scan.headers, scan.places, strict=True)
        ]
        if self._is_committed:
            begun = [(one.first_offset, one.producer_id) for one in part.aborted_transactions or ()]
            batches = list(_list_committed(batches, begun))
        yield self._move(partition, scan, batches, is_end=scan.next_offset >= self._find_end(part))

    def _rest(self, part: Any) -> Iterator[FetchedBatches]:
        """Of a partition that has nothing here."""
        partition, end = part.partition_index, self._find_end(part)
        place = self._places[partition]
        if end >= place.end:
            # Compaction has left nothing between here and the end of the range.
            yield self._move(partition, Scan((), 0, place.end, False))
        elif place.end == ENDLESS:
            self._patience = Deadline(_PATIENCE)
            is_end = place.position >= end
            yield FetchedBatches(partition, (), 0, None, place.position, is_end=is_end)
        else:
            self._endure(_ends_before(partition, end, self._subject), [partition])

    def _find_end(self, part: Any) -> int:
        end: int = part.last_stable_offset if self._is_committed else part.high_watermark
        return end

    def _move(
        self,
        partition: int,
        scan: Scan,
        batches: Sequence[tuple[BatchHeader, memoryview]] = (),
        passed_over: OffsetRange | None = None,
        *,
        is_end: bool = False,
    ) -> FetchedBatches:
        place = self._places[partition]
        start, reached = place.position, scan.next_offset or place.position
        inside = [
            one for one in batches if one[0].last_offset >= start and one[0].base_offset < place.end
        ]
        self._turn += 1
        place.served, place.position = self._turn, min(reached, place.end)
        self._patience = Deadline(_PATIENCE)
        if place.position >= place.end:
            del self._places[partition]
        headers = tuple(header for header, _ in inside)
        data = tuple(batch for _, batch in inside)
        told = (partition, headers, scan.old_format, passed_over, place.position)
        return FetchedBatches(*told, data, is_end)

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
        yield self._move(partition, Scan((), 0, start, False), passed_over=passed)

    def _endure(self, error: Exception, partitions: Sequence[int]) -> None:
        """What may pass is tried again; raises what may not, or has lasted too long."""
        from kafka.errors import TopicAuthorizationFailedError

        if isinstance(error, TopicAuthorizationFailedError):
            raise AccessDenied(
                "could not read its batch headers: access denied",
                subject=self._subject,
                hint=f"`Read` on topic {self._topic} must be granted",
            ) from error
        ours = translate_error(error, "read its batch headers", self._subject)
        # Work under way waits for a password that is changed, broker by broker.
        is_refused = isinstance(ours, LoginRefused | EncryptionRefused) and not self._has_connected
        if self._patience.expired or is_refused or not ours.retryable:
            raise ours from error
        for partition in partitions:
            self._leaders.pop(partition, None)
            self._places[partition].not_before = time.monotonic() + _PAUSE


def _list_committed(
    batches: Sequence[tuple[BatchHeader, memoryview]], begun: list[tuple[int, int]]
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Aborted transactions by their first offsets and their ends in the log, as Java does.

    Args:
        begun: first offset and producer id of those that were aborted.
    """
    heapq.heapify(begun)
    aborted: set[int] = set()
    for header, batch in batches:
        while begun and begun[0][0] <= header.last_offset:
            aborted.add(heapq.heappop(begun)[1])
        if header.is_control:
            if header.is_commit is False:
                aborted.discard(header.producer_id)
        elif header.record_count and not (
            header.is_transactional and header.producer_id in aborted
        ):
            yield header, batch


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


def _ends_before(partition: int, end: int, subject: str) -> BacklogError:
    return KafkaFailure(
        f"could not read its batch headers: partition {partition} ends at offset "
        f"{end}, before the range does",
        subject=subject,
        hint="take ranges from offsets that the cluster itself gives",
        retryable=True,
    )
