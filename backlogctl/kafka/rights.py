"""What the tool's principal may do, asked without doing it.

Brokers tell the operations allowed on topics (also on those that do not exist), groups and the
cluster (KIP-430). Of transactional ids they tell none: an EndTxn with a producer id that nobody has
is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED or INVALID_PRODUCER_ID_MAPPING, and changes
nothing. Which operation implies which: Kafka's AclEntry (READ, WRITE, DELETE and ALTER imply
DESCRIBE, ALTER_CONFIGS implies DESCRIBE_CONFIGS).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any, TypeVar

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from backlogctl.clock import Deadline
from backlogctl.kafka.clients import Properties, find_addresses
from backlogctl.kafka.raw_client import (
    Coordinators,
    RawClient,
    lend_client,
    translate_error,
    translate_properties,
)
from backlogctl_delivery.kafka import READER_GROUP, uses_msk
from backlogctl_delivery.visible import quote_word


class Resource(StrEnum):
    """What a rule is about, as `kafka-acls` names it."""

    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


class Operation(IntEnum):
    """Kafka's AclOperation, by its code."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


@dataclass(frozen=True, slots=True)
class Right:
    """One operation on one resource, or on all whose names begin with `name`.

    Attributes:
        purpose: what it is needed for, to follow "to".
        asked: of a prefix, the name that is asked about.
        needed: whether the work fails without it; else something stays unknown, and is said.
    """

    resource: Resource
    name: str
    operation: Operation
    purpose: str
    prefixed: bool = False
    asked: str = ""
    needed: bool = True

    @property
    def subject(self) -> str:
        return self.asked or self.name

    def __str__(self) -> str:
        if self.resource is Resource.CLUSTER:
            return f"{self.operation.name} on the cluster"
        star = "*" if self.prefixed else ""
        return f"{self.operation.name} on {self.resource} {self.name}{star}"


@dataclass(frozen=True, slots=True)
class RightsReading:
    """What is missing; `unknown`: could not be asked, and `reason` says why."""

    missing: tuple[Right, ...] = ()
    unknown: tuple[Right, ...] = ()
    reason: str = ""


CLUSTER_NAME = "kafka-cluster"
_BINDING_TYPES = {
    Resource.CLUSTER: ResourceType.BROKER,
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.GROUP: ResourceType.GROUP,
    Resource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
}
_SECONDS = 30.0
_TOPIC_DENIED, _GROUP_DENIED, _ID_DENIED = 29, 30, 53
_NO_PRODUCER = 2**63 - 1
Answer = TypeVar("Answer")
# By resource and name: the operations allowed; None where the broker does not tell.
_Allowed = Mapping[tuple[Resource, str], Collection[Operation] | None]


def read_rights(
    properties: Properties, rights: Sequence[Right], deadline: Deadline | None = None
) -> RightsReading:
    """Which of these rights the client of these properties does not have. Changes nothing.
    A right that is asked by a request which these brokers do not take is unknown.
    Raises ClusterUnreachable, KafkaFailure: nobody answered, or the login was refused.
    """
    settings, reason = translate_properties(properties)
    if settings is None:
        return RightsReading(unknown=tuple(rights), reason=f"rights cannot be asked for {reason}")
    limit = deadline or Deadline(_SECONDS)
    subject = f"cluster {find_addresses(properties)}"
    try:
        with lend_client(settings, limit, properties) as client:
            allowed = _ask_all(client, rights, limit)
    except Exception as error:
        raise translate_error(error, "ask what is allowed", subject) from error
    return _compare(rights, allowed)


def make_grants(rights: Iterable[Right], principal: str, properties: Properties) -> list[str]:
    """What allows these rights: lines of `kafka-acls.sh`, or what Amazon takes in their place."""
    if uses_msk(properties):
        return make_iam_statements(rights)
    return make_acl_lines(rights, principal, find_addresses(properties))


# By right the actions of Amazon MSK that are equivalent, with those that they require on the same
# resource: https://docs.aws.amazon.com/msk/latest/developerguide/kafka-actions.html
IAM_ACTIONS: Mapping[tuple[Resource, Operation], tuple[str, ...]] = {
    (Resource.CLUSTER, Operation.DESCRIBE): ("DescribeCluster",),
    (Resource.CLUSTER, Operation.ALTER): ("DescribeCluster", "AlterCluster"),
    (Resource.CLUSTER, Operation.DESCRIBE_CONFIGS): ("DescribeClusterDynamicConfiguration",),
    (Resource.TOPIC, Operation.CREATE): ("CreateTopic",),
    (Resource.TOPIC, Operation.DESCRIBE): ("DescribeTopic",),
    (Resource.TOPIC, Operation.DESCRIBE_CONFIGS): ("DescribeTopicDynamicConfiguration",),
    (Resource.TOPIC, Operation.ALTER_CONFIGS): (
        "DescribeTopicDynamicConfiguration",
        "AlterTopicDynamicConfiguration",
    ),
    (Resource.TOPIC, Operation.READ): ("DescribeTopic", "ReadData"),
    (Resource.TOPIC, Operation.WRITE): ("DescribeTopic", "WriteData"),
    (Resource.TOPIC, Operation.DELETE): ("DescribeTopic", "DeleteTopic"),
    (Resource.GROUP, Operation.DESCRIBE): ("DescribeGroup",),
    (Resource.GROUP, Operation.READ): ("DescribeGroup", "AlterGroup"),
    (Resource.GROUP, Operation.DELETE): ("DescribeGroup", "DeleteGroup"),
    (Resource.TRANSACTIONAL_ID, Operation.DESCRIBE): ("DescribeTransactionalId",),
    (Resource.TRANSACTIONAL_ID, Operation.WRITE): (
        "DescribeTransactionalId",
        "AlterTransactionalId",
    ),
}


def make_iam_statements(rights: Iterable[Right]) -> list[str]:
    """Statements of an IAM policy, each a line of JSON; who grants them fills in REGION, ACCOUNT,
    NAME and UUID of the cluster. Every action requires Connect, and ReadData a group."""
    actions: defaultdict[str, dict[str, None]] = defaultdict(dict)
    actions["cluster/NAME/UUID"]["Connect"] = None
    reader = Right(Resource.GROUP, READER_GROUP, Operation.READ, "read without joining")
    for given in rights:
        reads = (given.resource, given.operation) == (Resource.TOPIC, Operation.READ)
        for right in (given, reader) if reads else (given,):
            path = f"{right.resource}/NAME/UUID"
            if right.resource is not Resource.CLUSTER:
                path += f"/{right.name}{'*' if right.prefixed else ''}"
            actions[path] |= dict.fromkeys(IAM_ACTIONS[right.resource, right.operation])
    return [
        json.dumps(
            {
                "Effect": "Allow",
                "Action": [f"kafka-cluster:{name}" for name in names],
                "Resource": f"arn:aws:kafka:REGION:ACCOUNT:{path}",
            }
        )
        for path, names in actions.items()
    ]


def make_acl_lines(
    rights: Iterable[Right], principal: str, addresses: str = "HOST:PORT"
) -> list[str]:
    """`kafka-acls.sh` lines that allow these rights, one for each resource."""
    operations: defaultdict[tuple[Resource, str, bool], list[str]] = defaultdict(list)
    for right in rights:
        known = operations[right.resource, right.name, right.prefixed]
        word = "".join(part.capitalize() for part in right.operation.name.split("_"))
        if word not in known:
            known.append(word)
    lines = []
    for (resource, name, prefixed), words in operations.items():
        verbs = " ".join(f"--operation {word}" for word in words)
        about = "--cluster" if resource is Resource.CLUSTER else f"--{resource} {quote_word(name)}"
        pattern = " --resource-pattern-type prefixed" if prefixed else ""
        lines.append(
            f"kafka-acls.sh --bootstrap-server {quote_word(addresses)} "
            f"--command-config admin.properties --add --allow-principal {quote_word(principal)} "
            f"{verbs} {about}{pattern}"
        )
    return lines


def make_bindings(rights: Iterable[Right], principal: str) -> list[AclBinding]:
    """The same as rules of the admin client."""
    return [
        AclBinding(
            _BINDING_TYPES[right.resource],
            right.name,
            ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL,
            principal,
            "*",
            AclOperation[right.operation.name],
            AclPermissionType.ALLOW,
        )
        for right in rights
    ]


def _compare(rights: Sequence[Right], allowed: _Allowed) -> RightsReading:
    missing, unknown = [], []
    cluster = allowed.get((Resource.CLUSTER, CLUSTER_NAME)) or ()
    for right in rights:
        found = allowed.get((right.resource, right.subject))
        if right.operation is Operation.CREATE and Operation.CREATE in cluster:
            continue
        if found is None or _is_hidden(right, found):
            unknown.append(right)
        elif right.operation not in found:
            missing.append(right)
    reason = "the brokers do not tell" if unknown else ""
    return RightsReading(tuple(missing), tuple(unknown), reason)


def _is_hidden(right: Right, found: Collection[Operation]) -> bool:
    """Brokers tell what is allowed on the cluster only to who may describe it."""
    other = right.operation is not Operation.DESCRIBE
    return right.resource is Resource.CLUSTER and other and Operation.DESCRIBE not in found


def _ask_all(client: RawClient, rights: Sequence[Right], limit: Deadline) -> _Allowed:
    names: defaultdict[Resource, set[str]] = defaultdict(set)
    for right in rights:
        names[right.resource].add(right.subject)
    allowed: dict[tuple[Resource, str], Collection[Operation] | None] = {}
    allowed[Resource.CLUSTER, CLUSTER_NAME] = _run(client, lambda: ask_cluster(client), limit)
    if topics := names[Resource.TOPIC]:
        found = _run(client, lambda: _ask_topics(client, topics), limit) or {}
        allowed |= {(Resource.TOPIC, name): one for name, one in found.items()}
    coordinators = Coordinators(client)
    for name in names[Resource.GROUP]:
        ask = partial(_ask_group, client, coordinators, name)
        allowed[Resource.GROUP, name] = _run(client, ask, limit)
    for name in names[Resource.TRANSACTIONAL_ID]:
        ask_id = partial(_ask_transactional_id, client, name)
        allowed[Resource.TRANSACTIONAL_ID, name] = _run(client, ask_id, limit)
    return allowed


def _run(
    client: RawClient, ask: Callable[[], Coroutine[Any, Any, Answer]], limit: Deadline
) -> Answer | None:
    """None where these brokers do not take the request."""
    from kafka.errors import UnsupportedVersionError

    try:
        return client.run(ask, limit)
    except UnsupportedVersionError:
        return None


async def ask_cluster(client: RawClient) -> Collection[Operation] | None:
    """The operations allowed on the cluster; None where the broker does not tell."""
    from kafka.protocol.admin import DescribeClusterRequest

    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    return _take(await client.send(request))


async def _ask_topics(
    client: RawClient, names: Iterable[str]
) -> dict[str, Collection[Operation] | None]:
    from kafka.protocol.metadata import MetadataRequest

    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(names)],
        include_topic_authorized_operations=True,
        allow_auto_topic_creation=False,
        min_version=8,
        max_version=12,
    )
    # A topic that is not there has its operations all the same.
    return {
        topic.name: () if topic.error_code == _TOPIC_DENIED else _take(topic)
        for topic in (await client.send(request)).topics
    }


async def _ask_group(
    client: RawClient, coordinators: Coordinators, name: str
) -> Collection[Operation] | None:
    from kafka.errors import GroupAuthorizationFailedError
    from kafka.protocol.admin import DescribeGroupsRequest

    # Up to version 5 a group that is not there is `Dead`, and no error.
    request = DescribeGroupsRequest(
        groups=[name], include_authorized_operations=True, min_version=3, max_version=5
    )
    try:
        # The broker makes the topic of commits when it is asked for the first time: asked again.
        return _take(await coordinators.ask(name, request, lambda answer: answer.groups[0]))
    except GroupAuthorizationFailedError:
        return ()


async def _ask_transactional_id(client: RawClient, name: str) -> Collection[Operation]:
    from kafka.protocol.admin import DescribeTransactionsRequest
    from kafka.protocol.producer import EndTxnRequest

    request = EndTxnRequest(
        transactional_id=name,
        producer_id=_NO_PRODUCER,
        producer_epoch=0,
        committed=False,
        max_version=3,
    )
    if (await client.send(request)).error_code != _ID_DENIED:
        return (Operation.WRITE, Operation.DESCRIBE)
    told = await client.send(DescribeTransactionsRequest(transactional_ids=[name]))
    denied = any(state.error_code == _ID_DENIED for state in told.transaction_states)
    return () if denied else (Operation.DESCRIBE,)


def _take(answer: Any) -> Collection[Operation] | None:
    """The operations of an answer; None where it has none, as those of old brokers."""
    codes = answer.authorized_operations
    if codes is None:
        return None
    known = {code.value for code in Operation}
    return {Operation(int(code)) for code in codes if int(code) in known}
