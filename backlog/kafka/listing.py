"""Every group of a cluster with what it has committed, for a person who has to choose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from backlog.clock import Deadline
from backlog.errors import KafkaFailure
from backlog.kafka.calls import ask, connect, wait_for
from backlog.kafka.clients import Admin, Properties
from backlog.kafka.group_types import read_group_listings
from backlog.kafka.groups import cut, describe_group_states, list_consumer_groups
from backlog.kafka.readers import may_list_all, read_all_commits
from backlog.kafka.topics import read_metadata

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
    """Every group that the brokers list to us, of any type.

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    admin = connect(properties)
    subject, first = f"cluster {admin.addresses}", Deadline(limit.remaining(_FIRST_SECONDS))
    listed = {
        one.group_id: one.state.name.lower() if one.state else ""
        for one in list_consumer_groups(admin, subject, "list all groups", first)
    }
    types, types_unknown = read_group_listings(properties, limit)
    names = sorted(listed)
    described = describe_group_states(admin, names, limit)
    commits = {name: _take_offsets(items) for name, items in read_all_commits(admin, names, limit)}
    metadata = read_metadata(admin, None, limit)
    sizes = {name: len(topic.partitions) for name, topic in metadata.topics.items()}
    ends = _read_ends(admin, commits.values(), sizes, limit)
    found: list[FoundGroup] = []
    for name in sorted({*commits, *(types.keys() - listed.keys())}):
        state = described.get(name)
        found.append(
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
    return FoundGroups(tuple(found), may_list_all(admin, limit), types_unknown)


_Offsets = Mapping[str, Mapping[int, int]]


def _take_offsets(items: Sequence[TopicPartition] | None) -> _Offsets | None:
    if items is None:
        return None
    found: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for item in items:
        if item.error is None and item.offset >= 0:
            found[item.topic][item.partition] = item.offset
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
