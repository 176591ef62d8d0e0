"""Admin verbs on consumer groups; see `backlog.kafka.admin`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)

from backlog.clock import Deadline
from backlog.errors import KafkaFailure
from backlog.kafka.calls import (
    Connection,
    ask,
    connect,
    reach,
    retry_transient,
    seconds_left,
    wait_for,
)
from backlog.kafka.clients import Admin
from backlog.kafka.errors import AccessDenied, GroupActive, GroupMissing, TopicMissing
from backlog.kafka.topics import DEFAULT_SECONDS, read_topic_id
from backlog.numbers import format_plural

# One slow coordinator must not be asked for hundreds of groups at once.
GROUPS_AT_ONCE = 64
_READ_COMMITS = "read committed offsets"
# Names in a sentence.
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed offset; `epoch` is the leader epoch in it, None where it carries none."""

    offset: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group; `partitions` are those it is assigned, by topic. `instance` is its
    `group.instance.id`: a static member, which stays until its session ends (KIP-345); else ""."""

    client_id: str
    host: str
    member_id: str
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    instance: str = ""

    @property
    def topics(self) -> frozenset[str]:
        """Those it is assigned partitions of."""
        return frozenset(self.partitions)

    def __str__(self) -> str:
        return f"{self.client_id} at {self.host}"


@dataclass(frozen=True, slots=True)
class GroupState:
    """`state` is Kafka's in lower case (`stable`, `empty`, `dead`, ...); `type` its protocol."""

    state: str
    members: tuple[Member, ...]
    type: str = ""

    @property
    def is_active(self) -> bool:
        """Whether the group has members or is about to have some."""
        return bool(self.members) or self.state not in ("empty", "dead")


@dataclass(frozen=True, slots=True)
class TopicReaders:
    """Who reads a topic, as far as the tool may see.

    Attributes:
        known: by group, its committed offsets by partition; groups in alphabetical order.
        hidden: groups whose commits may not be read.
        sees_all: whether the brokers list every group to us.
    """

    known: Mapping[str, Mapping[int, int]]
    hidden: tuple[str, ...] = ()
    sees_all: bool = True

    def list_others(self, group: str) -> tuple[str, ...]:
        """The other groups that are known to read it."""
        return tuple(name for name in self.known if name != group)

    def say_unknown(self, group: str) -> str:
        """Why there may be more readers than those that are known; "" where there are none."""
        hidden = [name for name in self.hidden if name != group]
        if not self.sees_all:
            return "may not list all groups (`Describe` on the cluster is missing)"
        if hidden:
            shown = ", ".join(hidden[:_SHOWN]) + (", ..." if len(hidden) > _SHOWN else "")
            return (
                f"may not read what {format_plural(len(hidden), 'group')} committed ({shown}): "
                "`Describe` on them is missing"
            )
        return ""


def read_commits(
    connection: Connection,
    group: str,
    topic: str,
    partitions: Iterable[int],
    deadline: Deadline | None = None,
    require_stable: bool = False,
) -> dict[int, Commit | None]:
    """The group's commits; None where it has none (Kafka's -1001).

    Raises:
        ClusterUnreachable, KafkaFailure: for any partition.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    wanted = [TopicPartition(topic, partition) for partition in partitions]
    subject, doing = f"group {group} on topic {topic}", "read committed offsets"
    if not wanted:
        return {}
    # Not the admin call: librdkafka 2.16 aborts the process when a broker goes away under an admin
    # request to a coordinator (its issue 4605), and such a client may never recover.
    reach(admin, subject, doing, limit)
    reader = admin.open_reader(group, require_stable)

    def call() -> dict[int, Commit | None]:
        try:
            answer = reader.committed(wanted, timeout=seconds_left(limit))
        except KafkaException as error:
            raise admin.translate(error, subject, doing, limit.seconds) from error
        finally:
            reader.poll(0)  # delivers its log lines
        return _check_commits(admin, answer, subject, doing)

    return retry_transient(admin, limit, call)


def committed_offsets(
    connection: Connection,
    group: str,
    topic: str,
    partitions: Iterable[int],
    deadline: Deadline | None = None,
    require_stable: bool = False,
) -> dict[int, int | None]:
    """`read_commits` without the epochs."""
    commits = read_commits(connection, group, topic, partitions, deadline, require_stable)
    return {p: None if commit is None else commit.offset for p, commit in commits.items()}


def list_topic_readers(
    connection: Connection, topic: str, deadline: Deadline | None = None
) -> TopicReaders:
    """Every group with a committed offset on the topic, of either protocol, with its offsets.

    Brokers list all groups only to those who may describe the cluster (Kafka's ListGroups), and
    the commits of a group to those who may describe it.

    Raises:
        ClusterUnreachable, KafkaFailure: a group could not be read for another reason.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    doing = "list the groups that read it"
    names = sorted(group.group_id for group in _list_groups(admin, f"topic {topic}", doing, limit))
    known: dict[str, dict[int, int]] = {}
    hidden: list[str] = []
    for first in range(0, len(names), GROUPS_AT_ONCE):
        futures: dict[str, Future[Any]] = {}
        for name in names[first : first + GROUPS_AT_ONCE]:
            futures[name] = _ask_offsets(admin, name, limit)
        for name, future in futures.items():
            try:
                answer = _take_offsets(admin, name, future, limit)
            except GroupMissing:
                continue  # it went away since it was listed
            except AccessDenied:
                hidden.append(name)
                continue
            ours = [item for item in answer.topic_partitions if item.topic == topic]
            commits = _check_commits(admin, ours, f"group {name}", _READ_COMMITS)
            offsets = {p: commit.offset for p, commit in commits.items() if commit is not None}
            if offsets:
                known[name] = offsets
    return TopicReaders(known, tuple(hidden), sees_all=_may_list_all(admin, limit))


def _ask_offsets(admin: Admin, group: str, limit: Deadline) -> Future[Any]:
    request = [ConsumerGroupTopicPartitions(group)]
    verb = admin.list_consumer_group_offsets
    futures = ask(admin, verb, f"group {group}", _READ_COMMITS, limit, request)
    future: Future[Any] = futures[group]
    return future


def _take_offsets(admin: Admin, group: str, future: Future[Any], limit: Deadline) -> Any:
    """The answer; a coordinator that loads or moves is asked again."""
    asked = [future]

    def call() -> Any:
        one = asked.pop() if asked else _ask_offsets(admin, group, limit)
        return wait_for(admin, one, f"group {group}", _READ_COMMITS, limit)

    return retry_transient(admin, limit, call)


def _may_list_all(admin: Admin, limit: Deadline) -> bool:
    """Whether the principal may describe the cluster; brokers without an authorizer say so too."""
    subject, doing = "the cluster", "ask what is allowed on it"
    future = ask(
        admin, admin.describe_cluster, subject, doing, limit, include_authorized_operations=True
    )
    allowed = wait_for(admin, future, subject, doing, limit).authorized_operations or ()
    return any(operation.name in ("DESCRIBE", "ALL") for operation in allowed)


def read_group_state(
    connection: Connection, group: str, deadline: Deadline | None = None
) -> GroupState:
    """State and protocol of a group as the brokers list it, without its members.

    Asks every broker and no coordinator, so it is safe to repeat through outages (`read_commits`).
    A group that is not there is `dead`.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    for listed in _list_groups(admin, f"group {group}", "read its state", limit):
        if listed.group_id == group:
            return GroupState(
                listed.state.name.lower() if listed.state else "",
                (),
                listed.type.name.lower() if listed.type else "",
            )
    return GroupState("dead", ())


def describe_group_state(
    connection: Connection, group: str, deadline: Deadline | None = None
) -> GroupState:
    """State, members and protocol of a group; a group that is not there is `dead`, no members."""
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"group {group}", "describe it"

    def call() -> Any:
        futures = ask(admin, admin.describe_consumer_groups, subject, doing, limit, [group])
        return wait_for(admin, futures[group], subject, doing, limit)

    try:
        answer = retry_transient(admin, limit, call)
    except GroupMissing:
        return GroupState("dead", ())
    state: ConsumerGroupState = answer.state
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
    return GroupState(state.name.lower(), members, answer.type.name.lower() if answer.type else "")


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

    def call() -> None:
        _refuse_unknown(admin, topic, offsets, f"could not {doing}", limit)
        verb = admin.alter_consumer_group_offsets
        request = [ConsumerGroupTopicPartitions(group, wanted)]
        futures = ask(admin, verb, subject, doing, limit, request)
        answer = wait_for(admin, futures[group], subject, doing, limit)
        for item in answer.topic_partitions:
            if item.error is not None:
                raise admin.translate(item.error, f"{subject}, partition {item.partition}", doing)

    try:
        retry_transient(admin, limit, call, partial(_is_spreading, new_topic))
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


def _refuse_unknown(
    admin: Admin, topic: str, partitions: Iterable[int], failed: str, limit: Deadline
) -> None:
    # The broker accepts offsets of partitions that do not exist without an error.
    known = read_topic_id(admin, topic, limit)[1]
    strange = sorted(p for p in partitions if not 0 <= p < known)
    if strange:
        raise TopicMissing(
            f"{failed}: partitions {strange} do not exist, there are {known}",
            subject=f"topic {topic}",
        )


def _is_spreading(new_topic: bool, error: KafkaFailure) -> bool:
    return new_topic and isinstance(error, TopicMissing)


def delete_group(connection: Connection, group: str, deadline: Deadline | None = None) -> None:
    """Deletes a group and its offsets; one that is gone is fine.

    Raises:
        GroupActive: it has members.
        ClusterUnreachable, KafkaFailure.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"group {group}", "delete it"

    def call() -> None:
        futures = ask(admin, admin.delete_consumer_groups, subject, doing, limit, [group])
        with suppress(GroupMissing):
            wait_for(admin, futures[group], subject, doing, limit)

    retry_transient(admin, limit, call)


def _by_topic(places: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for place in places:
        found[place.topic].append(place.partition)
    return {topic: tuple(sorted(numbers)) for topic, numbers in found.items()}


def _list_groups(admin: Admin, subject: str, doing: str, limit: Deadline) -> list[Any]:
    def call() -> list[Any]:
        future = ask(admin, admin.list_consumer_groups, subject, doing, limit)
        listing = wait_for(admin, future, subject, doing, limit)
        for error in listing.errors:
            raise admin.translate(error, subject, doing, limit.seconds) from error
        return list(listing.valid)

    return retry_transient(admin, limit, call)


def _check_commits(
    admin: Admin, items: Sequence[TopicPartition] | None, subject: str, doing: str
) -> dict[int, Commit | None]:
    commits: dict[int, Commit | None] = {}
    for item in items or ():
        if item.error is not None:
            raise admin.translate(item.error, f"{subject}, partition {item.partition}", doing)
        epoch = cast(int | None, item.leader_epoch)  # the stub says int; it is None too
        known = None if epoch is None or epoch < 0 else epoch
        commits[item.partition] = None if item.offset < 0 else Commit(item.offset, known)
    return commits


def _refuse_active(group: str, state: GroupState) -> GroupActive:
    names = ", ".join(str(member) for member in state.members) or f"state {state.state}"
    return GroupActive(
        f"its offsets were not set, the group is active: {names}",
        subject=f"group {group}",
        hint="stop these members, wait until the group is empty, and try again",
    )
