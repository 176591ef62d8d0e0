"""Which requests a cluster takes, asked without changing anything: managed ones refuse some.

ApiVersions names those that the brokers have; it is no proof that they are answered. What only
reads, and no other part of an examination asks, is asked here; of all others a refusal shows where
they are used, and rights tell (`backlogctl.kafka.rights`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
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
    `jobs` cannot go on then."""

    request: str
    key: int
    without: str
    jobs: tuple[str, ...] = ()


_PLANS = ("expand", "rebuild", "offload", "redrive")
_SENDS = ("expand", "rebuild", "redrive")
CAPABILITIES = (
    Capability("ListGroups", 16, "types of groups and other readers are unknown", _PLANS),
    Capability("DescribeGroups", 15, "the members of groups are unknown", _PLANS),
    Capability("DescribeConfigs", 32, "when retention deletes is unknown", _PLANS),
    Capability("DescribeLogDirs", 35, "whether the brokers' disks have room is unknown"),
    Capability("OffsetForLeaderEpoch", 23, "a log that was cut off is not noticed"),
    Capability("DescribeProducers", 61, "who left a transaction open is unknown, or if we did"),
    Capability("DescribeTransactions", 65, "who will end an open transaction is unknown"),
    Capability("IncrementalAlterConfigs", 44, "no retention can be raised", ("hold", "expand")),
    Capability("CreateTopics", 19, "no temporary topic can be made", ("expand",)),
    Capability("DeleteRecords", 21, "what is archived cannot be deleted", ("offload",)),
    Capability("InitProducerId", 22, "nothing can be sent exactly once", _SENDS),
    Capability("EndTxn", 26, "no transaction can be committed", _SENDS),
)
NOT_THERE = "its brokers do not have it"
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
            return tuple(one for one in _list_absent(client) if one.request in requests)
    except Exception as error:
        raise _explain(error, properties) from error


def read_refusals(properties: Properties, limit: Deadline) -> Mapping[Capability, str] | None:
    """By request why it is not answered; one that is not there may still be refused. None where
    these properties cannot ask. Raises ClusterUnreachable, KafkaFailure: nobody answered.
    """
    settings, _ = translate_properties(properties)
    if settings is None:
        return None
    try:
        with lend_client(settings, limit, properties) as client:
            found = dict.fromkeys(_list_absent(client), NOT_THERE)
            for one in CAPABILITIES:
                if one not in found and (why := _ask(client, one.request, limit)):
                    found[one] = why
    except Exception as error:
        raise _explain(error, properties) from error
    return found


def _list_absent(client: RawClient) -> tuple[Capability, ...]:
    named = client.admin._manager.broker_version_data.api_versions
    return tuple(one for one in CAPABILITIES if one.key not in named)


def _explain(error: Exception, properties: Properties) -> BacklogError:
    subject = f"cluster {find_addresses(properties)}"
    return translate_error(error, "ask which requests it takes", subject)


def _ask(client: RawClient, request: str, limit: Deadline) -> str:
    """Why brokers do not answer a request that only reads; "" also where it is not asked."""
    from kafka.errors import KafkaConnectionError, for_code
    from kafka.protocol.admin import DescribeLogDirsRequest, ListGroupsRequest

    asking: Mapping[str, Callable[[], Any]] = {
        "ListGroups": lambda: ListGroupsRequest(min_version=0),
        "DescribeLogDirs": lambda: DescribeLogDirsRequest(topics=[], min_version=3),
    }
    if request not in asking:
        return ""
    try:
        answer = client.run(lambda: client.send(asking[request]()), limit)
    except KafkaConnectionError:
        return "a broker that was asked closed the connection"
    if answer.error_code == _NO_ERROR:
        return ""
    name = for_code(answer.error_code).__name__
    may_be_granted = "; a right may be missing (`backlogctl acl`)" if "Authoriz" in name else ""
    return f"refused: {name}{may_be_granted}"
