"""Reads of many groups and topics of a cluster at once, for who looks at all of them.

Through kafka-python: librdkafka 2.16 aborts the process when a broker goes away under an admin
request to a group's coordinator (its issue 4605), and asks for one group at a time. Answers go
into arrays: of a large cluster they hold hundreds of thousands of offsets.
"""

from __future__ import annotations

import threading
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from backlogctl.clock import Deadline
from backlogctl.errors import ConfigurationError
from backlogctl.kafka.clients import Properties, find_addresses
from backlogctl.kafka.coordinator import fetch_commits, take_commits
from backlogctl.kafka.group_types import list_groups, name_state, name_type
from backlogctl.kafka.groups import Commit
from backlogctl.kafka.raw_client import (
    Coordinators,
    RawClient,
    cut,
    translate_error,
    translate_properties,
)
from backlogctl.kafka.rights import Operation, ask_cluster

Offsets = NDArray[np.int64]
Numbers = NDArray[np.int32]
NONE = -1  # no offset: not committed, or not known


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it; `state` is in lower case, "" where unknown; `is_simple`:
    nobody ever joined it."""

    name: str
    state: str
    is_simple: bool = False


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """A topic's partitions: the place in each array is the partition; -1 where it has no leader.
    `topic_id` is as librdkafka writes it; "" where the brokers have none."""

    topic_id: str
    leaders: Numbers
    replicas: Numbers
    in_sync: Numbers


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """Brokers, and the topics that were asked for and are there."""

    brokers: int
    topics: Mapping[str, TopicLayout]


Result = TypeVar("Result")
Taken = TypeVar("Taken")

# One request must not hold a leader for long.
PARTITIONS_AT_ONCE = 2000
TOPICS_AT_ONCE = 200

_EARLIEST, _LATEST = -2, -1
# ListOffsets' EARLIEST_LOCAL_TIMESTAMP (KIP-405).
_EARLIEST_LOCAL = -4
_COORDINATOR_TRIES = 2
_TOPIC_RESOURCE = 2
# Share groups have no committed offsets; what is empty is from before groups had a type.
_TYPES = ("", "classic", "consumer", "streams")
_PROTOCOLS = ("", "consumer", "streams")
_RETENTIONS = ("retention.ms", "retention.bytes", "cleanup.policy", "remote.storage.enable")


class BulkReader:
    """Reads by a client of its own, which is made again after a failure. Not thread-safe.

    Every verb raises ClusterUnreachable where nobody answers in time, else KafkaFailure.
    """

    def __init__(self, properties: Properties, seconds: float = 30.0) -> None:
        """Connects on first use. Raises ConfigurationError: the properties cannot be translated."""
        translated, reason = translate_properties(properties)
        if translated is None:
            raise ConfigurationError(
                f"all groups at once cannot be read {reason}",
                subject=f"cluster {find_addresses(properties)}",
                hint="streams are watched all the same",
            )
        self._settings, self._properties = translated, properties
        self._addresses = find_addresses(properties)
        self._seconds = seconds
        self._client: RawClient | None = None
        self._silent: set[int] = set()
        self._coordinators: Coordinators

    def may_list_all(self) -> bool | None:
        """Whether the brokers list every group to us; None where they do not tell.

        Without DESCRIBE on the cluster ListGroups leaves out the groups that may not be described,
        and no error says so (Kafka's KafkaApis.handleListGroupsRequest).
        """
        return self._call("ask what is allowed on the cluster", self._may_list_all)

    def list_groups(self) -> list[ListedGroup]:
        """Every consumer group of every broker that we may see."""
        return self._call("list all groups", self._list_groups)

    def read_commits(self, groups: Sequence[str]) -> dict[str, dict[str, Offsets]]:
        """By group and topic the committed offsets, NONE without one.

        A group that cannot be read now is left out; one without commits has no topics.
        """
        return self._call(
            "read the offsets that all groups committed",
            lambda: self._read_commits(groups, _take_commits),
        )

    def read_whole_commits(
        self, groups: Sequence[str]
    ) -> dict[str, Mapping[tuple[str, int], Commit]]:
        """By group, and by topic and partition, its commits; an offset of -2 stands for the log
        start, as KafkaJS commits it.

        A group that cannot be read whole is left out.
        """
        return self._call(
            "read what the groups committed", lambda: self._read_commits(groups, take_commits)
        )

    def read_layout(self, topics: Iterable[str]) -> ClusterLayout:
        """The brokers, and these topics as far as they are there."""
        names = sorted(topics)
        return self._call("read the metadata of all topics", lambda: self._read_layout(names))

    def read_log_starts(self, layout: ClusterLayout) -> dict[str, Offsets]:
        """By topic the log start offsets, NONE where a leader did not answer."""
        return self._call("read all log starts", lambda: self._read_offsets(layout, _EARLIEST, 0))

    def read_local_starts(self, layout: ClusterLayout) -> dict[str, Offsets]:
        """By topic where the part begins that is on the brokers' own disks: of a tiered topic what
        lies before that is in the remote storage alone. NONE where a leader did not answer."""
        return self._call(
            "read where local logs begin", lambda: self._read_offsets(layout, _EARLIEST_LOCAL, 0)
        )

    def read_ends(self, layout: ClusterLayout, *, stable: bool) -> dict[str, Offsets]:
        """By topic the last stable offsets, or the high watermarks."""
        level = 1 if stable else 0
        return self._call(
            "read the ends of all topics", lambda: self._read_offsets(layout, _LATEST, level)
        )

    def find_offsets(
        self, layout: ClusterLayout, times: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], int]:
        """By topic and partition the first offset whose message is not older than that time.

        NONE where no message is that young; left out where a leader did not answer.

        Args:
            times: by topic and partition, milliseconds since 1970.
        """
        return self._call("find offsets by their time", lambda: self._find_offsets(layout, times))

    def read_retentions(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """By topic `retention.ms`, `retention.bytes`, `cleanup.policy` and `remote.storage.enable`,
        where readable."""
        names = sorted(topics)
        return self._call("read the retention of all topics", lambda: self._read_retentions(names))

    def close(self) -> None:
        """Closes the client; the next verb makes another."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _call(self, doing: str, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        limit = Deadline(self._seconds)
        try:
            if self._client is None:
                self._client = RawClient(self._settings, limit, self._properties)
                self._coordinators = Coordinators(self._client)
            return self._client.run(work, limit)
        except Exception as error:
            # It may hold connections and coordinators of brokers that are gone.
            client, self._client = self._client, None
            if client is not None:
                threading.Thread(
                    target=client.close, name="backlog-bulk-close", daemon=True
                ).start()
            raise translate_error(error, doing, f"cluster {self._addresses}") from error

    @property
    def _raw(self) -> RawClient:
        assert self._client is not None
        return self._client

    async def _send(self, request: Any, node: int | None = None) -> Any:
        return await self._raw.send(request, node)

    async def _may_list_all(self) -> bool | None:
        from kafka.errors import IncompatibleBrokerVersion

        try:
            allowed = await ask_cluster(self._raw)
        except IncompatibleBrokerVersion:
            return None
        return None if allowed is None else Operation.DESCRIBE in allowed

    async def _list_groups(self) -> list[ListedGroup]:
        found: dict[str, ListedGroup] = {}
        for group in await list_groups(self._raw):
            if name_type(group) in _TYPES and group.protocol_type in _PROTOCOLS:
                found[group.group_id] = ListedGroup(
                    group.group_id, name_state(group), not group.protocol_type
                )
        return [found[name] for name in sorted(found)]

    async def _read_commits(
        self, groups: Sequence[str], take: Callable[[Iterable[Any]], Taken | int]
    ) -> dict[str, Taken]:
        found: dict[str, Taken] = {}
        work = partial(fetch_commits, take, self._raw)
        for _ in range(_COORDINATOR_TRIES):
            why = await self._coordinators.ask_all(groups, work, found, self._silent)
            if not why:
                return found
        if not found:
            raise next(iter(why.values()))
        return found

    async def _read_layout(self, names: Sequence[str]) -> ClusterLayout:
        topics: dict[str, TopicLayout] = {}
        brokers = 0
        for some in cut(names, TOPICS_AT_ONCE) if names else [[]]:
            answer = await self._send(_make_metadata_request(some))
            brokers = len(answer.brokers)
            for topic in answer.topics:
                if topic.error_code == 0:
                    topics[topic.name] = _take_layout(topic)
        return ClusterLayout(brokers, topics)

    async def _read_offsets(
        self, layout: ClusterLayout, timestamp: int, level: int
    ) -> dict[str, Offsets]:
        found = {
            name: np.full(len(topic.leaders), NONE, np.int64)
            for name, topic in layout.topics.items()
        }
        for node, places in _list_by_leader(layout):
            for some in cut(
                [(name, number, timestamp) for name, number in places], PARTITIONS_AT_ONCE
            ):
                for name, number, offset in await self._list_offsets(node, some, level):
                    found[name][number] = offset
        return found

    async def _find_offsets(
        self, layout: ClusterLayout, times: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for node, places in _list_by_leader(layout):
            wanted = [(*place, times[place]) for place in places if place in times]
            for some in cut(wanted, PARTITIONS_AT_ONCE):
                for name, number, offset in await self._list_offsets(node, some, 0):
                    found[name, number] = offset
        return found

    async def _list_offsets(
        self, node: int, places: Sequence[tuple[str, int, int]], level: int
    ) -> list[tuple[str, int, int]]:
        """(topic, partition, offset) as far as the leader answers."""
        from kafka.protocol.consumer import ListOffsetsRequest

        topic_of = ListOffsetsRequest.ListOffsetsTopic
        partition_of = topic_of.ListOffsetsPartition
        wanted: defaultdict[str, list[Any]] = defaultdict(list)
        for name, number, timestamp in places:
            wanted[name].append(partition_of(partition_index=number, timestamp=timestamp))
        request = ListOffsetsRequest(
            isolation_level=level,
            topics=[topic_of(name=name, partitions=parts) for name, parts in wanted.items()],
            min_version=2,
        )
        return [
            (topic.name, part.partition_index, part.offset)
            for topic in (await self._send(request, node)).topics
            for part in topic.partitions
            if part.error_code == 0
        ]

    async def _read_retentions(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        from kafka.protocol.admin import DescribeConfigsRequest

        found: dict[str, dict[str, str]] = {}
        for some in cut(names, TOPICS_AT_ONCE):
            request = DescribeConfigsRequest(
                resources=[(_TOPIC_RESOURCE, name, list(_RETENTIONS)) for name in some],
                include_synonyms=False,
                min_version=0,
            )
            for one in (await self._send(request)).results:
                if one.error_code == 0:
                    found[one.resource_name] = {
                        entry.name: entry.value for entry in one.configs if entry.value is not None
                    }
        return found


def _make_metadata_request(names: Sequence[str]) -> Any:
    from kafka.protocol.metadata import MetadataRequest

    topic_of = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(
        topics=[topic_of(name=name) for name in names],
        allow_auto_topic_creation=False,
        min_version=4,
        max_version=12,
    )


def _take_commits(topics: Iterable[Any]) -> dict[str, Offsets]:
    found: dict[str, Offsets] = {}
    for topic in topics:
        known = [
            (part.partition_index, part.committed_offset)
            for part in topic.partitions
            if part.error_code == 0 and part.committed_offset >= 0
        ]
        if known:
            offsets = np.full(max(known)[0] + 1, NONE, np.int64)
            for number, offset in known:
                offsets[number] = offset
            found[topic.name] = offsets
    return found


def _write_id(topic_id: Any) -> str:
    """As librdkafka does: Base64 without padding."""
    if not topic_id:
        return ""
    return b64encode(UUID(str(topic_id)).bytes).decode().rstrip("=")


def _take_layout(topic: Any) -> TopicLayout:
    count = max((part.partition_index for part in topic.partitions), default=-1) + 1
    leaders, replicas, in_sync = (np.full(count, value, np.int32) for value in (-1, 0, 0))
    for part in topic.partitions:
        number = part.partition_index
        leaders[number] = part.leader_id
        replicas[number] = len(part.replica_nodes)
        in_sync[number] = len(part.isr_nodes)
    return TopicLayout(_write_id(getattr(topic, "topic_id", "")), leaders, replicas, in_sync)


def _list_by_leader(layout: ClusterLayout) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    places: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    for name, topic in layout.topics.items():
        for number, leader in enumerate(topic.leaders.tolist()):
            if leader >= 0:
                places[leader].append((name, number))
    yield from places.items()


def read_local_starts(properties: Properties, topic: str, limit: Deadline) -> dict[int, int]:
    """By partition where the part begins that is on the brokers' own disks, where a leader tells.
    Raises ConfigurationError, ClusterUnreachable, KafkaFailure.
    """
    with closing(BulkReader(properties, limit.remaining())) as reader:
        found = reader.read_local_starts(reader.read_layout([topic]))[topic]
    return {number: int(at) for number, at in enumerate(found) if at >= 0}
