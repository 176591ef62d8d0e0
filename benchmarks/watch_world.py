"""Clusters to look at: one that is only figures, and a real one with many groups."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from backlogctl.kafka.bulk import ClusterLayout, ListedGroup, Offsets, TopicLayout
from backlogctl.monitoring.offsets.lag import EmptyReading, TopicOffset


@dataclass
class Figures:
    """A cluster of `groups` groups, each alone on a topic of `partitions` partitions.

    Each `step` writes and reads 1,000 offsets. Every tenth partition lags and never catches up, the
    others have read everything; if `busy`, all have a few offsets left whenever they are looked at.
    """

    groups: int
    partitions: int
    busy: bool = False
    passed: int = 0
    _layout: dict[str, TopicLayout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ones = np.ones(self.partitions, np.int32)
        self._layout = {
            f"topic-{number:04}": TopicLayout(f"id-{number}", ones, ones, ones)
            for number in range(self.groups)
        }

    def step(self) -> None:
        self.passed += 1

    def may_list_all(self) -> bool | None:
        return True

    def list_groups(self) -> Sequence[ListedGroup]:
        return [ListedGroup(f"group-{number:04}", "stable") for number in range(self.groups)]

    def read_commits(self, groups: Sequence[str]) -> Mapping[str, Mapping[str, Offsets]]:
        committed = self._end()
        if self.busy:
            committed -= 3 + (np.arange(self.partitions) * 7 + self.passed * 5) % 11
        else:
            committed[::10] -= 500 + 100 * self.passed
        return {name: {f"topic-{name[-4:]}": committed.copy()} for name in groups}

    def read_layout(self, topics: Iterable[str]) -> ClusterLayout:
        return ClusterLayout(3, {name: self._layout[name] for name in topics})

    def read_log_starts(self, layout: ClusterLayout) -> Mapping[str, Offsets]:
        return {name: np.zeros(self.partitions, np.int64) for name in layout.topics}

    def read_ends(self, layout: ClusterLayout, *, stable: bool) -> Mapping[str, Offsets]:
        return {name: self._end() for name in layout.topics}

    def find_offsets(
        self, layout: ClusterLayout, times: Mapping[tuple[str, int], int]
    ) -> Mapping[tuple[str, int], int]:
        return dict.fromkeys(times, 0)

    def read_retentions(self, topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        return {name: {"retention.ms": "604800000"} for name in topics}

    def close(self) -> None: ...

    def _end(self) -> Offsets:
        return np.full(self.partitions, 1_000_000 + 1000 * self.passed, np.int64)


def read_no_tails(places: Sequence[TopicOffset]) -> EmptyReading:
    return EmptyReading({(topic, number): False for topic, number, _ in places})


def make_groups(bootstrap: str, name: str, groups: int, partitions: int, topics: int) -> None:
    """Topics NAME-0000 and so on with a few messages, and groups of such names that have committed
    on them; of every tenth partition some messages are unread."""
    from confluent_kafka import KafkaError, KafkaException, Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic
    from kafka import KafkaAdminClient, TopicPartition, errors
    from kafka.structs import OffsetAndMetadata

    names = [f"{name}-{number:04}" for number in range(topics)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
        try:
            future.result(60)
        except KafkaException as error:
            # A slow broker was asked twice.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    producer = Producer({"bootstrap.servers": bootstrap})
    for topic in names:
        for number in range(partitions):
            for _ in range(10):
                producer.produce(topic, b"value", partition=number)
        producer.flush(60)
    client = KafkaAdminClient(bootstrap_servers=[bootstrap])
    end = time.monotonic() + 300
    number = 0
    while number < groups:
        topic = names[number % topics]
        offsets = {
            TopicPartition(topic, part): OffsetAndMetadata(5 if part % 10 == 0 else 10, "", None)
            for part in range(partitions)
        }
        try:
            answer = client.alter_group_offsets(f"{name}-{number:04}", offsets)
            if not any(code.errno for code in answer.values()):
                number += 1
                continue
        except errors.KafkaError:
            pass  # a young broker still loads its coordinators
        if time.monotonic() > end:
            raise TimeoutError("the groups could not be made")
        time.sleep(0.2)
    client.close()
