"""What the doctor reads of a cluster, a topic and a group; nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConfigResource,
    ResourceType,
)

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure
from backlogctl.formats import format_bytes, format_duration
from backlogctl.kafka.clients import Admin, Properties, ask, find_addresses, wait_for
from backlogctl.kafka.peek import peek_at
from backlogctl.kafka.raw_client import RawClient, ask_in_coroutine, translate_properties
from backlogctl.kafka.topics import describe_topic, list_offsets, read_metadata
from backlogctl.monitoring.verdict.commands import name_access

# Newest messages of each partition that are looked at.
NEWEST = 200
_PEEK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """`racks` by broker id, "" where a broker names none; `settings` by broker id."""

    racks: Mapping[int, str]
    settings: Mapping[int, Mapping[str, str]]

    def read_numbers(self, name: str) -> list[int]:
        """A setting's values, smallest first; none where no broker has it."""
        values = (one.get(name) for one in self.settings.values())
        return sorted(int(value) for value in values if value not in (None, ""))

    def read_words(self, name: str) -> set[str]:
        return {one[name].lower() for one in self.settings.values() if one.get(name)}


@dataclass(frozen=True, slots=True)
class Replicas:
    """One partition: broker ids; `leader` is negative where it is offline."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; `access` is how Kafka's tools reach it, `settings` are those in force, the brokers'
    defaults too, `own` names those it sets itself."""

    name: str
    access: str
    partitions: Mapping[int, Replicas]
    settings: Mapping[str, str]
    own: frozenset[str] = frozenset()

    @property
    def subject(self) -> str:
        return f"topic {self.name}"

    @property
    def replication_factor(self) -> int:
        """The smallest of its partitions'."""
        return min((len(one.replicas) for one in self.partitions.values()), default=0)

    @property
    def in_sync(self) -> int:
        """The fewest replicas in sync of a partition."""
        return min((len(one.in_sync) for one in self.partitions.values()), default=0)

    @property
    def kept(self) -> str:
        """How long it keeps messages: `forever`, `for 7 d`, `up to 1.0 MB of each partition`."""
        told = self._say_limits("retention.")
        is_deleted = "delete" in self.settings.get("cleanup.policy", "delete")
        return told if told and is_deleted else "forever"

    @property
    def kept_locally(self) -> str:
        """As `kept`, what brokers keep of a tiered topic on their own disks; "" where that is all
        that it keeps."""
        return self._say_limits("local.retention.")

    def _say_limits(self, prefix: str) -> str:
        time, size = self.read_number(f"{prefix}ms"), self.read_number(f"{prefix}bytes")
        told = []
        if time is not None and time >= 0:
            told.append(f"for {format_duration(time / 1000)}")
        if size is not None and size >= 0:
            told.append(f"up to {format_bytes(size)} of each partition")
        return " and ".join(told)

    def read_number(self, name: str) -> int | None:
        value = self.settings.get(name)
        return int(value) if value not in (None, "") else None


@dataclass(frozen=True, slots=True)
class Newest:
    """Of the newest messages: sizes in bytes, None where there are none; by partition (offset,
    timestamp) of those that have one, in milliseconds for all that Kafka knows."""

    largest: int | None
    mean: float | None
    times: Mapping[int, tuple[tuple[int, int], ...]]

    @property
    def latest_ms(self) -> int | None:
        return max((at for tail in self.times.values() for _, at in tail), default=None)


@dataclass(frozen=True, slots=True)
class Controller:
    """What the controller's clock said, and ours before and after, in seconds since 1970; the
    version that the brokers' requests are of, such as (4, 3)."""

    theirs: float
    before: float
    after: float
    version: tuple[int, ...]

    @property
    def skew(self) -> float:
        """Seconds that theirs is ahead of ours at least; negative where it is behind; 0 within
        the time that the answer took."""
        if self.theirs > self.after:
            return self.theirs - self.after
        return min(0.0, self.theirs - self.before)


def read_brokers(admin: Admin, limit: Deadline) -> BrokerFacts:
    """Every broker, with its settings.
    Raises AccessDenied: `DESCRIBE_CONFIGS` on the cluster is missing.
    """
    subject, doing = "the cluster", "read the brokers' settings"
    racks = list_brokers(admin, limit)
    settings: dict[int, dict[str, str]] = {}
    for number in racks:
        # Each broker tells its own: librdkafka takes one of them in a request.
        resource = ConfigResource(ResourceType.BROKER, str(number))
        futures = ask(admin, admin.describe_configs, subject, doing, limit, [resource])
        entries = wait_for(admin, futures[resource], subject, doing, limit)
        settings[number] = {n: e.value for n, e in entries.items() if e.value is not None}
    return BrokerFacts(racks, settings)


def list_brokers(admin: Admin, limit: Deadline, subject: str = "the cluster") -> Mapping[int, str]:
    """Racks by broker id, "" where a broker names none."""
    doing = "list the brokers"
    future = ask(admin, admin.describe_cluster, subject, doing, limit)
    nodes = wait_for(admin, future, subject, doing, limit).nodes
    return {node.id: node.rack or "" for node in nodes}


def read_topic(admin: Admin, properties: Properties, name: str, limit: Deadline) -> Topic:
    """A topic's partitions and settings.
    Raises TopicMissing, AccessDenied, ClusterUnreachable, KafkaFailure.
    """
    info = describe_topic(admin, name, limit)
    found = read_metadata(admin, name, limit).topics[name].partitions
    partitions = {
        number: Replicas(one.leader, tuple(one.replicas), tuple(one.isrs))
        for number, one in sorted(found.items())
    }
    return Topic(name, name_access(properties), partitions, info.config, info.own)


def read_newest(
    admin: Admin, properties: Properties, topic: str, partitions: int, limit: Deadline
) -> Newest:
    """Sizes and times of the newest messages; those of a silent partition are left out.
    Raises AccessDenied: `READ` on the topic is missing.
    """
    numbers = range(partitions)
    ends = list_offsets(admin, topic, numbers, "latest", deadline=limit)
    lows = list_offsets(admin, topic, numbers, "earliest", deadline=limit)
    starts = {p: max(lows[p], ends[p] - NEWEST) for p in numbers if ends[p] > lows[p]}
    within = Deadline(limit.remaining(_PEEK_SECONDS))
    seen = peek_at(properties, topic, starts, NEWEST, within)
    sizes = [one.size for messages in seen.values() for one in messages]
    times = {
        number: tuple((one.offset, one.at_ms) for one in messages if one.at_ms is not None)
        for number, messages in seen.items()
    }
    if not sizes:
        return Newest(None, None, {})
    return Newest(max(sizes), sum(sizes) / len(sizes), times)


def read_controller(properties: Properties, limit: Deadline) -> Controller | None:
    """The active controller's clock and version; None where they cannot be asked with these
    properties. Of the leader itself DescribeQuorum (KIP-836) answers with its time of answering.

    Raises:
        ClusterUnreachable, KafkaFailure: also of a cluster with ZooKeeper.
    """
    from kafka.errors import for_code
    from kafka.protocol.admin import DescribeQuorumRequest

    settings, _ = translate_properties(properties)
    if settings is None:
        return None
    subject, doing = f"cluster {find_addresses(properties)}", "read the controller's clock"

    async def describe(client: RawClient) -> tuple[Any, float, float, tuple[int, ...]]:
        topic = DescribeQuorumRequest.TopicData
        partition = topic.PartitionData(partition_index=0)
        wanted = topic(topic_name="__cluster_metadata", partitions=[partition])
        # Version 1 has the times; kafka-python's own method fails on it (Kafka before 3.8).
        request = DescribeQuorumRequest(topics=[wanted], min_version=1, max_version=1)
        before = time.time()
        answer = await client.send(request)
        after = time.time()
        if code := answer.error_code or answer.topics[0].partitions[0].error_code:
            raise for_code(code)()
        return answer.topics[0].partitions[0], before, after, client.broker_version

    found, before, after, version = ask_in_coroutine(
        settings, properties, subject, doing, limit, describe
    )
    for voter in found.current_voters:
        if voter.replica_id == found.leader_id:
            return Controller(voter.last_fetch_timestamp / 1000, before, after, version)
    raise KafkaFailure(f"could not {doing}: the quorum has no leader now", subject=subject)
