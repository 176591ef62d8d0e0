"""Sizes and free disk space of the brokers: DescribeLogDirs, which confluent-kafka lacks.

Asked through kafka-python, whose properties have other names. What cannot be asked is unknown with
a reason, never an error: a disk that cannot be seen must not stop an emergency by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.kafka.clients import Properties, find_addresses
from backlogctl.kafka.raw_client import lend_client, translate_properties

_SECRETS = ("sasl.password", "ssl.key.password", "sasl.username")
_SAME_VOLUME = 1 << 20


@dataclass(frozen=True, slots=True)
class Disk:
    """One disk of a broker: bytes, None where its version does not report them (KIP-827, Kafka
    3.3), and the partitions of the topic that lie there."""

    usable_bytes: int | None
    total_bytes: int | None
    partitions: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class BrokerLogDirs:
    """One broker's disks together: bytes, None where its version does not report them.

    `partitions` are the bytes of the topic's replicas on this broker; `directories` are its
    `log.dirs`, as paths on its own host.
    """

    broker: int
    usable_bytes: int | None
    total_bytes: int | None
    partitions: Mapping[int, int] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    several: tuple[Disk, ...] = ()

    @property
    def disks(self) -> tuple[Disk, ...]:
        """Each disk by itself: one that is full stops what lies there, whatever the others have."""
        whole = Disk(self.usable_bytes, self.total_bytes, frozenset(self.partitions))
        return self.several or (whole,)


@dataclass(frozen=True, slots=True)
class LogDirs:
    """The brokers' disks; `brokers` is None where they are unknown, and `reason` says why."""

    brokers: tuple[BrokerLogDirs, ...] | None
    reason: str = ""

    def partition_bytes(self, partition: int) -> int | None:
        """Bytes of one replica of a partition, the largest; None where no broker has it."""
        sizes = [broker.partitions.get(partition) for broker in self.brokers or ()]
        return max((size for size in sizes if size is not None), default=None)

    @property
    def replica_bytes(self) -> dict[tuple[int, int], int]:
        """Bytes of each replica of the topic, by broker and partition; empty where unknown."""
        return {
            (broker.broker, partition): size
            for broker in self.brokers or ()
            for partition, size in broker.partitions.items()
        }


def read_log_dirs(properties: Properties, topic: str, deadline: Deadline | None = None) -> LogDirs:
    """`read_topics_log_dirs` of one topic; "" for the disks alone."""
    return read_topics_log_dirs(properties, [topic], deadline)[topic]


def read_topics_log_dirs(
    properties: Properties, topics: Collection[str], deadline: Deadline | None = None
) -> dict[str, LogDirs]:
    """The disks of every broker, and what each of the topics takes there.

    Args:
        properties: the cluster's client properties, as librdkafka takes them.

    Returns:
        Within the deadline, whatever happens; unknown with a reason where they cannot be read.
    """
    limit = deadline or Deadline(15.0)
    translated, reason = translate_properties(properties)
    if translated is None:
        return dict.fromkeys(topics, LogDirs(None, f"the disks cannot be asked for {reason}"))
    answer: list[dict[str, LogDirs]] = []

    def work() -> None:
        answer.append(_ask(translated, properties, topics, limit))

    # A thread, because not every wait of the client has a limit.
    thread = threading.Thread(target=work, name="backlog-log-dirs", daemon=True)
    thread.start()
    thread.join(limit.remaining() + 1.0)
    if answer:
        return answer[0]
    why = f"{find_addresses(properties)} did not answer in {limit.seconds:g} s"
    return dict.fromkeys(topics, LogDirs(None, why))


def _ask(
    settings: Mapping[str, Any], properties: Properties, topics: Collection[str], limit: Deadline
) -> dict[str, LogDirs]:
    try:
        with lend_client(settings, limit, properties) as client:
            answers = client.admin.describe_log_dirs([topic for topic in topics if topic])
        return {topic: _to_log_dirs(answers, topic) for topic in topics}
    except Exception as error:  # noqa: BLE001 - an answer about disks is never worth a failure
        why = f"the disks cannot be read: {_describe(error, properties)}"
        return dict.fromkeys(topics, LogDirs(None, why))


def _to_log_dirs(answers: list[dict[str, Any]], topic: str) -> LogDirs:
    brokers = []
    for answer in answers:
        directories = [one for one in answer["log_dirs"] if not one["error_code"]]
        if not directories:
            # The client drops the code of the whole answer: an access denied looks like this.
            return LogDirs(
                None,
                f"broker {answer['broker']} shows no disks: is `Describe` on the cluster granted?",
            )
        brokers.append(_to_broker(answer["broker"], directories, topic))
    if not brokers:
        return LogDirs(None, "no broker answered")
    return LogDirs(tuple(sorted(brokers, key=lambda one: one.broker)))


def _to_broker(broker: int, directories: list[dict[str, Any]], topic: str) -> BrokerLogDirs:
    volumes: list[tuple[int, int, set[int]]] = []
    partitions: dict[int, int] = {}
    for directory in directories:
        total, usable = directory.get("total_bytes", -1), directory.get("usable_bytes", -1)
        # Two directories on one disk show the same figures; its space counts once.
        same = (p for t, u, p in volumes if t == total and abs(u - usable) < _SAME_VOLUME)
        if (there := next(same, None)) is None:
            volumes.append((total, usable, there := set()))
        for found in directory["topics"]:
            if found["name"] != topic:
                continue
            for part in found["partitions"]:
                index = part["partition_index"]
                partitions[index] = partitions.get(index, 0) + part["partition_size"]
                there.add(index)
    disks = tuple(
        Disk(usable, total, frozenset(there))
        if min(usable, total) >= 0
        else Disk(None, None, frozenset(there))
        for total, usable, there in volumes
    )
    usables, totals = [d.usable_bytes for d in disks], [d.total_bytes for d in disks]
    return BrokerLogDirs(
        broker,
        _add(usables),
        _add(totals),
        partitions,
        tuple(sorted(str(directory["log_dir"]) for directory in directories)),
        disks if len(disks) > 1 else (),
    )


def _add(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _describe(error: Exception, properties: Properties) -> str:
    name, text = type(error).__name__, str(error)  # which the client may begin with the name
    text = f"{name}: {text.removeprefix(f'{name}: ')}".splitlines()[0]
    for name in _SECRETS:
        secret = str(properties.get(name) or "")
        if secret:
            text = text.replace(secret, "***")
    return text
