"""The group's commit on one source partition, with the counters in its metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from confluent_kafka import KafkaException, TopicPartition

from backlog.clock import Deadline
from backlog.errors import Refused
from backlog.kafka.calls import outlast, seconds_left
from backlog.kafka.clients import Admin
from fanout.relay.counters import Counters, read_counters


@dataclass(frozen=True, slots=True)
class CommitWithMetadata:
    """A committed offset and what was written beside it."""

    offset: int
    metadata: str | None
    epoch: int | None = None  # of the leader that the message before it came from

    def counters(self, recovery_id: str) -> Counters:
        """The relay's counters, zero where another recovery, or a consumer, committed."""
        return read_counters(self.metadata, recovery_id)


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
    subject, doing = f"group {group} on topic {topic}", "read stable committed offsets"
    reader = admin.open_reader(group, require_stable=stable)

    def call() -> dict[int, CommitWithMetadata]:
        wanted = [TopicPartition(topic, partition) for partition in partitions]
        try:
            answer = reader.committed(wanted, timeout=seconds_left(limit))
        except KafkaException as error:
            raise admin.translate(error, subject, doing, limit.seconds) from error
        finally:
            reader.poll(0)
        found: dict[int, CommitWithMetadata] = {}
        for item in answer:
            if item.error is not None:
                raise admin.translate(item.error, f"{subject}, partition {item.partition}", doing)
            if item.offset < 0:
                raise Refused(
                    "it has no committed offset, so it is not known where to begin",
                    subject=f"{subject}, partition {item.partition}",
                    hint="set one with kafka-consumer-groups, and plan again",
                )
            epoch = cast(int | None, item.leader_epoch)  # the stub says int; it is None too
            known = None if epoch is None or epoch < 0 else epoch
            found[item.partition] = CommitWithMetadata(item.offset, item.metadata, known)
        return found

    return outlast(limit, call)
