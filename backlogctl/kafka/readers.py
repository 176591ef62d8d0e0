"""What many groups have committed: who reads a topic, and what each of them is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure
from backlogctl.formats import format_plural
from backlogctl.kafka.clients import (
    Admin,
    Connection,
    Properties,
    ask,
    connect,
    wait_for,
)
from backlogctl.kafka.coordinator import GroupCommits, describe_group_states, read_all_commits
from backlogctl.kafka.errors import GroupMissing
from backlogctl.kafka.group_types import (
    SHARE,
    SharePartition,
    read_group_listings,
    read_share_offsets,
)
from backlogctl.kafka.groups import list_consumer_groups
from backlogctl.kafka.raw_client import cut
from backlogctl.kafka.topics import DEFAULT_SECONDS, read_metadata
from backlogctl_delivery.kafka import AccessDenied

# Names in a sentence.
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class TopicReaders:
    """Who reads a topic, as far as the tool may see.

    Attributes:
        known: by group, its committed offsets by partition; groups in alphabetical order. None
            are there of a group that only has members on the topic. Of a share group, which has
            none, its oldest messages that are not acknowledged.
        hidden: groups whose commits may not be read.
        sees_all: whether the brokers list every group to us.
        unacknowledged: by share group and partition, how many messages are not acknowledged, at
            most; those that the brokers tell.
        shares_unknown: why share groups could not be asked for; "" where they could.
    """

    known: Mapping[str, Mapping[int, int]]
    hidden: tuple[str, ...] = ()
    sees_all: bool = True
    unacknowledged: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    shares_unknown: str = ""

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


def list_topic_readers(
    connection: Connection, topic: str, deadline: Deadline | None = None
) -> TopicReaders:
    """Every group with a committed offset or a member on the topic, and share groups that read it.

    Brokers list all groups only to those who may describe the cluster (Kafka's ListGroups), and
    the commits of a group to those who may describe it.

    Raises:
        ClusterUnreachable, KafkaFailure: a group could not be read for another reason.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"topic {topic}", "list the groups that read it"
    names = sorted(one.group_id for one in list_consumer_groups(admin, subject, doing, limit))
    known: dict[str, dict[int, int]] = {}
    hidden: list[str] = []
    for name, commits in read_all_commits(admin, names, limit).items():
        if isinstance(commits, AccessDenied):
            hidden.append(name)
        elif offsets := _take_offsets(commits).get(topic):
            known[name] = offsets
    silent = [name for name in names if name not in known and name not in hidden]
    for name, state in describe_group_states(admin, silent, limit).items():
        if any(topic in member.topics for member in state.members):
            known[name] = {}
    shared, unknown = _read_share_groups(admin, limit, hidden)
    unacknowledged: dict[str, dict[int, int]] = {}
    for name, parts in shared.items():
        begun = [one for one in parts if one.topic == topic]
        if begun:
            known[name] = {one.partition: one.start for one in begun if one.start is not None}
            lags = {one.partition: one.lag for one in begun if one.lag is not None}
            unacknowledged[name] = lags
    return TopicReaders(
        dict(sorted(known.items())),
        tuple(hidden),
        may_list_all(admin, limit),
        unacknowledged,
        unknown,
    )


def _read_share_groups(
    admin: Admin, limit: Deadline, hidden: list[str]
) -> tuple[dict[str, tuple[SharePartition, ...]], str]:
    """How far each share group is, which librdkafka does not list; and why that is unknown."""
    listings, unknown = read_group_listings(admin.properties, limit)
    found: dict[str, tuple[SharePartition, ...]] = {}
    for name in sorted(name for name, one in listings.items() if one.type == SHARE):
        try:
            found[name] = read_share_offsets(admin.properties, name, limit)
        except AccessDenied:
            hidden.append(name)
        except GroupMissing:
            continue
    return found, unknown


def may_list_all(admin: Admin, limit: Deadline) -> bool:
    """Whether the principal may describe the cluster; brokers without an authorizer say so too."""
    subject, doing = "the cluster", "ask what is allowed on it"
    future = ask(
        admin, admin.describe_cluster, subject, doing, limit, include_authorized_operations=True
    )
    allowed = wait_for(admin, future, subject, doing, limit).authorized_operations or ()
    return any(operation.name in ("DESCRIBE", "ALL") for operation in allowed)


# Every group of a cluster with what it has committed, for a person who has to choose.

_PARTITIONS_AT_ONCE = 2000
# A wrong address shows at the first request.
_FIRST_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class GroupTopic:
    """A topic of a group: it committed there, or a member is assigned partitions of it.

    Attributes:
        partitions: None where the topic is gone, or may not be described.
        lag: in offsets, of the partitions that it has committed on; None where it is not known.
    """

    name: str
    partitions: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """A group as far as it may be seen.

    Attributes:
        type: in lower case; "" where the brokers do not say, or cannot be asked.
        state: in lower case; "" where unknown.
        members: None where that may not be seen.
        topics: in alphabetical order; None where its commits may not be read.
    """

    name: str
    type: str
    state: str
    members: int | None
    topics: tuple[GroupTopic, ...] | None


@dataclass(frozen=True, slots=True)
class FoundGroups:
    """Groups in alphabetical order.

    Attributes:
        sees_all: whether the brokers list every group to us.
        types_unknown: why share and streams groups cannot be listed; "" where they are.
    """

    groups: tuple[FoundGroup, ...]
    sees_all: bool
    types_unknown: str


def list_all_groups(properties: Properties, limit: Deadline) -> FoundGroups:
    """Every group that the brokers list to us, of any type."""
    admin = connect(properties)
    subject, first = f"cluster {admin.addresses}", Deadline(limit.remaining(_FIRST_SECONDS))
    listed = {
        one.group_id: one.state.name.lower() if one.state else ""
        for one in list_consumer_groups(admin, subject, "list all groups", first)
    }
    types, types_unknown = read_group_listings(properties, limit)
    names = sorted(listed)
    described = describe_group_states(admin, names, limit)
    commits = {
        name: None if isinstance(found, AccessDenied) else _take_offsets(found)
        for name, found in read_all_commits(admin, names, limit).items()
    }
    metadata = read_metadata(admin, None, limit)
    sizes = {name: len(topic.partitions) for name, topic in metadata.topics.items()}
    ends = _read_ends(admin, commits.values(), sizes, limit)
    groups: list[FoundGroup] = []
    for name in sorted({*commits, *(types.keys() - listed.keys())}):
        state = described.get(name)
        groups.append(
            FoundGroup(
                name,
                (types[name].type if name in types else "") or (state.type if state else ""),
                state.state if state else listed.get(name, ""),
                len(state.members) if state else None,
                _list_topics(
                    commits.get(name),
                    {topic for one in state.members for topic in one.topics} if state else set(),
                    sizes,
                    ends,
                ),
            )
        )
    return FoundGroups(tuple(groups), may_list_all(admin, limit), types_unknown)


_Offsets = Mapping[str, Mapping[int, int]]


def _take_offsets(commits: GroupCommits) -> dict[str, dict[int, int]]:
    """By topic and partition; not those that name the log start."""
    found: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for (topic, number), commit in commits.items():
        if commit.offset >= 0:
            found[topic][number] = commit.offset
    return found


def _list_topics(
    commits: _Offsets | None,
    assigned: Iterable[str],
    sizes: Mapping[str, int],
    ends: Mapping[tuple[str, int], int],
) -> tuple[GroupTopic, ...] | None:
    if commits is None:
        return None
    return tuple(
        GroupTopic(name, sizes.get(name), _sum_lag(name, commits.get(name, {}), ends))
        for name in sorted({*commits, *assigned})
    )


def _sum_lag(
    topic: str, offsets: Mapping[int, int], ends: Mapping[tuple[str, int], int]
) -> int | None:
    known = [(ends.get((topic, number)), offset) for number, offset in offsets.items()]
    if not known or any(end is None for end, _ in known):
        return None
    return sum(max(0, (end or 0) - offset) for end, offset in known)


def _read_ends(
    admin: Admin, commits: Iterable[_Offsets | None], sizes: Mapping[str, int], limit: Deadline
) -> dict[tuple[str, int], int]:
    """Last stable offsets of the partitions that are committed on; those not known left out."""
    wanted = {
        (topic, number)
        for of in commits
        for topic, offsets in (of or {}).items()
        for number in offsets
        if number < sizes.get(topic, 0)
    }
    found: dict[tuple[str, int], int] = {}
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    subject, doing = "the cluster", "read the ends of all topics"
    for some in cut(sorted(wanted), _PARTITIONS_AT_ONCE):
        request = {TopicPartition(topic, number): latest for topic, number in some}
        level = IsolationLevel.READ_COMMITTED
        futures = ask(
            admin, admin.list_offsets, subject, doing, limit, request, isolation_level=level
        )
        for place, future in futures.items():
            try:
                answer = wait_for(admin, future, subject, doing, limit)
            except KafkaFailure:
                continue  # its leader moves, or it may not be read: its lag is not known
            found[place.topic, place.partition] = answer.offset
    return found
