"""Admin verbs on topics; see `backlog.kafka.admin`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from backlog.clock import Deadline
from backlog.errors import KafkaFailure
from backlog.kafka.calls import (
    Connection,
    ask,
    connect,
    reach,
    retry_transient,
    seconds_left,
    wait_for,
)
from backlog.kafka.clients import Admin
from backlog.kafka.errors import TopicMissing
from backlogctl_delivery.kafka import unwrap

Isolation = Literal["read_committed", "read_uncommitted"]

DEFAULT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the cluster describes it; `config` holds every topic setting, defaults too."""

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, str]
    replication: int = 1


def read_topic_id(
    connection: Connection, topic: str, deadline: Deadline | None = None
) -> tuple[str, int]:
    """The topic's id and its number of partitions.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    described = _describe(admin, topic, limit)
    return str(described.topic_id), len(described.partitions)


def describe_topic(
    connection: Connection, topic: str, deadline: Deadline | None = None
) -> TopicInfo:
    """Id, partitions, replication and settings of a topic.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    described = _describe(admin, topic, limit)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    doing = "read its settings"
    futures = ask(admin, admin.describe_configs, f"topic {topic}", doing, limit, [resource])
    entries = wait_for(admin, futures[resource], f"topic {topic}", doing, limit)
    return TopicInfo(
        name=topic,
        topic_id=str(described.topic_id),
        partitions=len(described.partitions),
        config={name: entry.value for name, entry in entries.items() if entry.value is not None},
        replication=min((len(p.replicas) for p in described.partitions), default=1),
    )


def read_metadata(
    connection: Connection, topic: str | None = None, deadline: Deadline | None = None
) -> Any:
    """Brokers, leaders and replicas in sync, as any broker knows them; of one topic or of all.

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject = "the cluster" if topic is None else f"topic {topic}"
    reach(admin, subject, "read the metadata", limit)
    try:
        if topic is None:
            return admin.list_topics(timeout=seconds_left(limit))
        return admin.list_topics(topic, timeout=seconds_left(limit))
    except KafkaException as error:
        raise admin.translate(error, subject, "read the metadata", limit.seconds) from error


def list_offsets(
    connection: Connection,
    topic: str,
    partitions: Iterable[int],
    spec: Literal["earliest", "latest"] | int,
    isolation: Isolation = "read_uncommitted",
    deadline: Deadline | None = None,
) -> dict[int, int]:
    """Log starts (`earliest`), or ends: the LSO with `read_committed`, else the high watermark.

    Of a time, in milliseconds: the first offset of that time or a later one, -1 where none is.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure: for any partition.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    make: Callable[[], Any] = OffsetSpec.earliest if spec == "earliest" else OffsetSpec.latest
    what = OffsetSpec.for_timestamp(spec) if isinstance(spec, int) else make()
    request = {TopicPartition(topic, partition): what for partition in partitions}
    if not request:
        return {}
    level = (
        IsolationLevel.READ_COMMITTED
        if isolation == "read_committed"
        else IsolationLevel.READ_UNCOMMITTED
    )
    subject, doing = f"topic {topic}", "read the offsets of a time"
    if not isinstance(spec, int):
        doing = f"read the {spec} offsets"

    def call() -> dict[int, int]:
        futures = ask(
            admin, admin.list_offsets, subject, doing, limit, request, isolation_level=level
        )
        return {
            key.partition: wait_for(
                admin, future, f"{subject}[{key.partition}]", doing, limit
            ).offset
            for key, future in futures.items()
        }

    return retry_transient(admin, limit, call)


def create_topic(
    connection: Connection,
    topic: str,
    *,
    partitions: int,
    replication: int | None = None,
    config: Mapping[str, str] | None = None,
    deadline: Deadline | None = None,
    exist_ok: bool = False,
) -> str:
    """Creates a topic, waits until every partition has a leader, and returns the topic's id.

    Args:
        replication: None takes the cluster's default.
        exist_ok: a topic that is there already is left as it is; its id is returned.

    Raises:
        KafkaFailure: it exists already, or a policy refused it.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"topic {topic}", "create it"
    new = NewTopic(
        topic,
        num_partitions=partitions,
        replication_factor=-1 if replication is None else replication,
        config=dict(config or {}),
    )
    futures = ask(admin, admin.create_topics, subject, doing, limit, [new])
    try:
        futures[topic].result(timeout=seconds_left(limit) + 1.0)
    except (KafkaException, TimeoutError) as error:
        inner = unwrap(error)
        exists = inner is not None and inner.code() == KafkaError.TOPIC_ALREADY_EXISTS
        if not (exists and exist_ok):
            raise admin.translate(error, subject, doing, limit.seconds) from error
    return _await_leaders(admin, topic, limit)


def _await_leaders(admin: Admin, topic: str, limit: Deadline) -> str:
    """A new topic reaches the brokers a little later than the controller's answer."""
    while True:
        try:
            topic_id, partitions = read_topic_id(admin, topic, limit)
            list_offsets(admin, topic, range(partitions), "latest", deadline=limit)
            return topic_id
        except KafkaFailure as error:
            if limit.expired or not (isinstance(error, TopicMissing) or error.retryable):
                raise
            admin.poll(0.05)


def _describe(admin: Admin, topic: str, limit: Deadline) -> Any:
    subject, doing = f"topic {topic}", "describe it"

    def call() -> Any:
        what = TopicCollection([topic])
        futures = ask(admin, admin.describe_topics, subject, doing, limit, what)
        return wait_for(admin, futures[topic], subject, doing, limit)

    return retry_transient(admin, limit, call)
