"""Which requests a cluster takes, asked without changing anything: managed ones refuse some.

ApiVersions names those that a broker has: the one that answers, and while a cluster is upgraded
the others may differ. It is no proof that they are answered. What only reads, and no other part of
an examination asks, is asked here; of all others a refusal shows where they are used, and rights
tell (`backlogctl.kafka.rights`). Nothing is kept (docs/decisions/0065).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError
from backlogctl.kafka.clients import Properties, find_addresses
from backlogctl.kafka.raw_client import (
    RawClient,
    lend_client,
    translate_error,
    translate_properties,
)


@dataclass(frozen=True, slots=True)
class Capability:
    """A request by Kafka's name and key; `without` is what is missing where brokers refuse it;
    `jobs` cannot go on then. Brokers that do not have the request `beside` either miss nothing."""

    request: str
    key: int
    without: str
    jobs: tuple[str, ...] = ()
    beside: int | None = None


class Taken(StrEnum):
    """What is known of a request; `NAMED` was not asked."""

    ANSWERED = "answered"
    NAMED = "named"
    NOT_THERE = "not there"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Taking:
    """`why` is empty where nothing is missing."""

    taken: Taken
    why: str = ""


_PLANS = ("expand", "rebuild", "offload", "redrive")
_CONSUMER_GROUP_HEARTBEAT = 68
CAPABILITIES = (
    Capability("ListGroups", 16, "types of groups and other readers are unknown", _PLANS),
    Capability("DescribeGroups", 15, "the members of groups are unknown", _PLANS),
    Capability(
        *("ConsumerGroupDescribe", 69),
        "members of groups of the newer protocol are unknown, and nothing is planned for these",
        beside=_CONSUMER_GROUP_HEARTBEAT,
    ),
    Capability("DescribeConfigs", 32, "when retention deletes is unknown", _PLANS),
    Capability("DescribeLogDirs", 35, "whether the brokers' disks have room is unknown"),
    Capability("OffsetForLeaderEpoch", 23, "a log that was cut off is not noticed"),
    Capability("DescribeProducers", 61, "who left a transaction open is unknown, or if we did"),
    Capability("DescribeTransactions", 65, "who will end an open transaction is unknown"),
    Capability("IncrementalAlterConfigs", 44, "no retention can be raised", ("hold", "expand")),
    Capability("CreateTopics", 19, "no temporary topic can be made", ("expand",)),
    Capability("DeleteTopics", 20, "a temporary topic would stay", ("expand",)),
    Capability("DeleteGroups", 42, "the group of an expansion stays, which is told then"),
    Capability("DeleteRecords", 21, "what is archived cannot be deleted", ("offload",)),
    Capability("InitProducerId", 22, "nothing can be sent exactly once", _PLANS),
    Capability("AddPartitionsToTxn", 24, "nothing can be written in a transaction", _PLANS),
    Capability("AddOffsetsToTxn", 25, "nothing can be relayed once", ("expand",)),
    Capability("TxnOffsetCommit", 28, "nothing can be relayed once", ("expand",)),
    Capability("EndTxn", 26, "no transaction can be committed", _PLANS),
    Capability("WriteTxnMarkers", 27, "a transaction that hangs cannot be aborted"),
)
# Of one broker: others may have it, or are about to.
NOT_THERE = "the broker that was asked does not have it"
_NO_ERROR = 0


def find_absent(
    properties: Properties, requests: Collection[str], limit: Deadline
) -> tuple[Capability, ...]:
    """Those of these requests that the brokers do not have; none where these properties cannot ask.
    Raises ClusterUnreachable, KafkaFailure: nobody answered.
    """
    settings, _ = translate_properties(properties)
    if settings is None:
        return ()
    try:
        with lend_client(settings, limit, properties) as client:
            named = client.requests
            wanted = (one for one in CAPABILITIES if one.request in requests)
            return tuple(one for one in wanted if _is_missed(one, named))
    except Exception as error:
        raise _explain(error, properties) from error


def read_takings(properties: Properties, limit: Deadline) -> Mapping[Capability, Taking] | None:
    """What the cluster takes, of all in `CAPABILITIES`; one that is named may still be refused.
    None where these properties cannot ask. Raises ClusterUnreachable, KafkaFailure: nobody
    answered.
    """
    settings, _ = translate_properties(properties)
    if settings is None:
        return None
    try:
        with lend_client(settings, limit, properties) as client:
            named = client.requests
            return {one: _look_at(client, one, named, limit) for one in CAPABILITIES}
    except Exception as error:
        raise _explain(error, properties) from error


def _is_missed(one: Capability, named: Collection[int]) -> bool:
    return one.key not in named and (one.beside is None or one.beside in named)


def _look_at(client: RawClient, one: Capability, named: Collection[int], limit: Deadline) -> Taking:
    if one.key not in named:
        return Taking(Taken.NOT_THERE, NOT_THERE if _is_missed(one, named) else "")
    if (why := _ask(client, one.request, limit)) is None:
        return Taking(Taken.NAMED)
    return Taking(Taken.REFUSED, why) if why else Taking(Taken.ANSWERED)


def _explain(error: Exception, properties: Properties) -> BacklogError:
    subject = f"cluster {find_addresses(properties)}"
    return translate_error(error, "ask which requests it takes", subject)


def _ask(client: RawClient, request: str, limit: Deadline) -> str | None:
    """Why brokers do not answer a request that only reads; None where it is not asked."""
    from kafka.errors import IncompatibleBrokerVersion, KafkaConnectionError, for_code
    from kafka.protocol.admin import DescribeLogDirsRequest, ListGroupsRequest

    asking: Mapping[str, Callable[[], Any]] = {
        "ListGroups": lambda: ListGroupsRequest(min_version=0),
        "DescribeLogDirs": lambda: DescribeLogDirsRequest(topics=[], min_version=3),
    }
    if request not in asking:
        return None
    try:
        answer = client.run(lambda: client.send(asking[request]()), limit)
    except KafkaConnectionError:
        return "a broker that was asked closed the connection"
    except IncompatibleBrokerVersion:  # named, in versions that nothing here speaks
        return None
    if answer.error_code == _NO_ERROR:
        return ""
    name = for_code(answer.error_code).__name__
    may_be_granted = "; a right may be missing (`backlogctl acl`)" if "Authoriz" in name else ""
    return f"refused: {name}{may_be_granted}"
