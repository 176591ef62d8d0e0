"""What kind of group it is: only classic and consumer groups (KIP-848) can be recovered.

A share group (KIP-932) acknowledges message by message and has no committed offsets; a streams
group (KIP-1071) keeps state beside them, which a changed offset contradicts. confluent-kafka knows
neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure
from backlogctl.kafka.clients import Properties, find_addresses
from backlogctl.kafka.raw_client import (
    Coordinators,
    RawClient,
    ask_in_coroutine,
    translate_properties,
)

# How far a share group (KIP-932) is, by its own request: it has no committed offsets.
#
# Its start offset is that of the oldest message that is not settled; later ones may be
# acknowledged already. Its lag (KIP-1226) is what lies from there to the end of the log without
# those known to be settled: control records count, and what was acknowledged just now may count
# still, so it is "at most".

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
    Raises ClusterUnreachable, KafkaFailure: also where these properties, or the brokers, cannot.
    """
    settings, reason = translate_properties(properties)
    if settings is None:
        raise KafkaFailure(
            f"its share offsets cannot be asked for {reason}", subject=f"group {group}"
        )
    subject, doing = f"group {group} of cluster {find_addresses(properties)}", "read share offsets"
    limit = deadline or Deadline(_SECONDS)
    work = partial(_describe, group=group)
    return ask_in_coroutine(settings, properties, subject, doing, limit, work)


async def _describe(client: RawClient, group: str) -> tuple[SharePartition, ...]:
    from backlogctl.kafka.schemas import DescribeShareGroupOffsetsRequest

    wanted = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    request = DescribeShareGroupOffsetsRequest(
        groups=[wanted(group_id=group, topics=None)], min_version=0
    )
    answer = await Coordinators(client).ask(group, request, lambda found: found.groups[0])
    found = [_take(topic.topic_name, part) for topic in answer.topics for part in topic.partitions]
    return tuple(sorted(found, key=lambda one: (one.topic, one.partition)))


def _take(topic: str, part: Any) -> SharePartition:
    known = part.error_code == 0
    return SharePartition(
        topic,
        part.partition_index,
        part.start_offset if known and part.start_offset >= 0 else None,
        part.lag if known and part.lag >= 0 else None,
    )


SHARE, STREAMS = "share", "streams"
_WHY = {
    SHARE: "it is a share group: its consumers acknowledge message by message, so it has no "
    "committed offsets, and neither a lag nor a loss can be told from them",
    STREAMS: "it is a group of Kafka Streams, which keeps state beside its offsets: to change "
    "those, or to read beside it, would contradict that state",
}


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as its coordinator lists it, in lower case; "" where the broker does not say."""

    type: str = ""
    state: str = ""


def read_group_type(
    properties: Properties, group: str, deadline: Deadline | None = None
) -> str | None:
    """`classic`, `consumer`, `share`, `streams`; "" of a group that is not there, or whose brokers
    are older than group types; None where it cannot be asked with these properties.
    """
    found = read_group_listing(properties, group, deadline)
    return None if found is None else found.type


def read_group_listing(
    properties: Properties, group: str, deadline: Deadline | None = None
) -> GroupListing | None:
    """A group of any type; empty where it is not there, None where it cannot be asked."""
    listings, unknown = read_group_listings(properties, deadline, group)
    return None if unknown else listings.get(group, GroupListing())


def read_group_listings(
    properties: Properties, deadline: Deadline | None = None, wanted: str = ""
) -> tuple[dict[str, GroupListing], str]:
    """By name every group of every broker; or why that cannot be asked.

    Args:
        wanted: a group; no broker is asked after the one that lists it.
    """
    settings, reason = translate_properties(properties)
    if settings is None:
        return {}, f"the types of groups cannot be asked for {reason}"
    subject, limit = f"cluster {find_addresses(properties)}", deadline or Deadline(15.0)
    work = partial(list_groups, wanted=wanted)
    listed = ask_in_coroutine(settings, properties, subject, "list the groups", limit, work)
    return {one.group_id: GroupListing(name_type(one), name_state(one)) for one in listed}, ""


def explain_unsupported_group(kind: str | None) -> str:
    """Why a group of this type cannot be recovered; "" where it can."""
    return _WHY.get(kind or "", "")


async def list_groups(client: RawClient, wanted: str = "") -> list[Any]:
    """Every group of every broker, as kafka-python's ListGroupsResponse has them; those of some
    where one of them is wanted.
    Raises BrokerResponseError: a broker refused.
    """
    from kafka import errors
    from kafka.protocol.admin import ListGroupsRequest
    from kafka.protocol.metadata import MetadataRequest

    # Brokers come and go.
    await client.send(MetadataRequest(topics=[], min_version=4, max_version=12))
    found: list[Any] = []
    for node in client.list_brokers():
        answer = await client.send(ListGroupsRequest(min_version=0), node)
        if answer.error_code:
            raise errors.for_code(answer.error_code)()
        found.extend(answer.groups)
        if any(one.group_id == wanted for one in answer.groups):
            break
    return found


def name_type(listed: Any) -> str:
    """The type of a listed group, in lower case; "" where the broker does not say."""
    return (getattr(listed, "group_type", "") or "").lower()


# Of the classic protocol; as confluent-kafka names them.
_STATES = {
    "preparingrebalance": "preparing_rebalancing",
    "completingrebalance": "completing_rebalancing",
}


def name_state(listed: Any) -> str:
    """The state of a listed group, in lower case; "" where the broker does not say."""
    state = (getattr(listed, "group_state", "") or "").lower()
    return _STATES.get(state, state)
