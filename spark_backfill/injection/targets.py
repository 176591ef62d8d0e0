"""Checks of the target topic: still the plan's, visible to readers, and enough replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from backlog.clock import Deadline
from backlog.errors import Paused, PlanStale
from backlog.kafka.admin import TopicInfo, describe_topic, list_offsets, read_metadata
from backlog.kafka.calls import Connection, connect, outlast
from backlog.kafka.errors import TopicMissing

# How long restarting brokers are waited for, in seconds.
PATIENCE = 60.0
# The time limit of a live producer's transaction is a minute by default; the coordinator looks
# for such every 10 s.
HIDDEN_SECONDS = 90.0


def check_target(
    connection: Connection,
    topic: str,
    topic_id: str,
    partitions: int,
    deadline: Deadline | None = None,
) -> TopicInfo:
    """The target topic is the one that the plan was made on.

    Raises:
        PlanStale: deleted, recreated (other topic id), or with another number of partitions, so
            that keys would go elsewhere.
    """
    subject = f"topic {topic}"
    try:
        info = describe_topic(connection, topic, deadline)
    except TopicMissing as error:
        raise PlanStale(
            "the topic was deleted since the plan was made; nothing was sent",
            subject=subject,
            hint="plan again when it is back",
        ) from error
    if info.topic_id != topic_id:
        raise PlanStale(
            f"the topic was recreated since the plan was made: its id is {info.topic_id}, was "
            f"{topic_id}; nothing was sent",
            subject=subject,
            hint="what is in a new topic has other offsets: plan again",
        )
    if info.partitions != partitions:
        raise PlanStale(
            f"the topic has {info.partitions} partitions now, the plan was made with {partitions}; "
            "keys belong elsewhere; nothing was sent",
            subject=subject,
            hint="plan again",
        )
    return info


def record_target_ends(connection: Connection, topic: str, partitions: int) -> dict[int, int]:
    """End offsets of the topic now; the plan keeps them, and verification reads from there."""
    return list_offsets(connection, topic, range(partitions), "latest", "read_uncommitted")


def await_visible(
    connection: Connection,
    topic: str,
    needed: Mapping[int, int],
    seconds: float = HIDDEN_SECONDS,
    *,
    patience: float = PATIENCE,
    look: Callable[[], None] | None = None,
) -> None:
    """Waits until a read_committed reader gets to the offsets `needed`, by partition.

    A live producer's open transaction hides what we committed above it, and for a moment after a
    commit its own markers are not written yet: neither means that a message is missing.

    Args:
        seconds: for which an open transaction is waited for.
        patience: seconds for which brokers that are away are waited for.
        look: called while waiting; may raise.

    Raises:
        Paused: an open transaction still hides them.
    """
    admin, limit = connect(connection), Deadline(seconds)

    def find_hidden() -> dict[int, int]:
        stable = list_offsets(admin, topic, needed, "latest", "read_committed")
        return {p: stable[p] for p, end in needed.items() if stable[p] < end}

    while hidden := outlast(Deadline(patience), find_hidden):
        if limit.expired:
            places = ", ".join(
                f"[{p}] readable to {at}, needed to {needed[p]}" for p, at in sorted(hidden.items())
            )
            raise Paused(
                f"somebody's open transaction hides injected messages for more than {seconds:g} s "
                f"({places}); they cannot be read back yet",
                subject=f"topic {topic}",
                hint="run it again when that transaction has ended; one that never ends is found "
                "with `kafka-transactions.sh find-hanging`",
            )
        if look is not None:
            look()
        time.sleep(limit.remaining(0.3))


def require_replicas(connection: Connection, topics: list[str], deadline: Deadline) -> None:
    """Enough replicas are in sync for a write to be acknowledged.

    Raises:
        Paused: below min.insync.replicas, or without a leader; names the partitions.
    """
    admin = connect(connection)
    for topic in topics:
        config = describe_topic(admin, topic, deadline).config
        needed = int(config.get("min.insync.replicas", "1"))
        described = read_metadata(admin, topic, deadline)
        weak = sorted(
            number
            for number, partition in described.topics[topic].partitions.items()
            # A broker asks for no more than there are.
            if len(partition.isrs) < min(needed, len(partition.replicas)) or partition.leader < 0
        )
        if weak:
            raise Paused(
                f"partitions {weak} have fewer than min.insync.replicas={needed} replicas in sync, "
                "so the broker takes no message; no partial chunk was committed",
                subject=f"topic {topic}",
                hint="bring the missing brokers back, then run it again",
            )
