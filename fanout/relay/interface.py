"""What every relay engine does; one contract suite tests them all.

It takes source ranges, and reports committed positions, counters, and the last data offset in each
temporary partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from confluent_kafka import KafkaError

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.kafka.throttling import Throttling

# How long failures without progress in between are tolerated.


class Patience:
    """Begins with the first failure after progress, so that idle hours do not use it up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._limit: Deadline | None = None

    def note_progress(self) -> None:
        """Something went on: the next failure is a first one."""
        self._limit = None

    def is_over(self) -> bool:
        """Called at a failure: whether they have gone on for too long."""
        if self._limit is None:
            self._limit = Deadline(self._seconds)
        return self._limit.expired


# Errors that end a transaction. The same messages would be refused again.
LASTING = frozenset(
    {
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
    }
)
# Another transaction may go through, though the client does not say so: brokers that are away or
# come back, a transaction that stood still for too long.
PASSING = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)

Order = Literal["key", "round_robin"]
RECORD, WIRE = "record", "wire"  # the engines


class GuardLost(KafkaFailure):
    """The guard's membership changed, so commits with the relay's copy of it are refused."""

    code = "guard_lost"
    retryable = True


class ConsumerCameBack(BacklogError):
    """Somebody else is in the group: the relay has stopped, and nothing is doubled."""

    code = "consumer_came_back"


class UnexplainedRefusal(KafkaFailure):
    """A transaction was refused, and it is not known whether another one would be: each try copies
    its messages in vain, so there are few."""

    code = "unexplained_refusal"
    retryable = True


class PositionExpired(KafkaFailure):
    """Retention removed messages before they were relayed: what is gone is a gap."""

    code = "position_expired"
    retryable = True


@dataclass(frozen=True, slots=True)
class SourceRange:
    """What to relay of one source partition.

    It begins at the group's committed offset, but not before `start`, which is committed at once
    where it is behind that; it ends before `end`, or goes on until asked to stop where `end` is
    None.
    """

    partition: int
    start: int
    end: int | None = None


@dataclass(frozen=True, slots=True)
class RelayTask:
    """What every source partition's relay has in common. `properties` hold secrets.

    `group_metadata` is the guard's membership, pinned: it is never refreshed, so that a commit
    made after somebody else joined is refused by the broker (protocol P4.5). `recovery_group` gets
    the same offsets without a membership: nobody resets it, so they are the relay's own position.
    `compression` is a codec that the group's clients can read. With `bytes_per_second` the relays
    of all processes send no more together; they share the file `pace_file`.
    """

    properties: Mapping[str, str] = field(repr=False)
    recovery_id: str
    source: str
    target: str
    target_partitions: int
    group: str
    group_metadata: bytes = field(repr=False)
    recovery_group: str = ""
    order: Order = "key"
    partitioner: str = "murmur2"
    transactional_prefix: str = "backlog"
    transaction_timeout_ms: int = 15_000
    compression: str = "none"
    bytes_per_second: float | None = None
    pace_file: str = ""
    side_by_side: int = 1  # source partitions that share this process, and its memory

    def transactional_id(self, partition: int) -> str:
        return name_relay_transactional_id(self.transactional_prefix, self.source, partition)


def name_relay_transactional_id(prefix: str, topic: str, partition: int) -> str:
    """Static, without the recovery's id: else a zombie of a cancelled recovery is not fenced.

    A colon is in no topic's name, so it is never an injection's id.
    """
    return f"{prefix}:relay:{topic}.{partition}"


@dataclass(frozen=True, slots=True)
class Position:
    """How far one source partition's relay is, as its last transaction committed it.

    Attributes:
        committed: the group's committed offset on the source partition.
        relayed: messages of this partition that are in the temporary topic, of all runs of this
            recovery together.
        bytes: their keys and values.
        counts: messages by temporary partition; empty where there are too many partitions to
            carry the counts in the commit.
        last_offsets: the offset of the last data record that this run wrote, by temporary
            partition.
        throttling: of its transactions, since its relay began.
    """

    partition: int
    committed: int
    relayed: int = 0
    bytes: int = 0
    counts: Mapping[int, int] = field(default_factory=dict)
    last_offsets: Mapping[int, int] = field(default_factory=dict)
    throttling: Throttling = field(default_factory=Throttling, compare=False)


Notify = Callable[[Position], None]
ShouldStop = Callable[[], bool]


class RelayEngine(Protocol):
    """Relays one source partition at a time; partitions run side by side."""

    name: str

    def relay(
        self, task: RelayTask, part: SourceRange, notify: Notify, should_stop: ShouldStop
    ) -> Position:
        """Relays until the range's end, or until `should_stop` between two transactions.

        Every read_committed message of the range goes to the temporary topic exactly once over
        all runs, its key, value, headers and timestamp untouched. An attempt that fails leaves
        nothing behind but aborted data; the caller decides whether to try again.

        Args:
            notify: called after each committed transaction.

        Raises:
            ProducerFenced: a newer relay of this partition has taken over.
            GuardLost: a commit was refused because the group has changed.
            PositionExpired: the messages at the position are gone.
            KafkaFailure: anything else; `retryable` says whether to start again.
        """

    def take_over(self, task: RelayTask, partition: int, limit: Deadline, *, ends: bool) -> None:
        """Relays nothing: no older relay of the partition can commit any more.

        Args:
            ends: what they have left open in the temporary topic, though it has ended, ends as it
                did; the topic is there.

        Raises:
            HangingTransaction: how one of their transactions ended is not known.
            KafkaFailure: it is not known whether they are fenced; call again.
        """
