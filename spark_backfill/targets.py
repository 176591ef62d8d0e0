"""The topic that messages are put back into: is it still the plan's, and can it take them."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.errors import Paused, PlanStale
from backlog.kafka.admin import TopicInfo, describe_topic, list_offsets
from backlog.kafka.calls import Connection, connect
from backlog.kafka.errors import TopicMissing


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


def require_replicas(connection: Connection, topics: list[str], deadline: Deadline) -> None:
    """Enough replicas are in sync for a write to be acknowledged.

    Raises:
        Paused: below min.insync.replicas, or without a leader; names the partitions.
    """
    admin = connect(connection)
    for topic in topics:
        config = describe_topic(admin, topic, deadline).config
        needed = int(config.get("min.insync.replicas", "1"))
        described = admin.list_topics(topic, timeout=max(0.1, deadline.remaining(10.0)))
        weak = sorted(
            number
            for number, partition in described.topics[topic].partitions.items()
            if len(partition.isrs) < needed or partition.leader < 0
        )
        if weak:
            raise Paused(
                f"partitions {weak} have fewer than min.insync.replicas={needed} replicas in sync, "
                "so the broker takes no message; no partial chunk was committed",
                subject=f"topic {topic}",
                hint="bring the missing brokers back, then run it again",
            )
