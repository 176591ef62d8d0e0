"""What coordinators of groups are asked: describe a group, read all that it committed, set its
offsets, delete it.

Through kafka-python: an admin request of librdkafka 2.16 to a coordinator aborts the process where
that broker goes away (its issue 4605), and waits on for one that another has replaced. Only where
kafka-python cannot log in is librdkafka asked.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    TopicPartition,
)

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.kafka.clients import (
    Admin,
    Connection,
    ask,
    ask_in_turns,
    connect,
    retry_transient,
    wait_for,
)
from backlogctl.kafka.errors import GroupActive, GroupMissing, RequestMissing, TopicMissing
from backlogctl.kafka.group_types import name_state, read_group_listing
from backlogctl.kafka.groups import Commit, GroupState, Member, committed_offsets
from backlogctl.kafka.raw_client import (
    Coordinators,
    RawClient,
    ask_in_coroutine,
    translate_error,
    translate_properties,
)
from backlogctl.kafka.topics import DEFAULT_SECONDS, read_topic_id
from backlogctl_delivery.kafka import AccessDenied

Taken = TypeVar("Taken")
# What a broker answers of groups that it coordinates, or the error code, by name.
_Work = Callable[[RawClient, int, Sequence[str]], Coroutine[Any, Any, dict[str, Taken | int]]]
GroupCommits = Mapping[tuple[str, int], Commit]

_OFFSETS_VERSION = 9  # later ones name topics by their ids
_DESCRIBE_VERSION = 5  # up to it a group that is not there is `Dead`, and no error
_HEARTBEAT_KEY = 68  # ConsumerGroupHeartbeat
_UNSUPPORTED_VERSION, _GROUP_ID_NOT_FOUND = 35, 69


def describe_group_state(
    connection: Connection, group: str, deadline: Deadline | None = None
) -> GroupState:
    """State, members and protocol of a group; a group that is not there is `dead`, no members."""
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    answer = _describe_all(admin, [group], limit)[group]
    if isinstance(answer, GroupMissing):
        return GroupState("dead", ())
    return _get(answer)


def read_group_state(
    connection: Connection, group: str, deadline: Deadline | None = None
) -> GroupState:
    """`describe_group_state`, without the members where those cannot be seen: of the newer protocol
    each topic that they are assigned must be described (KIP-848), and clusters refuse requests."""
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    try:
        return describe_group_state(admin, group, limit)
    except (AccessDenied, RequestMissing) as error:
        listed = read_group_listing(admin.properties, group, limit)
        if listed is None or (isinstance(error, AccessDenied) and not listed.state):
            raise
        return GroupState(listed.state or "dead", (), listed.type)


def describe_group_states(
    admin: Admin, groups: Sequence[str], limit: Deadline
) -> dict[str, GroupState]:
    """`describe_group_state` of many at once; those that may not or cannot be seen are left out."""
    answers = _describe_all(admin, groups, limit)
    return {name: one for name, one in answers.items() if isinstance(one, GroupState)}


def read_all_commits(
    admin: Admin, groups: Sequence[str], limit: Deadline
) -> dict[str, GroupCommits | AccessDenied]:
    """By group what it committed on every topic, or why that may not be read.

    A group that went away since it was listed is left out. An offset of -2 stands for the log
    start, as KafkaJS commits it.

    Raises:
        ClusterUnreachable, KafkaFailure: a group could not be read for another reason.
    """
    work: _Work[GroupCommits] = partial(fetch_commits, take_commits)
    verb, request = admin.list_consumer_group_offsets, ConsumerGroupTopicPartitions
    doing = "read committed offsets"
    answers = _ask_all(admin, groups, doing, limit, work, verb, request, _take_items)
    found: dict[str, GroupCommits | AccessDenied] = {}
    for name, answer in answers.items():
        with suppress(GroupMissing):
            found[name] = answer if isinstance(answer, AccessDenied) else _get(answer)
    return found


def set_group_offsets(
    connection: Connection,
    group: str,
    topic: str,
    offsets: Mapping[int, int],
    deadline: Deadline | None = None,
    *,
    new_topic: bool = False,
) -> None:
    """Sets committed offsets of a group without members, and reads them back.

    Args:
        new_topic: the topic was made a moment ago: a broker that does not know it, or not all of
            its partitions, is asked again until the deadline.

    Raises:
        GroupActive: the group has members; names them. Nothing was set.
        KafkaFailure: a partition was refused, or what reads back is not what was set.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"group {group} on topic {topic}", "set committed offsets"
    before = describe_group_state(admin, group, limit)
    if before.is_active:
        raise _refuse_active(group, before)
    wanted = [TopicPartition(topic, partition, at) for partition, at in sorted(offsets.items())]
    work: _Work[None] = partial(_commit, topic, offsets)
    verb = admin.alter_consumer_group_offsets

    def make_request(name: str) -> ConsumerGroupTopicPartitions:
        return ConsumerGroupTopicPartitions(name, wanted)

    def take(answer: Any) -> None:
        for item in answer.topic_partitions:
            if item.error is not None:
                raise admin.translate(item.error, f"{subject}, partition {item.partition}", doing)

    def call(turn: Deadline) -> None:
        try:
            _refuse_unknown(admin, topic, offsets, f"could not {doing}", turn)
            _get(_ask_all(admin, [group], doing, turn, work, verb, make_request, take)[group])
        except TopicMissing as error:
            error.retryable = new_topic
            raise

    try:
        ask_in_turns(limit, call)
    except GroupActive as error:
        raise _refuse_active(group, describe_group_state(admin, group, limit)) from error
    back = committed_offsets(admin, group, topic, offsets, limit)
    wrong = {p: back[p] for p in offsets if back[p] != offsets[p]}
    if wrong:
        raise KafkaFailure(
            f"set committed offsets, but {wrong} reads back",
            subject=subject,
            hint="something else commits for this group; stop it and try again",
            retryable=True,
        )


def delete_group(connection: Connection, group: str, deadline: Deadline | None = None) -> None:
    """Deletes a group and all its commits; one that is gone already is fine.
    Raises GroupActive: it has members.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    verb, doing = admin.delete_consumer_groups, "delete it"
    with suppress(GroupMissing):
        _get(_ask_all(admin, [group], doing, limit, _delete, verb, str, lambda _: None)[group])


def _refuse_unknown(
    admin: Admin, topic: str, partitions: Iterable[int], failed: str, limit: Deadline
) -> None:
    # The broker accepts offsets of partitions that do not exist without an error.
    known = read_topic_id(admin, topic, limit)[1]
    strange = sorted(p for p in partitions if not 0 <= p < known)
    if strange:
        raise TopicMissing(
            f"{failed}: partitions {strange} do not exist, it has {known}", subject=f"topic {topic}"
        )


def _refuse_active(group: str, state: GroupState) -> GroupActive:
    names = ", ".join(str(member) for member in state.members) or f"state {state.state}"
    return GroupActive(
        f"its offsets were not set, the group is active: {names}",
        subject=f"group {group}",
        hint="stop these members, wait until the group is empty, and try again",
    )


def _get(answer: Taken | BacklogError) -> Taken:
    if isinstance(answer, BacklogError):
        raise answer
    return answer


def _describe_all(
    admin: Admin, groups: Sequence[str], limit: Deadline
) -> dict[str, GroupState | BacklogError]:
    verb = admin.describe_consumer_groups
    return _ask_all(admin, groups, "describe it", limit, _describe, verb, str, _take_state)


def _ask_all(
    admin: Admin,
    groups: Sequence[str],
    doing: str,
    limit: Deadline,
    work: _Work[Taken],
    verb: Callable[..., Any],
    make_request: Callable[[str], Any],
    take: Callable[[Any], Taken],
) -> dict[str, Taken | BacklogError]:
    """By group what its coordinator answers, or why it does not. For what may be done twice.

    Args:
        work: asks by kafka-python.
        verb, make_request, take: of librdkafka's admin client; what it takes of a group, and what
            its answer says.
    """
    found: dict[str, Taken] = {}
    refused: dict[str, BacklogError] = {}
    silent: set[int] = set()

    async def ask_once(client: RawClient) -> None:
        left = [name for name in groups if name not in refused]
        why = await Coordinators(client).ask_all(left, partial(work, client), found, silent)
        for name, error in why.items():
            if not getattr(error, "retriable", isinstance(error, OSError)):
                refused[name] = translate_error(error, doing, f"group {name}")
        if late := next((error for name, error in why.items() if name not in refused), None):
            raise late

    settings, _ = translate_properties(admin.properties)
    if settings is not None:
        subject = f"group {groups[0]}" if len(groups) == 1 else f"cluster {admin.addresses}"
        try:
            ask_in_coroutine(settings, admin.properties, subject, doing, limit, ask_once)
        except KafkaFailure as error:
            left = (name for name in groups if name not in found and name not in refused)
            refused |= dict.fromkeys(left, error)
    else:
        for name, ask_again in [
            (name, _start(admin, verb, make_request(name), f"group {name}", doing, limit))
            for name in groups
        ]:
            try:
                found[name] = take(retry_transient(admin, limit, ask_again))
            except KafkaFailure as error:
                refused[name] = error
    return {**found, **refused}


def _start(
    admin: Admin,
    verb: Callable[..., Any],
    request: Any,
    subject: str,
    doing: str,
    limit: Deadline,
) -> Callable[[], Any]:
    """Asks by librdkafka; returns what awaits the answer, and asks again where it is called again.
    So many coordinators are waited for at once."""

    def start() -> Any:
        (future,) = ask(admin, verb, subject, doing, limit, [request]).values()
        return future

    started = [start()]
    return lambda: wait_for(admin, started.pop() if started else start(), subject, doing, limit)


async def _describe(
    client: RawClient, node: int, names: Sequence[str]
) -> dict[str, GroupState | int]:
    from kafka.errors import UnsupportedVersionError
    from kafka.protocol.admin import DescribeGroupsRequest

    from backlogctl.kafka.schemas import ConsumerGroupDescribeRequest

    classic = DescribeGroupsRequest(groups=list(names), max_version=_DESCRIBE_VERSION)
    found: dict[str, GroupState | int] = {
        one.group_id: one.error_code or _take_classic(one)
        for one in (await client.send(classic, node)).groups
    }
    # So are those of the newer protocol (KIP-848).
    dead = [name for name, state in found.items() if state == GroupState("dead", ())]
    if dead:
        request = ConsumerGroupDescribeRequest(group_ids=dead, min_version=0)
        try:
            for one in (await client.send(request, node)).groups:
                if one.error_code not in (_GROUP_ID_NOT_FOUND, _UNSUPPORTED_VERSION):
                    found[one.group_id] = one.error_code or _take_newer(one)
        except UnsupportedVersionError:
            # Who takes their heartbeats, and does not describe them (Kafka 3.7), may list them.
            if _HEARTBEAT_KEY in client.requests:
                hidden = await _find_listed(client, node, dead)
                found |= dict.fromkeys(hidden, _UNSUPPORTED_VERSION)
                # A list is silent on groups whose coordinator has moved since.
                again = (await client.send(classic, node)).groups
                found |= {one.group_id: one.error_code for one in again if one.error_code}
    return found


async def _find_listed(client: RawClient, node: int, names: Sequence[str]) -> Sequence[str]:
    """Those that the broker lists; all where it does not tell."""
    from kafka.errors import UnsupportedVersionError
    from kafka.protocol.admin import ListGroupsRequest

    try:
        answer = await client.send(ListGroupsRequest(min_version=0), node)
    except UnsupportedVersionError:
        return names
    listed = {one.group_id for one in answer.groups}
    return names if answer.error_code else [name for name in names if name in listed]


def _take_classic(answer: Any) -> GroupState:
    state = name_state(answer)
    if state == "dead":
        return GroupState("dead", ())
    members = tuple(
        Member(
            member.client_id,
            member.client_host.lstrip("/"),
            member.member_id,
            _read_assignment(answer.protocol_type, member.member_assignment),
            member.group_instance_id or "",
        )
        for member in answer.members
    )
    return GroupState(state, members, "classic", not answer.protocol_type)


def _read_assignment(protocol: str, data: bytes) -> dict[str, tuple[int, ...]]:
    """Of a consumer; others, such as workers of Connect, are assigned other things."""
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

    if protocol != "consumer" or not data:
        return {}
    try:
        assigned = ConsumerProtocolAssignment.decode(data).assigned_partitions
    except (ValueError, IndexError, struct.error):  # as some clients write it
        return {}
    return {one.topic: tuple(sorted(one.partitions)) for one in assigned}


def _take_newer(answer: Any) -> GroupState:
    members = tuple(
        Member(
            member.client_id,
            member.client_host.lstrip("/"),
            member.member_id,
            {
                one.topic_name: tuple(sorted(one.partitions))
                for one in member.assignment.topic_partitions
            },
            member.instance_id or "",
        )
        for member in answer.members
    )
    return GroupState(name_state(answer), members, "consumer")


def _take_state(answer: Any) -> GroupState:
    """Of librdkafka's."""
    state: ConsumerGroupState = answer.state
    if state is ConsumerGroupState.DEAD:
        return GroupState("dead", ())
    members = tuple(
        Member(
            str(member.client_id),
            str(member.host).lstrip("/"),
            str(member.member_id),
            _by_topic(member.assignment.topic_partitions),
            member.group_instance_id or "",
        )
        for member in answer.members
    )
    kind = answer.type.name.lower() if answer.type else ""
    return GroupState(state.name.lower(), members, kind, bool(answer.is_simple_consumer_group))


def _by_topic(places: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for place in places:
        found[place.topic].append(place.partition)
    return {topic: tuple(sorted(numbers)) for topic, numbers in found.items()}


async def fetch_commits(
    take: Callable[[Iterable[Any]], Taken | int],
    client: RawClient,
    node: int,
    names: Sequence[str],
) -> dict[str, Taken | int]:
    """What groups of this coordinator have committed on all topics, or an error code, by name.
    `take`: of OffsetFetch's topics.
    """
    found: dict[str, Taken | int] = {}
    for name, request in client.admin._list_group_offsets_requests(dict.fromkeys(names)):
        answer = await client.send(request, node)
        for group in [answer] if name else answer.groups:
            found[name or group.group_id] = group.error_code or take(group.topics)
    return found


def take_commits(topics: Iterable[Any]) -> GroupCommits | int:
    """By topic and partition; the error code of a partition that cannot be read."""
    found: dict[tuple[str, int], Commit] = {}
    for topic in topics:
        for part in topic.partitions:
            if part.error_code:
                return int(part.error_code)
            if part.committed_offset >= 0 or part.committed_offset == OFFSET_BEGINNING:
                epoch = getattr(part, "committed_leader_epoch", -1)
                commit = Commit(part.committed_offset, epoch if epoch >= 0 else None)
                found[topic.name, part.partition_index] = commit
    return found


def _take_items(answer: Any) -> GroupCommits:
    """Of librdkafka's; a partition with an error raises it."""
    found: dict[tuple[str, int], Commit] = {}
    for item in answer.topic_partitions or ():
        if item.error is not None:
            raise KafkaFailure(
                f"could not read partition {item.partition}: {item.error.str()}",
                subject=f"topic {item.topic}",
            )
        if item.offset >= 0 or item.offset == OFFSET_BEGINNING:
            epoch = item.leader_epoch
            found[item.topic, item.partition] = Commit(
                item.offset, None if epoch is None or epoch < 0 else epoch
            )
    return found


async def _commit(
    topic: str, offsets: Mapping[int, int], client: RawClient, node: int, names: Sequence[str]
) -> dict[str, int | None]:
    """As one who is no member of the group."""
    from kafka.protocol.consumer import OffsetCommitRequest

    topic_of = OffsetCommitRequest.OffsetCommitRequestTopic
    partition_of = topic_of.OffsetCommitRequestPartition
    (group,) = names
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=-1,
        topics=[
            topic_of(
                name=topic,
                partitions=[
                    partition_of(
                        partition_index=number,
                        committed_offset=at,
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                    for number, at in sorted(offsets.items())
                ],
            )
        ],
        max_version=_OFFSETS_VERSION,
    )
    answer = await client.send(request, node)
    codes = {part.error_code for found in answer.topics for part in found.partitions} - {0}
    return {group: min(codes, default=None)}


async def _delete(client: RawClient, node: int, names: Sequence[str]) -> dict[str, int | None]:
    from kafka.protocol.admin import DeleteGroupsRequest

    answer = await client.send(DeleteGroupsRequest(groups_names=list(names)), node)
    return {one.group_id: one.error_code or None for one in answer.results}
