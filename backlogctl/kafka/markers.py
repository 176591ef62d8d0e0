"""Transactions that have ended, and are still open in a partition's log.

A coordinator that has decided writes a marker to each partition of the transaction. Kafka 4.3 and
4.4 leave out a partition that has no leader at that moment, and call the transaction complete
(KAFKA-20734). What it wrote there stays hidden until the next marker of the same producer, and that
one may say the opposite: a commit would double what was aborted, an abort lose what was committed.
So a producer looks after its transactions. That they have an epoch each says which one is open.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from backlogctl.clock import Deadline
from backlogctl.errors import HangingTransaction
from backlogctl.kafka.admin import Connection, list_offsets
from backlogctl.kafka.clients import Properties, make_admin
from backlogctl.kafka.raw_client import (
    Coordinators,
    RawClient,
    lend_client,
    translate_error,
    translate_properties,
)
from backlogctl.kafka.transactions import describe_producers, describe_transaction

Place = tuple[str, int]  # topic, partition

_PAUSE = 0.1
# The first version of OffsetFetch that tells it, and the last of one group.
_OFFSETS, _UNSTABLE = 7, 88
UNMARKED_HINT = (
    "a coordinator of Kafka 4.3 or 4.4 leaves out the marker of a partition without a leader "
    "(KAFKA-20734): compare what the log has there (`kafka-dump-log.sh`) with the Kafka ledger, or "
    "with the group's commits, before anybody aborts it"
)

FIND_HINT = (
    "`kafka-transactions.sh find-hanging` names its producer: ask the owner before it is aborted, "
    "it may be committed (KAFKA-20734); then run again"
)


class ProducerIdAndEpoch(NamedTuple):
    """Of one transaction, where each has an epoch of its own."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Unmarked:
    """What a producer has left open.

    Attributes:
        producer: its id, and the epoch of the newest transaction that is open.
        places: where it is open.
        elsewhere: where its id has written in this or a later epoch, and nothing is open.
        untouched: where it has written before, and not in this epoch.
        is_one: False where transactions of several epochs are open.
    """

    producer: ProducerIdAndEpoch
    places: frozenset[Place]
    elsewhere: frozenset[Place]
    untouched: frozenset[Place]
    is_one: bool = True

    def was_committed(self, last: ProducerIdAndEpoch | None) -> bool | None:
        """Whether it was; None: it is not known.

        Args:
            last: the last one that is committed for certain, as its own record says; None where
                no transaction of its transactional.id ever was.
        """
        if not self.is_one:
            return None
        if last is None or last.id != self.producer.id or last.epoch < self.producer.epoch:
            return False
        return True if last == self.producer else None

    def describe(self) -> str:
        """`orders[2], orders[5]`."""
        return ", ".join(f"{topic}[{number}]" for topic, number in sorted(self.places))


def find_unmarked(
    client: RawClient, producer_id: int, places: Iterable[Place], limit: Deadline
) -> Unmarked | None:
    """What this producer has open on these partitions; None where nothing is, or brokers are from
    before 2.8: they leave no marker out. A partition without a leader is waited for.

    Raises:
        Exception: kafka-python's own; READ on the topics is needed.
    """
    from kafka.errors import UnsupportedVersionError

    by_topic = _group(places)

    async def work() -> Mapping[Place, Any]:
        from kafka.errors import LeaderNotAvailableError

        found: dict[Place, Any] = {}
        for topic, numbers in by_topic.items():
            rows = await describe_producers(client, topic, numbers)
            if rows.keys() != numbers:
                raise LeaderNotAvailableError
            found |= {
                (topic, number): row
                for number, producers in rows.items()
                for row in producers
                if row.producer_id == producer_id
            }
        return found

    try:
        rows = client.run(work, limit)
    except UnsupportedVersionError:
        return None
    epochs = {
        place: row.producer_epoch
        for place, row in rows.items()
        if row.current_txn_start_offset >= 0
    }
    if not epochs:
        return None
    first, last = min(epochs.values()), max(epochs.values())
    ended = {place: row.producer_epoch for place, row in rows.items() if place not in epochs}
    return Unmarked(
        ProducerIdAndEpoch(producer_id, last),
        frozenset(epochs),
        elsewhere=frozenset(place for place, epoch in ended.items() if epoch >= first),
        untouched=frozenset(place for place, epoch in ended.items() if epoch < first),
        is_one=first == last,
    )


def find_hidden(
    connection: Connection,
    topic: str,
    ends: Mapping[int, int | None],
    limit: Deadline | None = None,
) -> dict[int, int]:
    """Last stable offsets, by partition, of those where some transaction is open before these
    offsets; None stands for the high watermark now.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure.
    """
    high: Mapping[int, int] = {}
    if unknown := [number for number, end in ends.items() if end is None]:
        high = list_offsets(connection, topic, unknown, "latest", "read_uncommitted", limit)
    stable = list_offsets(connection, topic, ends, "latest", "read_committed", limit)
    return {
        number: stable[number]
        for number, end in ends.items()
        if stable[number] < (high[number] if end is None else end)
    }


def require_ended(
    properties: Properties, transactional_id: str, places: Iterable[Place], limit: Deadline
) -> None:
    """After a take over by a client that does not tell its producer's id: nothing that it has left
    open on these partitions is there.

    A login that kafka-python cannot use cannot ask for the id: all that is open is waited for.

    Raises:
        HangingTransaction: it is; or it may be.
        AccessDenied, TopicMissing, ClusterUnreachable, KafkaFailure.
    """
    from kafka.errors import UnsupportedVersionError

    wanted = frozenset(places)
    settings, _ = translate_properties(properties)
    if settings is None:
        _await_ends(properties, wanted, limit)
        return
    try:
        with lend_client(settings, limit, properties) as client:
            coordinators = Coordinators(client, "TRANSACTION")
            ask = partial(describe_transaction, client, coordinators, transactional_id)
            left = find_unmarked(client, client.run(ask, limit).producer_id, wanted, limit)
    except UnsupportedVersionError:
        return  # brokers before 3.0
    except Exception as error:
        subject = f"transactional.id {transactional_id}"
        raise translate_error(error, "ask what it has left open", subject) from error
    if left is not None:
        raise refuse_unmarked(left, transactional_id)


def _await_ends(properties: Properties, places: Iterable[Place], limit: Deadline) -> None:
    admin, by_topic = make_admin(properties), _group(places)
    for topic, numbers in by_topic.items():
        ends = list_offsets(admin, topic, numbers, "latest", "read_uncommitted")
        while hidden := find_hidden(admin, topic, ends):
            if limit.expired:
                told = ", ".join(
                    f"[{number}] from {at} on" for number, at in sorted(hidden.items())
                )
                raise HangingTransaction(
                    f"a transaction is open for more than {limit.seconds:g} s ({told}); whether "
                    "it is one that this transactional.id left is not known, and nothing was sent",
                    subject=f"topic {topic}",
                    hint=UNMARKED_HINT,
                )
            time.sleep(_PAUSE)


def _group(places: Iterable[Place]) -> Mapping[str, frozenset[int]]:
    by_topic: defaultdict[str, set[int]] = defaultdict(set)
    for topic, number in places:
        by_topic[topic].add(number)
    return {topic: frozenset(numbers) for topic, numbers in by_topic.items()}


def is_pending(
    client: RawClient,
    group: str,
    place: Place,
    limit: Deadline,
    coordinators: Coordinators | None = None,
) -> bool:
    """Whether a transaction's commit of this offset has no marker yet, as the group's coordinator
    says (KIP-447); False of brokers before 2.5, which leave no marker out.

    Raises:
        Exception: kafka-python's own; READ on the group is needed.
    """
    from kafka.errors import UnsupportedVersionError, for_code

    topic, partition = place
    known = coordinators or Coordinators(client)

    async def work() -> bool:
        from kafka.protocol.consumer.group import OffsetFetchRequest

        wanted = OffsetFetchRequest.OffsetFetchRequestTopic(
            name=topic, partition_indexes=[partition]
        )
        request = OffsetFetchRequest(
            group_id=group,
            topics=[wanted],
            require_stable=True,
            min_version=_OFFSETS,
            max_version=_OFFSETS,
        )
        answer = await known.ask(group, request)
        codes = {one.error_code for found in answer.topics for one in found.partitions} - {0}
        if codes - {_UNSTABLE}:
            raise for_code(min(codes - {_UNSTABLE}))()
        return bool(codes)

    try:
        return client.run(work, limit)
    except UnsupportedVersionError:
        return False


def refuse_unmarked(unmarked: Unmarked, transactional_id: str) -> HangingTransaction:
    """The error where it is not known whether it was committed."""
    return HangingTransaction(
        f"a transaction of transactional.id {transactional_id} has ended and is still open on "
        f"{unmarked.describe()}, and whether it was committed is not known; nothing more is sent",
        subject=f"producer {unmarked.producer.id}, epoch {unmarked.producer.epoch}",
        hint=UNMARKED_HINT,
    )
