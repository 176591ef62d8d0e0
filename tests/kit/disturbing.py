"""What happens to a cluster of three brokers while a test works on it: step by step, as the work
comes on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import kafka as kafka_python
from confluent_kafka import ElectionType, TopicPartition

from backlogctl.kafka.clients import make_admin
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.kit.kafka import find_coordinator, set_config, wait_until

BROKERS = (1, 2, 3)
_AWAY_SECONDS = 3.0

Step = Callable[[], object]


class Disturber:
    """Takes one step each time the work comes on; thread-safe. `taken` counts them."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps, self._lock = iter(steps), threading.Lock()
        self.taken = 0

    def come_on(self, *_: object) -> None:
        """The work has come on by a piece."""
        with self._lock:
            if (step := next(self._steps, None)) is not None:
                step()
                self.taken += 1

    def end(self, cluster: Cluster, topic: str) -> None:
        """Something happened while it worked; takes what is left, till all brokers are there."""
        assert self.taken > 0
        for step in self._steps:
            step()
        cluster.await_all(topic)


class Cluster:
    """Three brokers; a topic made there has three replicas and needs two to be written."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.kafka, self.properties = kafka, kafka.client_properties
        self._admin = make_admin(self.properties)
        self._away: list[threading.Thread] = []

    def find_leader(self, topic: str, partition: int = 0) -> int:
        found = self._admin.list_topics(topic, timeout=30)
        return int(found.topics[topic].partitions[partition].leader)

    def find_coordinator(self, group: str) -> int:
        return find_coordinator(self.properties, group)

    def find_controller(self) -> int:
        """The active one: DescribeQuorum's leader (KIP-836)."""
        answer = self._ask(lambda admin: admin.describe_metadata_quorum())
        return int(answer["topics"][0]["partitions"][0]["leader_id"])

    def let_away(self, broker: int) -> None:
        """SIGKILL; it comes back after some seconds, whatever the work does."""
        self.kafka.kill(broker)
        thread = threading.Timer(_AWAY_SECONDS, self.kafka.restart, (broker,))
        self._away.append(thread)
        thread.start()

    def let_leaderless(self, topic: str, partition: int = 0) -> None:
        """The broker of a partition with one replica is away until the cluster has noticed."""
        broker = self.find_leader(topic, partition)
        self.kafka.kill(broker)
        wait_until(lambda: self.find_leader(topic, partition) == -1, 60.0, what="nobody leads")
        thread = threading.Timer(_AWAY_SECONDS, self.kafka.restart, (broker,))
        self._away.append(thread)
        thread.start()

    @contextmanager
    def without(self, broker: int, how: str) -> Iterator[None]:
        """A broker that `hangs` (SIGSTOP) or `dies` (SIGKILL); afterwards it is back."""
        pid = self.kafka.pids[broker - 1]
        os.kill(pid, signal.SIGSTOP) if how == "hangs" else self.kafka.kill(broker)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT) if how == "hangs" else self.kafka.restart(broker)

    def await_all(self, topic: str | None = None) -> None:
        """Until all brokers are there, and all replicas of the topic are in sync."""
        while self._away:
            self._away.pop().join()
        if topic is not None:
            wait_until(lambda: self._is_whole(topic), 90.0, "all replicas are in sync")

    def _is_whole(self, topic: str) -> bool:
        found = self._admin.list_topics(topic, timeout=30).topics[topic]
        return all(len(one.isrs) == len(one.replicas) for one in found.partitions.values())

    def reassign(self, topic: str) -> None:
        """Each partition's replicas move on by one broker."""
        found = self._admin.list_topics(topic, timeout=30).topics[topic]
        moved = {
            kafka_python.TopicPartition(topic, number): [*one.replicas[1:], one.replicas[0]]
            for number, one in found.partitions.items()
        }
        self._ask(lambda admin: admin.alter_partition_reassignments(moved))

    def elect(self, topic: str) -> None:
        """The preferred replicas lead."""
        found = self._admin.list_topics(topic, timeout=30).topics[topic]
        partitions = [TopicPartition(topic, number) for number in found.partitions]
        self._admin.elect_leaders(ElectionType.PREFERRED, partitions).result(30)

    def _ask(self, work: Callable[[Any], Any]) -> Any:
        client = kafka_python.KafkaAdminClient(
            bootstrap_servers=self.properties["bootstrap.servers"]
        )
        try:
            return work(client)
        finally:
            client.close()


def disturb(cluster: Cluster, kind: str, topic: str, group: str) -> Iterator[Step]:
    """The steps of a kind, on what the work writes and the group it commits for."""
    if kind == "leader":
        yield lambda: cluster.let_away(cluster.find_leader(topic))
    elif kind == "coordinator":
        yield lambda: cluster.let_away(cluster.find_coordinator(group))
    elif kind == "controller":
        yield lambda: cluster.let_away(cluster.find_controller())
    elif kind == "rolling":
        for number in BROKERS:
            yield lambda number=number: cluster.kafka.restart(number)  # type: ignore[misc]
            yield lambda: cluster.await_all(topic)
    elif kind == "moves":
        yield lambda: cluster.reassign(topic)
        yield lambda: cluster.elect(topic)
    elif kind == "insync":
        # With one of three away a partition has fewer in sync than it needs, till that is over.
        yield lambda: set_config(cluster.properties, topic, {"min.insync.replicas": "3"})
        yield lambda: cluster.let_away(cluster.find_leader(topic) % len(BROKERS) + 1)
    else:
        raise AssertionError(kind)


KINDS = ("leader", "coordinator", "controller", "rolling", "moves", "insync")
