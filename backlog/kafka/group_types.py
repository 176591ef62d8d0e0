"""What kind of group it is: only classic and consumer groups (KIP-848) can be recovered.

A share group (KIP-932) acknowledges message by message and has no committed offsets; a streams
group (KIP-1071) keeps state beside them, which a changed offset contradicts. confluent-kafka knows
neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backlog.clock import Deadline
from backlog.kafka.clients import Properties, find_addresses
from backlog.kafka.raw_client import RawClient, translate_error, translate_properties

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

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    found = read_group_listing(properties, group, deadline)
    return None if found is None else found.type


def read_group_listing(
    properties: Properties, group: str, deadline: Deadline | None = None
) -> GroupListing | None:
    """A group of any type; an empty listing where it is not there, None where it cannot be asked.

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    listings, unknown = read_group_listings(properties, deadline)
    return None if unknown else listings.get(group, GroupListing())


def read_group_listings(
    properties: Properties, deadline: Deadline | None = None
) -> tuple[dict[str, GroupListing], str]:
    """By name every group of every broker; or why that cannot be asked.

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    settings, reason = translate_properties(properties)
    if settings is None:
        return {}, f"the types of groups cannot be asked for {reason}"
    limit = deadline or Deadline(15.0)
    try:
        with RawClient(settings, limit, properties) as client:
            listed = client.run(lambda: list_groups(client), limit)
    except Exception as error:
        subject = f"cluster {find_addresses(properties)}"
        raise translate_error(error, "list the groups", subject) from error
    return {one.group_id: GroupListing(name_type(one), name_state(one)) for one in listed}, ""


def say_why_not(kind: str | None) -> str:
    """Why a group of this type cannot be recovered; "" where it can."""
    return _WHY.get(kind or "", "")


async def list_groups(client: RawClient) -> list[Any]:
    """Every group of every broker, as kafka-python's ListGroupsResponse has them.

    Raises:
        BrokerResponseError: a broker refused.
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
    return found


def name_type(listed: Any) -> str:
    """The type of a listed group, in lower case; "" where the broker does not say."""
    return (getattr(listed, "group_type", "") or "").lower()


def name_state(listed: Any) -> str:
    """The state of a listed group, in lower case; "" where the broker does not say."""
    return (getattr(listed, "group_state", "") or "").lower()
