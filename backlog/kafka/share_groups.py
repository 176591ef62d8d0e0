"""How far a share group (KIP-932) is, by its own request: it has no committed offsets.

Its start offset is that of the oldest message that is not settled; later ones may be acknowledged
already. Its lag (KIP-1226) is what lies from there to the end of the log without those known to be
settled: control records count, and what was acknowledged just now may count still, so it is "at
most".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backlog.clock import Deadline
from backlog.errors import KafkaFailure
from backlog.kafka.clients import Properties, find_addresses
from backlog.kafka.coordinators import Coordinators
from backlog.kafka.raw_client import RawClient, translate_error, translate_properties

_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class SharePartition:
    """`start` and `lag` are None where the broker does not tell them; `lag` came with KIP-1226."""

    topic: str
    partition: int
    start: int | None
    lag: int | None


def read_share_offsets(
    properties: Properties, group: str, deadline: Deadline | None = None
) -> tuple[SharePartition, ...]:
    """Every partition that the share group has begun to read, by topic and number.

    Raises:
        ClusterUnreachable, KafkaFailure: also where these properties, or the brokers, cannot.
    """
    settings, reason = translate_properties(properties)
    if settings is None:
        raise KafkaFailure(
            f"its share offsets cannot be asked for {reason}", subject=f"group {group}"
        )
    limit = deadline or Deadline(_SECONDS)
    try:
        with RawClient(settings, limit) as client:
            return client.run(lambda: _describe(client, group), limit)
    except Exception as error:
        subject = f"group {group} of cluster {find_addresses(properties)}"
        raise translate_error(error, "read its share offsets", subject) from error


async def _describe(client: RawClient, group: str) -> tuple[SharePartition, ...]:
    from kafka.errors import for_code

    from backlog.kafka.schemas import DescribeShareGroupOffsetsRequest

    coordinators = Coordinators(client)
    nodes, code = await coordinators.find([group])
    found: list[SharePartition] = []
    for node in nodes:
        wanted = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
        request = DescribeShareGroupOffsetsRequest(
            groups=[wanted(group_id=group, topics=None)], min_version=0
        )
        (answer,) = (await client.send(request, node)).groups
        code = answer.error_code
        found += [
            _take(topic.topic_name, part) for topic in answer.topics for part in topic.partitions
        ]
    if code:
        coordinators.forget([group])
        raise for_code(code)()
    return tuple(sorted(found, key=lambda one: (one.topic, one.partition)))


def _take(topic: str, part: Any) -> SharePartition:
    known = part.error_code == 0
    return SharePartition(
        topic,
        part.partition_index,
        part.start_offset if known and part.start_offset >= 0 else None,
        part.lag if known and part.lag >= 0 else None,
    )
