"""Which broker leads which partition of a topic, by the Metadata request."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.kafka.raw_client import RawClient


def read_leaders(client: RawClient, topic: str, limit: Deadline) -> dict[int, int]:
    """Node ids by partition; a partition that has no leader now is left out.

    Raises:
        Exception: kafka-python's own; see `raw_client.translate_error`.
    """
    from kafka.errors import for_code
    from kafka.protocol.metadata import MetadataRequest

    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
        min_version=4,
        max_version=9,
    )
    (found,) = client.run(lambda: client.send(request), limit).topics
    if found.error_code:
        raise for_code(found.error_code)()
    return {one.partition_index: one.leader_id for one in found.partitions if one.leader_id >= 0}
