"""Commits on the source partitions, with the relay's counters in their metadata.

Each transaction commits its source offset twice: into the original group, from where its consumers
go on, and into the recovery's own group, which nobody resets: that is the relay's own position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from confluent_kafka import KafkaException, TopicPartition

from backlog.clock import Deadline
from backlog.errors import Refused
from backlog.kafka.calls import outlast, seconds_left
from backlog.kafka.clients import Admin
from fanout.relay.counters import Counters, is_counted, read_counters

# A broker that dies takes a request along; its client notices nothing until this is over.
_TRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class CommitWithMetadata:
    """A committed offset and what was written beside it."""

    offset: int
    metadata: str | None
    epoch: int | None = None  # of the leader that the message before it came from

    def counters(self, recovery_id: str) -> Counters:
        """The relay's counters, zero where another recovery, or a consumer, committed."""
        return read_counters(self.metadata, recovery_id)

    def is_of(self, recovery_id: str) -> bool:
        """Whether a relay of this recovery made the commit."""
        return is_counted(self.metadata, recovery_id)


def read_start(
    admin: Admin, group: str, topic: str, partition: int, limit: Deadline
) -> CommitWithMetadata:
    """Where the relay of a partition goes on: its group's last stable commit.

    Stable: while a transaction that commits offsets is undecided, the answer is waited for.

    Raises:
        Refused: there is no committed offset.
        KafkaFailure, ClusterUnreachable.
    """
    return read_all(admin, group, topic, [partition], limit)[partition]


def read_all(
    admin: Admin,
    group: str,
    topic: str,
    partitions: list[int],
    limit: Deadline,
    *,
    stable: bool = True,
) -> dict[int, CommitWithMetadata]:
    """`read_start` of several partitions; not `stable`: without what is undecided."""
    found = _read(admin, group, topic, partitions, limit, stable=stable)
    for partition in partitions:
        if partition not in found:
            raise Refused(
                "it has no committed offset, so it is not known where to begin",
                subject=f"group {group} on topic {topic}, partition {partition}",
                hint="set one with kafka-consumer-groups, and plan again",
            )
    return found


def read_positions(
    admin: Admin,
    recovery_group: str,
    topic: str,
    partitions: list[int],
    recovery_id: str,
    limit: Deadline,
    *,
    stable: bool = True,
) -> dict[int, CommitWithMetadata]:
    """The relay's own positions on the source, of the partitions of which it relayed something.

    Raises:
        KafkaFailure, ClusterUnreachable.
    """
    found = _read(admin, recovery_group, topic, partitions, limit, stable=stable)
    return {number: commit for number, commit in found.items() if commit.is_of(recovery_id)}


def _read(
    admin: Admin, group: str, topic: str, partitions: list[int], limit: Deadline, *, stable: bool
) -> dict[int, CommitWithMetadata]:
    """Commits of the partitions that have one."""
    subject, doing = f"group {group} on topic {topic}", "read stable committed offsets"
    reader = admin.open_reader(group, require_stable=stable)

    def call() -> dict[int, CommitWithMetadata]:
        wanted = [TopicPartition(topic, partition) for partition in partitions]
        try:
            answer = reader.committed(wanted, timeout=min(seconds_left(limit), _TRY_SECONDS))
        except KafkaException as error:
            raise admin.translate(error, subject, doing, limit.seconds) from error
        finally:
            reader.poll(0)
        found: dict[int, CommitWithMetadata] = {}
        for item in answer:
            if item.error is not None:
                raise admin.translate(item.error, f"{subject}, partition {item.partition}", doing)
            if item.offset < 0:
                continue
            epoch = cast(int | None, item.leader_epoch)  # the stub says int; it is None too
            known = None if epoch is None or epoch < 0 else epoch
            found[item.partition] = CommitWithMetadata(item.offset, item.metadata, known)
        return found

    return outlast(limit, call)
