"""Which broker leads which partition of a topic, and where leader epochs end in their logs."""

from __future__ import annotations

from collections.abc import Mapping

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure
from backlogctl.kafka.clients import Properties
from backlogctl.kafka.raw_client import (
    RawClient,
    lend_client,
    translate_error,
    translate_properties,
)


def read_leaders(client: RawClient, topic: str, limit: Deadline) -> dict[int, int]:
    """Node ids by partition; a partition that has no leader now is left out.
    Raises Exception: kafka-python's own; see `raw_client.translate_error`.
    """
    return client.run(lambda: ask_leaders(client, topic), limit)


async def ask_leaders(client: RawClient, topic: str) -> dict[int, int]:
    """The same within a coroutine."""
    found = await ask_leader_epochs(client, topic)
    return {number: leader for number, (leader, _) in found.items() if leader >= 0}


async def ask_leader_epochs(
    client: RawClient, topic: str, node: int | None = None
) -> dict[int, tuple[int, int]]:
    """By partition its leader, -1 for none, and its leader epoch, as a broker knows them. The epoch
    grows with each change of leaders, also to none (KIP-320)."""
    from kafka.errors import for_code
    from kafka.protocol.metadata import MetadataRequest

    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
        min_version=4,
        max_version=9,
    )
    (found,) = (await client.send(request, node)).topics
    if found.error_code:
        raise for_code(found.error_code)()
    return {one.partition_index: (one.leader_id, one.leader_epoch) for one in found.partitions}


def read_epoch_ends(
    properties: Properties, topic: str, epochs: Mapping[int, int], limit: Deadline
) -> dict[int, int]:
    """By partition where a leader epoch ends in its log (OffsetForLeaderEpoch, KIP-320); one that
    the log does not know is left out.

    Raises:
        ClusterUnreachable, KafkaFailure: also where kafka-python cannot take these properties.
    """
    subject, doing = f"topic {topic}", "read where a leader epoch ends"
    settings, why = translate_properties(properties)
    if settings is None:
        raise KafkaFailure(f"could not {doing}: kafka-python cannot connect {why}", subject=subject)
    try:
        with lend_client(settings, limit, properties) as client:
            leaders = read_leaders(client, topic, limit)
            ends = {
                place[0]: _read_epoch_end(client, topic, place, leaders[place[0]], limit)
                for place in epochs.items()
                if place[0] in leaders
            }
    except Exception as error:
        raise translate_error(error, doing, subject) from error
    return {number: end for number, end in ends.items() if end >= 0}


def _read_epoch_end(
    client: RawClient, topic: str, place: tuple[int, int], node: int, limit: Deadline
) -> int:
    from kafka.errors import for_code
    from kafka.protocol.consumer.offsets import OffsetForLeaderEpochRequest

    of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = of_topic.OffsetForLeaderPartition(
        partition=place[0], current_leader_epoch=-1, leader_epoch=place[1]
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[of_topic(topic=topic, partitions=[partition])]
    )
    (answer,) = client.run(lambda: client.send(request, node), limit).topics
    (found,) = answer.partitions
    if found.error_code:
        raise for_code(found.error_code)()
    end: int = found.end_offset
    return end
