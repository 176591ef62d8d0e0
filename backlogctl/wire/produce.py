"""A transactional producer of whole record batches (KIP-98).

It makes the requests itself: InitProducerId, which fences; AddPartitionsToTxn and Produce;
AddOffsetsToTxn and TxnOffsetCommit; EndTxn. These versions of them are right for old and for new
brokers: one that knows KIP-890 goes on with the same epoch where its client does not ask for more.
Each transaction gets an epoch of its own here, so that one without its markers can be told: see
`kafka.markers`.
"""

from __future__ import annotations

import struct
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from backlogctl.clock import Deadline
from backlogctl.kafka.batches import add_sequence
from backlogctl.kafka.leaders import ask_leader_epochs, read_leaders
from backlogctl.kafka.markers import (
    Place,
    ProducerIdAndEpoch,
    Unmarked,
    find_unmarked,
    is_pending,
    refuse_unmarked,
)
from backlogctl.kafka.raw_client import (
    Coordinators,
    RawClient,
)
from backlogctl.wire.codecs import Unsent, make_batch

Result = TypeVar("Result")

# The last versions before KIP-890, and before topics have ids in requests.
_INIT, _ADD, _OFFSETS, _COMMIT, _END, _PRODUCE = 4, 3, 3, 3, 3, 9
_IN_FLIGHT = 4  # of one broker; it knows the last five batches of a producer and partition again
# Of the batches of a request; one that is larger goes alone. Brokers take 100 MiB of a request by
# default (`socket.request.max.bytes`), and hold all of it in memory.
_REQUEST_BYTES = 8 << 20
_HEAD_BYTES = 100  # of a request beside its batches, and of each beside itself: less
_PAUSE, _LONG_PAUSE = 0.01, 0.1
_ANSWER_SECONDS = 30.0
_ACKS_ALL, _NOBODY = -1, -1
# May pass when the leader is asked for again, with the same sequence numbers.
_RESENT = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.KAFKA_STORAGE_ERROR,
        # Of a batch behind one that is sent again.
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)
_MAGIC = b"CGMDv2:"


@dataclass(frozen=True, slots=True)
class Membership:
    """A member of a group, as its commits name it; without one the generation is -1."""

    group: str
    generation: int = -1
    member: str = ""
    instance: str | None = None


def read_membership(metadata: bytes) -> Membership:
    """librdkafka's `ConsumerGroupMetadata` (rd_kafka_consumer_group_metadata_write).
    Raises ValueError: it has another form.
    """
    if not metadata.startswith(_MAGIC):
        raise ValueError(f"group metadata begins with {metadata[:8]!r}")
    (generation,) = struct.unpack_from("=i", metadata, len(_MAGIC))
    group, member, rest = metadata[len(_MAGIC) + 4 :].split(b"\0", 2)
    instance = None if rest[:1] == b"\1" else rest[1:].split(b"\0", 1)[0].decode()
    return Membership(group.decode(), generation, member.decode(), instance)


@dataclass(frozen=True, slots=True)
class _Sealed:
    place: Place
    sequence: int
    count: int
    batch: bytearray


def _cut(batches: Iterable[_Sealed], limit: int) -> Iterator[list[_Sealed]]:
    """In their order; none has more than `limit` bytes unless a single batch does."""
    some: list[_Sealed] = []
    size = 0
    for one in batches:
        if some and size + len(one.batch) > limit:
            yield some
            some, size = [], 0
        some.append(one)
        size += len(one.batch)
    if some:
        yield some


class WireProducer:
    """One transactional.id. Errors of brokers are KafkaExceptions, as confluent-kafka has them."""

    def __init__(
        self,
        client: RawClient,
        transactional_id: str,
        timeout_ms: int,
        on_throttle: Callable[[float], object] = lambda _: None,
    ) -> None:
        """`on_throttle`: called with the seconds for which a broker will take nothing more, as soon
        as it says so, in the client's thread: what is asked next may have no answer before."""
        self._client, self._id, self._timeout_ms = client, transactional_id, timeout_ms
        self._on_throttle = on_throttle
        self._transactions = Coordinators(client, "TRANSACTION")
        self._groups = Coordinators(client)
        self.producer = ProducerIdAndEpoch(-1, -1)  # of the transaction that is open, or is next
        self._sequences: defaultdict[Place, int] = defaultdict(int)
        self._leaders: dict[Place, int] = {}
        self._added: set[Place] = set()
        self._is_open = False
        self._offsets: dict[str, Place] = {}  # by group, that it commits
        self._ends_as_commit = False  # of one that writes the markers of a commit
        # The coordinator's node, and by place its leader and leader epoch as it last knew them.
        self._seen: tuple[int, dict[Place, tuple[int, int]]] = (_NOBODY, {})
        self._packing = ThreadPoolExecutor(2, "backlog-pack")
        self._flying: defaultdict[int, deque[tuple[Any, list[_Sealed]]]] = defaultdict(deque)
        self._failed: list[_Sealed] = []
        self.offsets: dict[Place, tuple[int, int]] = {}  # of the transaction: first, last
        self.sent = 0  # bytes of all requests that write, about

    def init_transactions(self, seconds: float) -> None:
        """Fences whoever has the id; what it left open is aborted, as far as its markers come."""
        self._take_epoch(ProducerIdAndEpoch(-1, -1), seconds)

    def end_unmarked(
        self,
        places: Iterable[Place],
        was_committed: Callable[[Unmarked], bool | None],
        seconds: float,
        groups: Iterable[str] = (),
    ) -> None:
        """Ends what transactions of this id have left open on these partitions; after a take over,
        and before anything is written.

        Args:
            was_committed: whether they were; None where that is not known.
            groups: where commits of their offsets may be pending, too.

        Raises:
            HangingTransaction: it is not known, or it is still open.
            KafkaException.
        """
        limit, wanted = Deadline(seconds), frozenset(places)
        left = self._find_unmarked(self.producer.id, wanted, limit)
        if left is None:
            return
        is_commit = was_committed(left)
        if is_commit is None:
            raise refuse_unmarked(left, self._id)
        self._write_markers(left.places, is_commit=is_commit, groups=groups)
        if (left := self._find_unmarked(self.producer.id, wanted, limit)) is not None:
            raise refuse_unmarked(left, self._id)

    def begin_transaction(self) -> None:
        self._added, self._failed, self.offsets = set(), [], {}
        self._offsets, self._ends_as_commit = {}, False

    def write(self, batches: Sequence[Unsent], seconds: float) -> None:
        """Sends them on their way, each partition's in this order; `flush` awaits their ends."""
        packed = [self._packing.submit(one.pack) for one in batches]
        limit = Deadline(seconds)
        self._add_partitions({(one.topic, one.partition) for one in batches}, seconds)
        rounds: list[list[_Sealed]] = []
        depth: defaultdict[Place, int] = defaultdict(int)
        for one, future in zip(batches, packed, strict=True):
            sealed = self._seal(one, future)
            # A request has one batch of a partition at most.
            if depth[sealed.place] == len(rounds):
                rounds.append([])
            rounds[depth[sealed.place]].append(sealed)
            depth[sealed.place] += 1
        for together in rounds:
            self._send(together, limit)

    def flush(self, seconds: float) -> None:
        """Until all that was written is in the log; what may pass is sent again."""
        limit = Deadline(seconds)
        self._drain(limit)
        while self._failed:
            again = sorted(self._failed, key=lambda one: (one.place, one.sequence))
            self._failed, self._leaders = [], {}
            if limit.expired:
                raise _make_error(KafkaError._TIMED_OUT, "the messages were not written")
            time.sleep(_PAUSE)
            for sealed in again:
                self._send([sealed], limit)
                self._drain(limit)

    def send_offsets(
        self, membership: Membership, topic: str, position: Mapping[str, Any], seconds: float
    ) -> None:
        """Commits one partition's offset with the transaction.

        Args:
            position: `partition_index`, `committed_offset`, `committed_leader_epoch`,
                `committed_metadata`.
        """
        from kafka.protocol.producer import TxnOffsetCommitRequest

        self._add_offsets(membership.group, seconds)
        self._offsets[membership.group] = (topic, position["partition_index"])
        of_topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic

        def commit() -> Any:
            place = of_topic.TxnOffsetCommitRequestPartition(**position)
            return TxnOffsetCommitRequest(
                **self._mine,
                group_id=membership.group,
                generation_id=membership.generation,
                member_id=membership.member,
                group_instance_id=membership.instance,
                topics=[of_topic(name=topic, partitions=[place])],
                min_version=_COMMIT,
                max_version=_COMMIT,
            )

        self._ask(
            self._groups,
            membership.group,
            commit,
            lambda answer: [one.error_code for topic in answer.topics for one in topic.partitions],
            seconds,
        )

    def commit_transaction(self, seconds: float) -> None:
        """Until its markers are in the log; those that its coordinator leaves out are written."""
        committed, places, limit = self.producer, self._added, Deadline(seconds)
        offsets = dict(self._offsets)
        self._end(is_commit=True, seconds=seconds)
        self._take_epoch(committed, limit.remaining(), is_abortable=False)
        if places and not self._kept_their_leaders(places, limit):
            while (left := self._find_unmarked(committed.id, places, limit)) is not None:
                if left.producer.id != self.producer.id:
                    raise refuse_unmarked(left, self._id)  # the id changed; it was committed
                self._write_markers(left.places, is_commit=True)
        for group, place in offsets.items():
            ask = partial(is_pending, self._client, group, place, limit, self._groups)
            if _outlast(ask, limit, is_abortable=False):  # of another producer it stays so
                self._write_markers((), is_commit=True, groups=[group])

    def abort_transaction(self, seconds: float) -> None:
        """After what is on its way has its answer: what came behind its own abort would hang in
        the topic for ever (KIP-890). Nothing is written after it: numbers may be left out."""
        limit = Deadline(seconds)
        for flying in self._flying.values():
            for sent, _ in flying:
                self._client.await_sent(sent, limit)
        self._end(is_commit=self._ends_as_commit, seconds=seconds)

    def close(self) -> None:
        self._packing.shutdown(wait=False, cancel_futures=True)

    @property
    def _mine(self) -> dict[str, Any]:
        return {
            "transactional_id": self._id,
            "producer_id": self.producer.id,
            "producer_epoch": self.producer.epoch,
        }

    def _take_epoch(
        self, current: ProducerIdAndEpoch, seconds: float, *, is_abortable: bool = True
    ) -> None:
        """The next epoch after this one; its coordinator waits until it is through with the last
        transaction (KIP-360). After the last epoch there is it gives another producer id."""
        from kafka.protocol.producer import InitProducerIdRequest

        def make() -> Any:
            return InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=current.id,
                producer_epoch=current.epoch,
                max_version=_INIT,
            )

        answer = self._ask_coordinator(
            make, lambda answer: [answer.error_code], seconds, is_abortable=is_abortable
        )
        self.producer = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        self._sequences.clear()

    def _kept_their_leaders(self, places: Iterable[Place], limit: Deadline) -> bool:
        """Whether each has had the same leader since the last commit, as their coordinator knows
        it, which has sent the markers: then it has left out none. Cheaper than to ask the leaders:
        each tells of all producers."""
        topics = {topic for topic, _ in places}

        async def look() -> tuple[int, dict[Place, tuple[int, int]]]:
            node = await self._transactions.find(self._id)
            return node, {
                (topic, number): leader
                for topic in topics
                for number, leader in (await ask_leader_epochs(self._client, topic, node)).items()
                if leader[0] >= 0
            }

        before = self._seen
        try:
            self._seen = self._client.run(look, limit)
        except Exception:  # noqa: BLE001 - the leaders themselves are asked
            self._seen = (_NOBODY, {})
        (then, known), (now, seen) = before, self._seen
        return then == now != _NOBODY and all(
            place in seen and known.get(place) == seen[place] for place in places
        )

    def _find_unmarked(
        self, producer_id: int, places: Iterable[Place], limit: Deadline
    ) -> Unmarked | None:
        find = partial(find_unmarked, self._client, producer_id, places, limit)
        return _outlast(find, limit, is_abortable=False)

    def _write_markers(
        self, places: Iterable[Place], *, is_commit: bool, groups: Iterable[str] = ()
    ) -> None:
        """By a transaction without messages. It must end as it should, and has its own time."""
        limit = Deadline(self._timeout_ms / 1000)
        self.begin_transaction()
        self._ends_as_commit = is_commit
        self._add_partitions(places, limit.remaining())
        for group in groups:
            self._add_offsets(group, limit.remaining())
        self._end(is_commit=is_commit, seconds=limit.remaining())
        self._take_epoch(self.producer, limit.remaining(), is_abortable=False)

    def _add_offsets(self, group: str, seconds: float) -> None:
        from kafka.protocol.producer import AddOffsetsToTxnRequest

        self._is_open = True

        def add() -> Any:
            return AddOffsetsToTxnRequest(**self._mine, group_id=group, max_version=_OFFSETS)

        self._ask_coordinator(add, lambda answer: [answer.error_code], seconds)

    def _end(self, *, is_commit: bool, seconds: float) -> None:
        from kafka.protocol.producer import EndTxnRequest

        if not self._is_open:
            return
        self._ask_coordinator(
            lambda: EndTxnRequest(**self._mine, committed=is_commit, max_version=_END),
            lambda answer: [answer.error_code],
            seconds,
            is_abortable=not is_commit,  # what may be committed is not to be called aborted
        )
        self._is_open = False

    def _add_partitions(self, places: Iterable[Place], seconds: float) -> None:
        from kafka.protocol.producer import AddPartitionsToTxnRequest

        new = sorted(set(places) - self._added)
        if not new:
            return
        self._is_open = True
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

        def make() -> Any:
            mine = {f"v3_and_below_{name}": value for name, value in self._mine.items()}
            return AddPartitionsToTxnRequest(
                **mine,
                v3_and_below_topics=[
                    topic(name=name, partitions=[place for _, place in some])
                    for name, some in groupby(new, itemgetter(0))
                ],
                max_version=_ADD,
            )

        def read_codes(answer: Any) -> list[int]:
            return [
                one.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            ]

        self._ask_coordinator(make, read_codes, seconds)
        self._added.update(new)

    def _seal(self, one: Unsent, packed: Future[Any]) -> _Sealed:
        place = (one.topic, one.partition)
        sequence = self._sequences[place]
        self._sequences[place] = add_sequence(sequence, one.count)
        codec, records = packed.result()
        batch = make_batch(
            records,
            codec=codec,
            count=one.count,
            first_time=one.first_time,
            last_time=one.last_time,
            producer=(*self.producer, sequence),
        )
        return _Sealed(place, sequence, one.count, batch)

    # Requests under way.

    def _send(self, sealed: Sequence[_Sealed], limit: Deadline) -> None:
        for topic in {one.place[0] for one in sealed if one.place not in self._leaders}:
            found = _outlast(partial(read_leaders, self._client, topic, limit), limit)
            self._leaders |= {(topic, partition): node for partition, node in found.items()}
        by_node: defaultdict[int, list[_Sealed]] = defaultdict(list)
        for one in sealed:
            if one.place in self._leaders:
                by_node[self._leaders[one.place]].append(one)
            else:
                self._failed.append(one)
        for node, batches in by_node.items():
            flying = self._flying[node]
            for some in _cut(batches, _REQUEST_BYTES):
                while len(flying) >= _IN_FLIGHT:
                    self._land(node, limit)
                # Behind one that failed the broker would refuse it.
                if self._failed:
                    self._failed += some
                    continue
                sent = self._client.send_soon(self._make_request(some), node)
                sent.add_callback(self._note_throttle)
                self.sent += _HEAD_BYTES + sum(_HEAD_BYTES + len(one.batch) for one in some)
                flying.append((sent, some))

    def _make_request(self, batches: Sequence[_Sealed]) -> Any:
        from kafka.protocol.producer import ProduceRequest

        of_topic = ProduceRequest.TopicProduceData
        by_topic: defaultdict[str, list[Any]] = defaultdict(list)
        for one in batches:
            topic, partition = one.place
            data = of_topic.PartitionProduceData(index=partition, records=one.batch)
            by_topic[topic].append(data)
        return ProduceRequest(
            transactional_id=self._id,
            acks=_ACKS_ALL,
            timeout_ms=int(_ANSWER_SECONDS * 1000),
            topic_data=[
                of_topic(name=name, partition_data=data) for name, data in by_topic.items()
            ],
            max_version=_PRODUCE,
        )

    def _drain(self, limit: Deadline) -> None:
        for node in list(self._flying):
            while self._flying[node]:
                self._land(node, limit)

    def _land(self, node: int, limit: Deadline) -> None:
        """Takes the answer to a broker's oldest request."""
        from kafka.errors import KafkaError as KafkaPythonError

        sent, batches = self._flying[node][0]
        try:
            answer = self._client.await_sent(sent, limit)
        except TimeoutError:
            raise _make_error(KafkaError._TIMED_OUT, "the messages were not written") from None
        except (KafkaPythonError, OSError):
            # A connection that broke: whether they are in the log is asked by sending them again.
            self._flying[node].popleft()
            self._failed += batches
            return
        self._flying[node].popleft()
        by_place = {one.place: one for one in batches}
        worst: KafkaException | None = None
        for topic in answer.responses:
            for part in topic.partition_responses:
                sealed = by_place.pop((topic.name, part.index))
                if part.error_code in _RESENT:
                    self._failed.append(sealed)
                elif part.error_code:
                    worst = worst or _make_error(part.error_code)
                else:
                    self._note_offsets(sealed, part.base_offset)
        self._failed += by_place.values()
        if worst is not None:
            raise worst

    def _note_throttle(self, answer: Any) -> None:
        if answer.throttle_time_ms:
            self._on_throttle(answer.throttle_time_ms / 1000)

    def _note_offsets(self, sealed: _Sealed, base: int) -> None:
        if base < 0:
            return  # the broker had it already, and may not say where
        last = base + sealed.count - 1
        known = self.offsets.get(sealed.place, (base, last))
        self.offsets[sealed.place] = (min(known[0], base), max(known[1], last))

    # Requests to a coordinator.

    def _ask_coordinator(
        self,
        make: Callable[[], Any],
        read_codes: Callable[[Any], list[int]],
        seconds: float,
        *,
        is_abortable: bool = True,
    ) -> Any:
        asked = (self._transactions, self._id, make, read_codes, seconds)
        return self._ask(*asked, is_abortable=is_abortable)

    def _ask(
        self,
        coordinators: Coordinators,
        name: str,
        make: Callable[[], Any],
        read_codes: Callable[[Any], list[int]],
        seconds: float,
        *,
        is_abortable: bool = True,
    ) -> Any:
        """Until it is answered without an error. Raises KafkaException: the first that lasts."""
        limit = Deadline(seconds)

        async def once() -> tuple[Any, int]:
            answer = await self._client.send(make(), await coordinators.find(name))
            self._note_throttle(answer)
            return answer, next((code for code in read_codes(answer) if code), 0)

        while True:
            try:
                answer, code = self._client.run(once, limit)
            except Exception as error:  # noqa: BLE001 - judged below
                answer, code = None, _read_code(error)
            if not code:
                return answer
            if code not in _PASSING or limit.expired:
                raise _make_error(code, is_abortable=is_abortable)
            if code not in _BUSY:
                coordinators.forget([name])
            time.sleep(_PAUSE)


_BUSY = frozenset({KafkaError.CONCURRENT_TRANSACTIONS, KafkaError.COORDINATOR_LOAD_IN_PROGRESS})
_PASSING = _BUSY | {
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError._TRANSPORT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}


def _outlast(ask: Callable[[], Result], limit: Deadline, *, is_abortable: bool = True) -> Result:
    """Also while a broker is away, or keeps us waiting for a quota.
    Raises KafkaException.
    """
    while True:
        try:
            return ask()
        except Exception as error:
            if limit.expired or not getattr(error, "retriable", isinstance(error, OSError)):
                raise _make_error(_read_code(error), is_abortable=is_abortable) from error
        time.sleep(_LONG_PAUSE)


def _read_code(error: Exception) -> int:
    """Of kafka-python's errors; a connection that broke has the client's own."""
    if isinstance(error, TimeoutError):
        return int(KafkaError._TIMED_OUT)
    code = getattr(error, "errno", None)
    is_brokers = type(error).__module__ == "kafka.errors" and isinstance(code, int) and code > 0
    return code if is_brokers and code is not None else int(KafkaError._TRANSPORT)


def _make_error(
    code: int, reason: str | None = None, *, is_abortable: bool = True
) -> KafkaException:
    """As the other client has it; abortable: its transaction is to be aborted."""
    return KafkaException(KafkaError(code, reason, txn_requires_abort=is_abortable))
