"""What a log holds after a producer was at work."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from confluent_kafka import Message, Producer

from backlog.clock import Deadline
from backlog.kafka.admin import create_topic
from backlog.kafka.clients import Admin
from backlogctl_delivery.sequenced.checker import SequenceChecker, Verdict
from backlogctl_delivery.sequenced.sequence import Stamp, read_stamp
from sandbox.embedded import EmbeddedKafka
from tests.kafka_tools import read_all


def make_bare(bootstrap: str, **settings: Any) -> Producer:
    """The application's producer. Its topics were made a moment ago."""
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "linger.ms": 5,
            "reconnect.backoff.max.ms": 200,
            **dotted,
        }
    )


def read_by_partition(bootstrap: str, topic: str, partitions: int) -> dict[int, list[Message]]:
    found: dict[int, list[Message]] = defaultdict(list)
    for message in read_all({"bootstrap.servers": bootstrap}, topic, range(partitions)):
        partition = message.partition()
        assert partition is not None
        found[partition].append(message)
    return found


def read_stamps(bootstrap: str, topic: str, partitions: int = 1) -> dict[int, list[Stamp]]:
    """The stamps of every partition, in the order of its log."""
    found: dict[int, list[Stamp]] = {}
    for partition, messages in read_by_partition(bootstrap, topic, partitions).items():
        found[partition] = []
        for message in messages:
            stamp = read_stamp(message.headers())  # type: ignore[arg-type]
            assert stamp is not None
            found[partition].append(stamp)
    return found


def check_all(bootstrap: str, topic: str, partitions: int = 1) -> SequenceChecker:
    """A consumer that read all of it."""
    checker = SequenceChecker(reads_from_start=True)
    for messages in read_by_partition(bootstrap, topic, partitions).values():
        for message in messages:
            assert checker.check(message) in (Verdict.NEW, Verdict.END_MARK)
    return checker


def make_topic_on(kafka: EmbeddedKafka, name: str) -> str:
    admin = Admin({"bootstrap.servers": kafka.bootstrap})
    create_topic(admin, name, partitions=1, replication=1, config={}, deadline=Deadline(60))
    return name
