"""Admin verbs on topics; see `backlogctl.kafka.admin`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Literal

from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure, Refused
from backlogctl.kafka.clients import (
    Admin,
    Connection,
    Properties,
    ask,
    ask_for_one,
    connect,
    retry_in_turns,
    seconds_left,
    wait_for,
    wait_for_broker,
)
from backlogctl.kafka.errors import TopicExists, TopicMissing, translate
from backlogctl.kafka.raw_client import RawClient, ask_in_coroutine, translate_properties

Isolation = Literal["read_committed", "read_uncommitted"]

DEFAULT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the cluster describes it; `config` holds every topic setting, defaults too, and
    `own` names those that the topic sets itself."""

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, str]
    replication: int = 1
    own: frozenset[str] = frozenset()


def read_topic_id(
    connection: Connection, topic: str, deadline: Deadline | None = None
) -> tuple[str, int]:
    """The topic's id and its number of partitions."""
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    described = _describe(admin, topic, limit)
    return str(described.topic_id), len(described.partitions)


def describe_topic(
    connection: Connection, topic: str, deadline: Deadline | None = None
) -> TopicInfo:
    """Id, partitions, replication and settings of a topic."""
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    described = _describe(admin, topic, limit)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    call, subject = admin.describe_configs, f"topic {topic}"
    entries = ask_for_one(admin, call, subject, "read its settings", limit, [resource])
    return TopicInfo(
        name=topic,
        topic_id=str(described.topic_id),
        partitions=len(described.partitions),
        config={name: entry.value for name, entry in entries.items() if entry.value is not None},
        replication=min((len(p.replicas) for p in described.partitions), default=1),
        own=frozenset(name for name, entry in entries.items() if _is_own(entry)),
    )


def read_metadata(
    connection: Connection, topic: str | None = None, deadline: Deadline | None = None
) -> Any:
    """Brokers, leaders and replicas in sync, as any broker knows them; of one topic or of all."""
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject = "the cluster" if topic is None else f"topic {topic}"
    wait_for_broker(admin, subject, "read the metadata", limit)
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
    make: Callable[[], Any] = OffsetSpec.earliest if spec == "earliest" else OffsetSpec.latest
    what = OffsetSpec.for_timestamp(spec) if isinstance(spec, int) else make()
    doing = "read the offsets of a time" if isinstance(spec, int) else f"read the {spec} offsets"
    found = _list_offsets(connection, topic, partitions, what, doing, isolation, deadline)
    return {partition: one.offset for partition, one in found.items()}


def list_newest_times(
    connection: Connection, topic: str, partitions: Iterable[int], deadline: Deadline | None = None
) -> dict[int, int]:
    """The largest timestamps, in milliseconds; -1 where there is none (KIP-734)."""
    what: Any = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
    doing = "read the newest timestamps"
    found = _list_offsets(connection, topic, partitions, what, doing, "read_uncommitted", deadline)
    return {partition: one.timestamp for partition, one in found.items()}


def _list_offsets(
    connection: Connection,
    topic: str,
    partitions: Iterable[int],
    what: Any,
    doing: str,
    isolation: Isolation,
    deadline: Deadline | None,
) -> dict[int, ListOffsetsResultInfo]:
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    request = {TopicPartition(topic, partition): what for partition in partitions}
    if not request:
        return {}
    level = (
        IsolationLevel.READ_COMMITTED
        if isolation == "read_committed"
        else IsolationLevel.READ_UNCOMMITTED
    )
    subject = f"topic {topic}"

    def call(turn: Deadline) -> dict[int, ListOffsetsResultInfo]:
        futures = ask(
            admin, admin.list_offsets, subject, doing, turn, request, isolation_level=level
        )
        found = {}
        for key, future in futures.items():
            place = f"{subject}[{key.partition}]"
            one = wait_for(admin, future, place, doing, turn)
            if one.offset == OFFSET_INVALID:  # its leader did not answer; librdkafka tells no error
                raise admin.translate(TimeoutError(), place, doing, turn.seconds)
            found[key.partition] = one
        return found

    return retry_in_turns(admin, limit, call)


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
        TopicExists, or KafkaFailure: a policy refused it.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"topic {topic}", "create it"
    new = NewTopic(
        topic,
        num_partitions=partitions,
        replication_factor=-1 if replication is None else replication,
        config=dict(config or {}),
    )
    turns = count()

    def call(turn: Deadline) -> None:
        (future,) = ask(admin, admin.create_topics, subject, doing, turn, [new]).values()
        # One that was asked before, and did not answer, may have made it.
        may_exist = exist_ok or next(turns) > 0
        try:
            wait_for(admin, future, subject, doing, turn)
        except TopicExists:
            if not may_exist:
                raise

    retry_in_turns(admin, limit, call)
    return _await_leaders(admin, topic, limit)


@dataclass(frozen=True, slots=True)
class CreationAnswer:
    """What a cluster says to the creation of a topic that it is only asked about.

    Attributes:
        refused: why it would not; "" where it would, or the topic is there.
        is_about_settings: it refuses for a setting, or by a policy, which may be of settings.
        config: what would be in force; empty where that is not told.
    """

    refused: str = ""
    is_about_settings: bool = False
    config: Mapping[str, str] = field(default_factory=dict)


_ABOUT_SETTINGS = frozenset({KafkaError.INVALID_CONFIG, KafkaError.POLICY_VIOLATION})
_ABOUT_SIZE = frozenset({KafkaError.INVALID_PARTITIONS, KafkaError.INVALID_REPLICATION_FACTOR})


def ask_creation(
    properties: Properties,
    topic: str,
    *,
    partitions: int,
    replication: int,
    config: Mapping[str, str],
    deadline: Deadline | None = None,
) -> CreationAnswer:
    """Whether the cluster would create a topic; creates nothing.

    Through kafka-python: librdkafka hides the settings in the answer.

    Raises:
        KafkaFailure: it cannot be asked, or refuses for another reason, such as a missing right.
    """
    subject, doing = f"topic {topic}", "ask whether it can be created"
    settings, why = translate_properties(properties)
    if settings is None:
        raise KafkaFailure(f"could not {doing} {why}", subject=subject)
    limit = deadline or Deadline(DEFAULT_SECONDS)
    work = partial(_ask_creation, topic, partitions, replication, config)
    answer = ask_in_coroutine(settings, properties, subject, doing, limit, work)
    code = answer.error_code
    if code in _ABOUT_SETTINGS | _ABOUT_SIZE:
        refused = answer.error_message or KafkaError(code).name()
        return CreationAnswer(refused, code in _ABOUT_SETTINGS)
    if code and code != KafkaError.TOPIC_ALREADY_EXISTS:
        raise translate(KafkaError(code, answer.error_message), subject, doing)
    told = {one.name: one.value for one in answer.configs or () if one.value is not None}
    return CreationAnswer(config=told)


async def _ask_creation(
    topic: str, partitions: int, replication: int, config: Mapping[str, str], client: RawClient
) -> Any:
    from kafka.protocol.admin import CreateTopicsRequest
    from kafka.protocol.metadata import MetadataRequest

    named = MetadataRequest(
        topics=[], allow_auto_topic_creation=False, min_version=4, max_version=9
    )
    controller = (await client.send(named)).controller_id  # with KRaft: any that passes it on
    wanted = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            wanted(
                name=topic,
                num_partitions=partitions,
                replication_factor=replication,
                assignments=[],
                configs=[
                    wanted.CreatableTopicConfig(name=name, value=value)
                    for name, value in config.items()
                ],
            )
        ],
        timeout_ms=10_000,
        validate_only=True,
    )
    (found,) = (await client.send(request, controller if controller >= 0 else None)).topics
    return found


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
    call, request = admin.describe_topics, TopicCollection([topic])
    return ask_for_one(admin, call, f"topic {topic}", "describe it", limit, request)


# Deleting a topic's oldest records (DeleteRecords); see `backlogctl.kafka.admin`.


def delete_records(
    connection: Connection, topic: str, ends: Mapping[int, int], deadline: Deadline | None = None
) -> dict[int, int]:
    """Deletes what lies below an offset of each partition, for every group; doing it twice is fine.

    The caller knows that nobody needs it: brokers delete above the last stable offset, too, and an
    open transaction then loses its messages.

    Returns:
        The log starts that read back.

    Raises:
        KafkaFailure: a partition was refused (names all of them), or its log start reads back below
            its offset. Others may be deleted.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"topic {topic}", "delete records"
    wanted = [TopicPartition(topic, partition, at) for partition, at in sorted(ends.items())]
    if not wanted:
        return {}

    def call(turn: Deadline) -> None:
        futures = ask(admin, admin.delete_records, subject, doing, turn, wanted)
        refused: dict[int, BacklogError] = {}
        for place, future in futures.items():
            try:
                wait_for(admin, future, f"{subject}[{place.partition}]", doing, turn)
            except BacklogError as error:
                refused[place.partition] = error
        if not refused:
            return
        first = refused[min(refused)]
        if len(refused) > 1:
            numbers = ", ".join(map(str, sorted(refused)))
            first.message += f"; so were partitions {numbers} in all"
        raise first

    retry_in_turns(admin, limit, call)
    lows = list_offsets(admin, topic, ends, "earliest", deadline=limit)
    if short := {p: lows[p] for p, at in ends.items() if lows[p] < at}:
        raise KafkaFailure(
            f"deleted records, but the log starts read back as {short}",
            subject=subject,
            hint="try again; look at the brokers' logs where it stays so",
            retryable=True,
        )
    return lows


# Deleting a topic that is known by its id; see `backlogctl.kafka.admin`.

_PAUSE = 0.1


def delete_topic(
    connection: Connection, topic: str, topic_id: str, deadline: Deadline | None = None
) -> None:
    """Deletes the topic of this name and id, and waits until it is gone.

    One that is gone already is fine.

    Raises:
        Refused: the topic of this name has another id; it is left alone.
        KafkaFailure: the cluster refused, or the topic is still there at the deadline.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject = f"topic {topic}"

    def call(turn: Deadline) -> None:
        found = find_topic_id(admin, topic, turn)
        if found is None:
            return
        if found != topic_id:
            raise Refused(
                f"it was not deleted: its id is {found}, not {topic_id}",
                subject=subject,
                hint="somebody made another topic of this name; it is theirs",
            )
        (future,) = ask(admin, admin.delete_topics, subject, "delete it", turn, [topic]).values()
        with suppress(TopicMissing):
            wait_for(admin, future, subject, "delete it", turn)

    retry_in_turns(admin, limit, call)
    while find_topic_id(admin, topic, limit) == topic_id:
        if limit.expired:
            raise KafkaFailure(
                f"it is still there {limit.seconds:g} s after it was to be deleted",
                subject=subject,
                hint="look at the brokers; `delete.topic.enable` must be on",
                retryable=True,
            )
        time.sleep(limit.remaining(_PAUSE))


def find_topic_id(admin: Admin, topic: str, limit: Deadline) -> str | None:
    """None where there is no such topic."""
    try:
        return read_topic_id(admin, topic, limit)[0]
    except TopicMissing:
        return None


# Topic settings: what a topic sets itself, what is in force, and changing single ones.


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """`value` is in force; `override` is what the topic itself sets, None where it does not."""

    value: str | None
    override: str | None


def read_topic_settings(
    connection: Connection, topic: str, names: Iterable[str], deadline: Deadline | None = None
) -> dict[str, TopicSetting]:
    """The settings named, as they are in force and as the topic sets them.
    Raises TopicMissing, ClusterUnreachable, KafkaFailure: also for a name the broker does not know.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"topic {topic}", "read its settings"
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = ask_for_one(admin, admin.describe_configs, subject, doing, limit, [resource])
    wanted = list(names)
    unknown = sorted(set(wanted) - set(entries))
    if unknown:
        raise KafkaFailure(
            f"could not {doing}: the broker knows no setting {', '.join(unknown)}", subject=subject
        )
    return {name: _to_setting(entries[name]) for name in wanted}


def read_topic_overrides(
    connection: Connection, topic: str, names: Iterable[str], deadline: Deadline | None = None
) -> dict[str, str | None]:
    """What the topic itself sets; None where it does not. Errors as `read_topic_settings`."""
    settings = read_topic_settings(connection, topic, names, deadline)
    return {name: setting.override for name, setting in settings.items()}


def alter_topic_config(
    connection: Connection,
    topic: str,
    changes: Mapping[str, str | None],
    deadline: Deadline | None = None,
    *,
    only_ask: bool = False,
) -> None:
    """Sets single settings of a topic, leaves the others, and reads them back.

    Args:
        changes: the new values; None unsets, so that the broker's own value is in force again.
        only_ask: changes nothing; the cluster says whether it would (rights, its own policy).

    Raises:
        KafkaFailure: it was refused, or what reads back is not what was set.
    """
    if not changes:
        return
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"topic {topic}", "change its settings"
    entries = [_make_entry(name, value) for name, value in changes.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    call = partial(admin.incremental_alter_configs, validate_only=only_ask)
    ask_for_one(admin, call, subject, doing, limit, [resource])
    if not only_ask:
        _await_changes(admin, topic, changes, limit)


def _await_changes(
    admin: Admin, topic: str, changes: Mapping[str, str | None], limit: Deadline
) -> None:
    """The controller has them first; the broker that is asked learns of them a little later."""
    while True:
        back = read_topic_overrides(admin, topic, changes, limit)
        wrong = {name: back[name] for name, value in changes.items() if back[name] != value}
        if not wrong:
            return
        if limit.expired:
            raise KafkaFailure(
                f"set its settings, but {wrong} reads back",
                subject=f"topic {topic}",
                hint="something else changes them too; look who does",
                retryable=True,
            )
        time.sleep(limit.remaining(_PAUSE))


def _to_setting(entry: Any) -> TopicSetting:
    return TopicSetting(entry.value, entry.value if _is_own(entry) else None)


def _is_own(entry: Any) -> bool:
    return int(entry.source) == ConfigSource.DYNAMIC_TOPIC_CONFIG.value


def _make_entry(name: str, value: str | None) -> ConfigEntry:
    if value is None:
        return ConfigEntry(name, "", incremental_operation=AlterConfigOpType.DELETE)
    return ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
