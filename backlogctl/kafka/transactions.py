"""Transactions that are open on a topic's partitions: whose they are, and how one is aborted.

By KIP-664 through kafka-python, as `kafka-transactions.sh` does it: each leader names the producers
of a partition and where their open transaction begins (DescribeProducers, READ on the topic); each
coordinator names the transactional ids of these producers, as far as we may describe them
(ListTransactions), and what it has written down of each (DescribeTransactions).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from backlogctl.clock import Deadline, read_millis
from backlogctl.errors import KafkaFailure, Refused
from backlogctl.kafka.clients import Properties, find_addresses
from backlogctl.kafka.errors import TopicMissing
from backlogctl.kafka.leaders import ask_leaders
from backlogctl.kafka.raw_client import (
    Coordinators,
    RawClient,
    lend_client,
    translate_error,
    translate_properties,
)
from backlogctl_delivery.kafka import AccessDenied

Result = TypeVar("Result")

_SECONDS = 15.0
_UNKNOWN_TOPIC, _TOPIC_DENIED, _CLUSTER_DENIED, _ID_DENIED = 3, 29, 31, 53
# Nobody has it: whether we may describe it says whether we may describe all.
_NOBODY = "backlogctl:nobody"
_ABORTED = "CompleteAbort"
_ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
# A later version would ask for two-phase commit, or for a producer id of its own.
_INIT_VERSION = 4
# Later ones are for brokers, or bump the producer's epoch at each end (KIP-890).
_CLIENTS_VERSION = 3
_EMPTY_TIMEOUT_MS = 15_000
_NOT_TRIED = 55


class TransactionFate(StrEnum):
    """Who is going to end it."""

    ONGOING = "ongoing"  # its producer, else its coordinator when its timeout is over
    ENDING = "ending"  # its coordinator has decided, and is about to write the markers
    HANGING = "hanging"  # nobody: no coordinator has this partition in a transaction that is open
    UNKNOWN = "unknown"  # we may not describe every transactional id


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open on one partition.

    Attributes:
        start: the offset of its first message there; who reads committed stops in front of it.
        coordinator_epoch: of the last marker of its producer there; None where there is none.
        last_written: the newest time in its producer's batches there, as the producer set it.
        transactional_id: None where no coordinator names it to us.
        coordinator_state: of its producer's last transaction, as the coordinator has it: `Ongoing`,
            `CompleteCommit`, ...; None where none tells.
        started_at, timeout_seconds: as its coordinator has them.
        partitions: (topic, partition) of all that it wrote to, as far as we may describe them.
    """

    topic: str
    partition: int
    start: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int | None = None
    last_written: datetime | None = None
    transactional_id: str | None = None
    fate: TransactionFate = TransactionFate.UNKNOWN
    started_at: datetime | None = None
    timeout_seconds: float | None = None
    coordinator_state: str | None = None
    partitions: tuple[tuple[str, int], ...] = ()

    @property
    def ends_by(self) -> datetime | None:
        """When its coordinator aborts it at the latest; None where it does not, or is unknown."""
        is_ongoing = self.fate is TransactionFate.ONGOING
        if not is_ongoing or self.started_at is None or self.timeout_seconds is None:
            return None
        return self.started_at + timedelta(seconds=self.timeout_seconds)

    @property
    def may_be_committed(self) -> bool:
        """It hangs, and its coordinator, which knows its producer, does not say that it was
        aborted."""
        told = (None, _ABORTED)
        return self.fate is TransactionFate.HANGING and self.coordinator_state not in told

    @property
    def name(self) -> str:
        """`orders[2]@500`: how it is named to be aborted."""
        return f"{self.topic}[{self.partition}]@{self.start}"

    @property
    def producer(self) -> str:
        """Its transactional id where that is known, the producer's id and epoch."""
        numbers = f"producer {self.producer_id}, epoch {self.producer_epoch}"
        if self.transactional_id is None:
            return numbers
        return f"transactional.id {self.transactional_id}, {numbers}"


def read_open_transactions(
    properties: Properties, topic: str, partitions: Iterable[int], deadline: Deadline | None = None
) -> tuple[OpenTransaction, ...]:
    """Those that are open now, by partition, in the order of the log; none of a partition without
    a leader.

    Raises:
        AccessDenied: READ on the topic is missing.
        TopicMissing, ClusterUnreachable, KafkaFailure: also where kafka-python cannot log in.
    """
    wanted = frozenset(partitions)

    async def work(client: RawClient) -> tuple[OpenTransaction, ...]:
        rows = await describe_producers(client, topic, wanted)
        found = [
            _make_transaction(topic, number, row)
            for number, producers in rows.items()
            for row in producers
            if row.current_txn_start_offset >= 0
        ]
        found = await _add_coordinators(client, found) if found else []
        if any(one.fate is TransactionFate.HANGING for one in found):
            # One that ended just now is unknown to its coordinator as well.
            rows = await describe_producers(client, topic, wanted)
            still = {
                (number, row.producer_id, row.current_txn_start_offset)
                for number, producers in rows.items()
                for row in producers
            }
            found = [one for one in found if (one.partition, one.producer_id, one.start) in still]
        return tuple(sorted(found, key=lambda one: (one.partition, one.start)))

    return _run(properties, topic, "read its open transactions", deadline, work)


def find_transactional(
    properties: Properties, topic: str, partitions: Iterable[int], deadline: Deadline | None = None
) -> Mapping[int, bool]:
    """By partition whether a transactional producer has written to it, as far as its leader
    remembers: `producer.id.expiration.ms` (a day by default) after its last batch or marker, also
    where its messages are gone. A partition without a leader is left out.

    Raises:
        As `read_open_transactions`.
    """
    wanted = frozenset(partitions)

    async def work(client: RawClient) -> dict[int, bool]:
        return {
            number: any(
                row.coordinator_epoch >= 0 or row.current_txn_start_offset >= 0 for row in producers
            )
            for number, producers in (await describe_producers(client, topic, wanted)).items()
        }

    return _run(properties, topic, "read its producers", deadline, work)


def abort_transaction(
    properties: Properties,
    transaction: OpenTransaction,
    deadline: Deadline | None = None,
    *,
    even_if_committed: bool = False,
) -> str:
    """Aborts it, and waits until it is not open any more: what it wrote is never read.

    One that its coordinator knows is aborted by that, as Kafka's `forceTerminateTransaction` and
    `fenceProducers` ask for it: the producer is fenced, and the transaction ends on all of its
    partitions. For a hanging one the leader of this partition writes the marker itself
    (WriteTxnMarkers); any other would let a producer go on in a transaction that is half over.

    Args:
        even_if_committed: also where its coordinator has committed its producer's last transaction.

    Returns:
        How it was done, in words.

    Raises:
        Refused: see `refuse_abort`.
        AccessDenied: WRITE on the transactional id, or ALTER on the cluster, is missing.
    """
    limit = deadline or Deadline(_SECONDS)
    found = read_open_transactions(properties, transaction.topic, [transaction.partition], limit)
    current = next((one for one in found if _is_same(one, transaction)), None)
    refuse_abort(transaction, current, even_if_committed=even_if_committed)
    assert current is not None
    topic, doing = current.topic, f"abort transaction {current.name}"
    is_known = current.fate is TransactionFate.ONGOING

    async def work(client: RawClient) -> None:
        await (_fence(client, current) if is_known else _write_marker(client, current))

    _run(properties, topic, doing, limit, work)

    async def look(client: RawClient) -> None:
        from kafka.errors import ConcurrentTransactionsError

        rows = await describe_producers(client, topic, frozenset([current.partition]))
        for row in rows.get(current.partition, ()):
            if _is_same(_make_transaction(topic, current.partition, row), current):
                # Its coordinator answers before the markers are written.
                raise ConcurrentTransactionsError

    _run(properties, topic, doing, limit, look)
    if is_known:
        return f"its coordinator aborted it, and fenced its producer {current.transactional_id}"
    return "the leader of its partition wrote the abort marker"


def refuse_abort(
    asked: OpenTransaction, current: OpenTransaction | None, *, even_if_committed: bool = False
) -> None:
    """Raises Refused where a transaction must not be aborted: it is not open any more; its
    coordinator is ending it, or has perhaps committed it; or it is not known whether any knows it.
    `current`: as it is now; None where it is not open.
    """
    subject = f"transaction {asked.name}"
    if current is None:
        raise Refused("it is not open any more: nothing was aborted", subject=subject)
    if current.fate is TransactionFate.ENDING:
        raise Refused(
            "its coordinator is ending it, perhaps by a commit: nothing was aborted",
            subject=subject,
            hint="its markers come as soon as the coordinator reaches the partition's leader: look "
            "whether all brokers are up",
        )
    if current.may_be_committed:
        if even_if_committed:
            return
        raise Refused(
            "its coordinator does not say that it was aborted (its last word on this producer is "
            f"{current.coordinator_state}): what is open here may be committed, and its marker "
            "left out (KAFKA-20734); nothing was aborted",
            subject=subject,
            hint="what a recovery left open its next `run` ends as it was decided; else ask the "
            "owner of its producer whether these messages count: if not, `--even-if-committed` "
            "aborts it",
        )
    if current.fate is TransactionFate.UNKNOWN:
        raise Refused(
            "it is not known whether its coordinator still knows it: nothing was aborted",
            subject=subject,
            hint="`Describe` on all transactional ids must be granted",
        )


def _is_same(one: OpenTransaction, other: OpenTransaction) -> bool:
    return (one.partition, one.start, one.producer_id, one.producer_epoch) == (
        *(other.partition, other.start, other.producer_id, other.producer_epoch),
    )


def _run(
    properties: Properties,
    topic: str,
    doing: str,
    deadline: Deadline | None,
    work: Callable[[RawClient], Coroutine[Any, Any, Result]],
    right: str = "Read",
) -> Result:
    settings, reason = translate_properties(properties)
    limit = deadline or Deadline(_SECONDS)
    subject = f"topic {topic}"
    if settings is None:
        raise KafkaFailure(
            f"could not {doing}: transactions cannot be asked for {reason}",
            subject=subject,
            hint="kafka-python asks: docs/clusters.md says which logins it takes",
        )
    try:
        with lend_client(settings, limit, properties) as client:
            return client.run(lambda: work(client), limit)
    except Exception as error:
        raise _translate(error, doing, subject, find_addresses(properties), right) from error


def _translate(error: Exception, doing: str, subject: str, addresses: str, right: str) -> Exception:
    denied = {
        _TOPIC_DENIED: f"`{right}` on {subject} must be granted",
        # KIP-1037; the other one is taken by all versions.
        _CLUSTER_DENIED: "`Alter` on the cluster must be granted; before Kafka 3.9 `ClusterAction`",
        _ID_DENIED: "`Write` on its transactional id must be granted",
    }
    code = getattr(error, "errno", None)
    if code in denied:
        return AccessDenied(f"could not {doing}: access denied", subject=subject, hint=denied[code])
    if code == _UNKNOWN_TOPIC:
        return TopicMissing(
            f"could not {doing}: the topic is not on the cluster {addresses}", subject=subject
        )
    return translate_error(error, doing, subject)


# What the leaders know.


async def describe_producers(
    client: RawClient, topic: str, partitions: frozenset[int]
) -> dict[int, Sequence[Any]]:
    """By partition its producers, as kafka-python's DescribeProducersResponse has them."""
    from kafka.errors import for_code
    from kafka.protocol.admin import DescribeProducersRequest

    by_node: defaultdict[int, list[int]] = defaultdict(list)
    for partition, node in (await ask_leaders(client, topic)).items():
        if partition in partitions:
            by_node[node].append(partition)
    found: dict[int, Sequence[Any]] = {}
    for node, numbers in by_node.items():
        wanted = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=numbers)
        answer = await client.send(DescribeProducersRequest(topics=[wanted]), node)
        for part in answer.topics[0].partitions:
            if part.error_code:
                raise for_code(part.error_code)()
            found[part.partition_index] = part.active_producers
    return found


def _make_transaction(topic: str, partition: int, row: Any) -> OpenTransaction:
    return OpenTransaction(
        topic,
        partition,
        row.current_txn_start_offset,
        row.producer_id,
        row.producer_epoch,
        row.coordinator_epoch if row.coordinator_epoch >= 0 else None,
        read_millis(row.last_timestamp) if row.last_timestamp >= 0 else None,
    )


# What the coordinators know.


async def _add_coordinators(
    client: RawClient, found: Sequence[OpenTransaction]
) -> list[OpenTransaction]:
    """Each with its transactional id, and what is going to end it."""
    coordinators = Coordinators(client, "TRANSACTION")
    ids = await _list_ids(client, {one.producer_id for one in found})
    described = {
        name: await describe_transaction(client, coordinators, name) for name in ids.values()
    }
    sees_all = True
    if any(one.producer_id not in ids for one in found):
        # Ids that we may not describe are left out of the list, and no error says so.
        sees_all = await describe_transaction(client, coordinators, _NOBODY) is not _DENIED
    return [
        _add_coordinator(one, name, described.get(name) if name else None, sees_all=sees_all)
        for one in found
        for name in (ids.get(one.producer_id),)
    ]


_DENIED = object()


async def _list_ids(client: RawClient, producers: set[int]) -> dict[int, str]:
    """By producer id its transactional id, of those that some coordinator names."""
    from kafka.errors import for_code
    from kafka.protocol.admin import ListTransactionsRequest

    found: dict[int, str] = {}
    for node in client.list_brokers():
        request = ListTransactionsRequest(
            state_filters=[], producer_id_filters=sorted(producers), min_version=0
        )
        answer = await client.send(request, node)
        if answer.error_code:
            raise for_code(answer.error_code)()
        found |= {row.producer_id: row.transactional_id for row in answer.transaction_states}
    return found


async def describe_transaction(client: RawClient, coordinators: Coordinators, name: str) -> Any:
    """What the coordinator of a transactional id knows; None where it does not know it, _DENIED
    where it may not be described."""
    from kafka.errors import (
        TransactionalIdAuthorizationFailedError,
        TransactionalIdNotFoundError,
    )
    from kafka.protocol.admin import DescribeTransactionsRequest

    request = DescribeTransactionsRequest(transactional_ids=[name])
    try:
        return await coordinators.ask(name, request, lambda answer: answer.transaction_states[0])
    except TransactionalIdAuthorizationFailedError:
        return _DENIED
    except TransactionalIdNotFoundError:
        return None


def _add_coordinator(
    one: OpenTransaction, name: str | None, state: Any, *, sees_all: bool
) -> OpenTransaction:
    if name is None or state is None or state is _DENIED:
        is_known = sees_all and state is not _DENIED
        fate = TransactionFate.HANGING if is_known else TransactionFate.UNKNOWN
        return replace(one, transactional_id=name, fate=fate)
    places = tuple(
        sorted((topic.topic, number) for topic in state.topics for number in topic.partitions)
    )
    fate = TransactionFate.ONGOING
    if (one.topic, one.partition) not in places:
        # Of one that it ends, the coordinator forgets each partition whose marker is written.
        fate = TransactionFate.HANGING
    elif state.transaction_state in _ENDING:
        fate = TransactionFate.ENDING
    began = state.transaction_start_time_ms
    started = read_millis(began) if began >= 0 else None
    return replace(
        one,
        transactional_id=name,
        fate=fate,
        started_at=started if fate is not TransactionFate.HANGING else None,
        timeout_seconds=state.transaction_timeout_ms / 1000,
        coordinator_state=state.transaction_state,
        partitions=places if fate is not TransactionFate.HANGING else (),
    )


# How one is ended.


async def _fence(client: RawClient, one: OpenTransaction) -> None:
    """As a new producer of its id would: the coordinator aborts what the old one left open."""
    from kafka.protocol.producer.transaction import InitProducerIdRequest

    assert one.transactional_id is not None
    # The timeout becomes that of the id, until its producer begins anew.
    request = InitProducerIdRequest(
        transactional_id=one.transactional_id,
        transaction_timeout_ms=int((one.timeout_seconds or 60.0) * 1000),
        producer_id=-1,
        producer_epoch=-1,
        max_version=_INIT_VERSION,
    )
    # While it aborts it answers CONCURRENT_TRANSACTIONS, and is asked again.
    await Coordinators(client, "TRANSACTION").ask(one.transactional_id, request)


async def _write_marker(client: RawClient, one: OpenTransaction) -> None:
    from kafka.errors import NotLeaderForPartitionError, for_code
    from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

    node = (await ask_leaders(client, one.topic)).get(one.partition)
    if node is None:
        raise NotLeaderForPartitionError
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topic = marker.WritableTxnMarkerTopic(name=one.topic, partition_indexes=[one.partition])
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                transaction_result=False,
                topics=[topic],
                # Of a producer without a marker Kafka's own tool takes the lowest there is.
                coordinator_epoch=one.coordinator_epoch or 0,
            )
        ],
        min_version=0,
    )
    for result in (await client.send(request, node)).markers:
        for part in (part for topic in result.topics for part in topic.partitions):
            if part.error_code:
                raise for_code(part.error_code)()


# A transaction without messages.


def write_empty_transaction(
    properties: Properties,
    topic: str,
    partitions: Iterable[int],
    transactional_id: str,
    deadline: Deadline | None = None,
) -> None:
    """Appends to each partition the marker of a transaction that has no messages, and is aborted.

    It takes one offset, and no reader gets to see it. All replicas in sync have it then.

    Raises:
        AccessDenied: `Write` on the topic or the transactional id is missing.
        TopicMissing, ClusterUnreachable, KafkaFailure: also for a login that kafka-python cannot
            use.
    """
    numbers = sorted(partitions)

    async def work(client: RawClient) -> None:
        await _end_empty(client, topic, numbers, transactional_id)

    async def wait(client: RawClient) -> None:
        """A next producer is let in only when the markers of the one before are written."""
        await _begin_producer(client, transactional_id)

    for one in (work, wait):
        _run(properties, topic, "write an empty transaction", deadline, one, "Write")


async def _begin_producer(client: RawClient, name: str) -> tuple[int, Any]:
    from kafka.protocol.producer.transaction import InitProducerIdRequest

    coordinators = Coordinators(client, "TRANSACTION")
    request = InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=_EMPTY_TIMEOUT_MS,
        producer_id=-1,
        producer_epoch=-1,
        max_version=_INIT_VERSION,
    )
    answer = await coordinators.ask(name, request)
    return await coordinators.find(name), answer


async def _end_empty(client: RawClient, topic: str, partitions: list[int], name: str) -> None:
    from kafka.errors import for_code
    from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest, EndTxnRequest

    node, producer = await _begin_producer(client, name)
    wanted = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=partitions)
    added = await client.send(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[wanted],
            max_version=_CLIENTS_VERSION,
        ),
        node,
    )
    found = [row for one in added.results_by_topic_v3_and_below for row in one.results_by_partition]
    codes = {row.partition_error_code for row in found} - {0}
    if codes:  # where one is refused, the others were not tried
        raise for_code(min(codes - {_NOT_TRIED}, default=_NOT_TRIED))()
    ended = await client.send(
        EndTxnRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=False,
            max_version=_CLIENTS_VERSION,
        ),
        node,
    )
    if ended.error_code:
        raise for_code(ended.error_code)()
