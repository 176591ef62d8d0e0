"""Sizes and free disk space of the brokers: DescribeLogDirs, which confluent-kafka lacks.

Asked through kafka-python, whose properties have other names. What cannot be asked is unknown with
a reason, never an error: a disk that cannot be seen must not stop an emergency by itself. All
brokers are asked at once, so one that hangs hides only its own disks.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.kafka.clients import Properties, find_addresses
from backlogctl.kafka.raw_client import RawClient, give_back, take_client, translate_properties

_SECRETS = ("sasl.password", "ssl.key.password", "sasl.username")
_SAME_VOLUME = 1 << 20
# For one broker, which tells it from memory.
_ANSWER_SECONDS = 4.0


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
    """The brokers' disks.

    Attributes:
        brokers: those that told theirs; None where none did.
        reason: why those of some, or all, are unknown; "" where all told.
        silent: of the brokers that the cluster names, those that did not tell.
        local_starts: of a tiered topic (KIP-405), by partition the offset where its bytes on the
            brokers' own disks begin; a partition that is not in it is unknown. None for any other
            topic, and where nobody has looked; see `fanout.disk.find_local_part`.
    """

    brokers: tuple[BrokerLogDirs, ...] | None
    reason: str = ""
    silent: tuple[int, ...] = ()
    local_starts: Mapping[int, int] | None = None

    def partition_bytes(self, partition: int) -> int | None:
        """Bytes of one replica of a partition, the largest; None where no broker that told has
        it."""
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
        client = take_client(settings, limit, properties)
    except Exception as error:  # noqa: BLE001 - an answer about disks is never worth a failure
        why = f"the disks cannot be read: {_describe(error, properties)}"
        return dict.fromkeys(topics, LogDirs(None, why))
    answers, silent = _ask_brokers(client, properties, [one for one in topics if one], limit)
    if silent:  # whose answer may still come
        client.close()
    else:
        give_back(settings, client)
    return {topic: _to_log_dirs(answers, topic, silent) for topic in topics}


def _ask_brokers(
    client: RawClient, properties: Properties, topics: Sequence[str], limit: Deadline
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """What brokers tell of their folders; by broker why the others do not."""
    answers, silent = [], {}
    within = limit.part(_ANSWER_SECONDS)
    waited = within.remaining()
    asked = {
        node: client.start(partial(_ask_broker, client, node, topics))
        for node in client.list_brokers()
    }
    for node, sent in asked.items():
        try:
            told = client.await_sent(sent, within)
            answers.append({"broker": node, "log_dirs": told})
        except TimeoutError:
            silent[node] = f"it did not answer within {waited:.1f} s"
        except Exception as error:  # noqa: BLE001 - as above
            silent[node] = _describe(error, properties)
    return answers, silent


async def _ask_broker(client: RawClient, node: int, topics: Sequence[str]) -> list[dict[str, Any]]:
    """It alone: of another one's metadata the answer would hang on that one, too."""
    from kafka.protocol.admin import DescribeLogDirsRequest
    from kafka.protocol.metadata import MetadataRequest

    named = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics],
        allow_auto_topic_creation=False,
        min_version=4,
        max_version=9,
    )
    found = (await client.send(named, node)).topics if topics else ()
    wanted = DescribeLogDirsRequest.DescribableLogDirTopic
    request = DescribeLogDirsRequest(
        topics=[
            wanted(topic=one.name, partitions=[part.partition_index for part in one.partitions])
            for one in found
        ]
    )
    return [one.to_dict() for one in (await client.send(request, node)).results]


def _to_log_dirs(
    answers: list[dict[str, Any]], topic: str, silent: Mapping[int, str] | None = None
) -> LogDirs:
    brokers, unknown = [], dict(silent or {})
    for answer in answers:
        directories = [one for one in answer["log_dirs"] if not one["error_code"]]
        if directories:
            brokers.append(_to_broker(answer["broker"], directories, topic))
        else:  # an access that is denied looks like this
            unknown[answer["broker"]] = "it shows none: is `Describe` on the cluster granted?"
    by_why: dict[str, list[str]] = {}
    for broker, why in sorted(unknown.items()):
        by_why.setdefault(why, []).append(str(broker))
    reason = "; ".join(
        f"the disks of {'broker' if len(names) == 1 else 'brokers'} {', '.join(names)} cannot be "
        f"read: {why}"
        for why, names in by_why.items()
    )
    if not brokers:
        return LogDirs(None, reason or "no broker answered", tuple(sorted(unknown)))
    ordered = tuple(sorted(brokers, key=lambda one: one.broker))
    return LogDirs(ordered, reason, tuple(sorted(unknown)))


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
