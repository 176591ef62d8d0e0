"""What happens to a cluster of three brokers while a test works on it: step by step, as the work
comes on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import kafka as kafka_python
from confluent_kafka import ElectionType, TopicPartition

from backlogctl.kafka.admin import create_topic, describe_group_state
from backlogctl.kafka.clients import make_admin
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.kit.kafka import (
    Coordinated,
    find_coordinator,
    is_transactional_id,
    set_config,
    wait_until,
)

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

    def make_topic(self, topic: str, partitions: int, kind: str = "") -> str:
        """Nothing expires. Where it `moves` it has two replicas, and so one broker has none."""
        return create_topic(
            self.properties,
            topic,
            partitions=partitions,
            replication=2 if kind == "moves" else None,
            config={"retention.ms": "-1"},
        )

    def find_leader(self, topic: str, partition: int = 0) -> int:
        return int(self._describe(topic)[partition].leader)

    def find_coordinator(self, name: str, of: Coordinated = "GROUP") -> int:
        return find_coordinator(self.properties, name, of)

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
        return all(len(one.isrs) == len(one.replicas) for one in self._describe(topic).values())

    def await_coordinator_moved(self, broker: int, name: str, of: Coordinated) -> None:
        """Until another has the place of one that is away, which was the coordinator; what it
        coordinates is there."""
        wait_until(lambda: self.find_coordinator(name, of) != broker, 60.0, f"{name} moved")
        if of == "GROUP":
            assert describe_group_state(self.properties, name).state != "dead"
        else:
            assert is_transactional_id(self.properties, name)

    def choose_brokers(self, topic: str) -> dict[int, list[int]]:
        """By partition whom to move its two replicas to: that of the follower onto the broker that
        has none, which then is to lead."""
        brokers = {}
        for number, one in self._describe(topic).items():
            (free,) = set(BROKERS) - set(one.replicas)
            brokers[number] = [free, one.leader]
        return brokers

    def reassign(self, topic: str, brokers: Mapping[int, Sequence[int]]) -> None:
        """Begins to copy each partition to where it is not yet."""
        moved = {kafka_python.TopicPartition(topic, at): places for at, places in brokers.items()}
        refused = self._ask(lambda admin: admin.alter_partition_reassignments(moved))
        assert refused == dict.fromkeys(moved), refused

    def await_reassigned(self, topic: str, brokers: Mapping[int, Sequence[int]]) -> None:
        """Until they have the whole copies, and nobody else has any."""

        def is_done() -> bool:
            replicas = {at: list(one.replicas) for at, one in self._describe(topic).items()}
            return replicas == brokers and self._is_whole(topic)

        wait_until(is_done, 90.0, "the replicas have moved")

    def elect(self, topic: str) -> None:
        """The preferred replicas lead."""
        partitions = [TopicPartition(topic, number) for number in self._describe(topic)]
        self._admin.elect_leaders(ElectionType.PREFERRED, partitions).result(30)

        def is_done() -> bool:
            return all(one.leader == one.replicas[0] for one in self._describe(topic).values())

        wait_until(is_done, 60.0, "the preferred replicas lead")

    def _describe(self, topic: str) -> Mapping[int, Any]:
        return dict(self._admin.list_topics(topic, timeout=30).topics[topic].partitions)

    def _ask(self, work: Callable[[Any], Any]) -> Any:
        client = kafka_python.KafkaAdminClient(
            bootstrap_servers=self.properties["bootstrap.servers"]
        )
        try:
            return work(client)
        finally:
            client.close()


def disturb(
    cluster: Cluster,
    kind: str,
    topic: str,
    coordinated: Mapping[str, Coordinated] = MappingProxyType({}),
) -> Iterator[Step]:
    """The steps of a kind, on the topic that the work writes.

    Args:
        coordinated: the groups and transactional ids that the work commits for, by name.
    """
    if kind == "leader":
        yield lambda: cluster.let_away(cluster.find_leader(topic))
    elif kind == "coordinator":
        assert coordinated
        for name, of in coordinated.items():
            broker = cluster.find_coordinator(name, of)
            yield partial(cluster.let_away, broker)
            yield partial(cluster.await_coordinator_moved, broker, name, of)
            yield lambda: cluster.await_all(topic)
    elif kind == "controller":
        yield lambda: cluster.let_away(cluster.find_controller())
    elif kind == "rolling":
        for number in BROKERS:
            yield partial(cluster.kafka.restart, number)
            yield lambda: cluster.await_all(topic)
    elif kind == "moves":
        brokers = cluster.choose_brokers(topic)
        yield partial(cluster.reassign, topic, brokers)
        yield partial(cluster.await_reassigned, topic, brokers)
        yield lambda: cluster.elect(topic)
    elif kind == "insync":
        # With one of three away a partition has fewer in sync than it needs, till that is over.
        yield lambda: set_config(cluster.properties, topic, {"min.insync.replicas": "3"})
        yield lambda: cluster.let_away(cluster.find_leader(topic) % len(BROKERS) + 1)
    else:
        raise AssertionError(kind)


# Of what is in no transaction, and read by no group.
UNCOORDINATED = ("leader", "controller", "rolling", "moves", "insync")
KINDS = (*UNCOORDINATED, "coordinator")
