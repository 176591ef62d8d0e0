"""What tests do with a Kafka again and again; other addresses of a broker."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from backlogctl.clock import Deadline
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_admin, make_consumer, make_producer
from backlogctl.kafka.raw_client import (
    Coordinators,
    RawClient,
    lend_client,
    translate_error,
    translate_properties,
)
from backlogctl.kafka.transactions import describe_transaction
from backlogctl.sandbox.embedded import kafka_version

HOUR_MS = 3_600_000
Coordinated = Literal["GROUP", "TRANSACTION"]
Result = TypeVar("Result")


@dataclass(frozen=True)
class StreamStub:
    """A stream as monitoring needs it."""

    topic: str
    group: str
    name: str = "orders"
    cluster: str = "main"
    isolation: str = "read_committed"


@contextmanager
def repeating(action: Callable[[], object], each: float = 0.1) -> Iterator[None]:
    """Does something again and again meanwhile, on a thread of its own."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(each):
            action()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run_together(*actions: Callable[[], object], within: float = 120.0) -> None:
    """Each on a thread of its own, until all have ended."""
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(within)
        assert not thread.is_alive()


def properties_of(bootstrap: str) -> dict[str, str]:
    """Client properties of a plain broker."""
    return {"bootstrap.servers": bootstrap}


def wait_until(condition: Callable[[], object], seconds: float = 240.0, what: str = "") -> None:
    """Polls a condition until it is true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        time.sleep(0.05)


def publish(
    properties: Mapping[str, str],
    topic: str,
    counts: Mapping[int, int],
    *,
    hours_ago: float = 0.0,
    value: bytes = b"value",
    **settings: str,
) -> None:
    """Publishes `counts[partition]` messages to each partition and flushes."""
    producer = make_producer(properties, settings)
    at = int(time.time() * 1000 - hours_ago * HOUR_MS) if hours_ago else 0
    for partition, count in counts.items():
        for number in range(count):
            key = f"{partition}-{number}".encode()
            producer.produce(topic, value, key, partition, timestamp=at)
            producer.poll(0)
    assert producer.flush(90) == 0


def commit(
    properties: Mapping[str, str], group: str, topic: str, offsets: Mapping[int, int]
) -> None:
    """Reads up to the offsets and commits as a member of the group, then leaves it."""
    consumer = make_consumer(
        properties,
        {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 45_000,
            "fetch.wait.max.ms": 50,
        },
    )
    consumer.subscribe([topic])
    left = {p: at for p, at in offsets.items() if at > 0}
    last: dict[int, Message] = {}
    end = time.monotonic() + 90
    while left:
        assert time.monotonic() < end, f"could not read up to {left}"
        message = consumer.poll(0.2)
        if message is None or message.error():
            continue
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if partition in offsets and offset < offsets[partition]:
            last[partition] = message
        if partition in left and offset + 1 >= left[partition]:
            del left[partition]
    for message in last.values():
        consumer.commit(message=message, asynchronous=False)
    consumer.close()


def move_log_start(properties: Mapping[str, str], topic: str, offsets: Mapping[int, int]) -> None:
    """Deletes records below the offsets, as retention would, at once."""
    wanted = [TopicPartition(topic, partition, at) for partition, at in offsets.items()]
    admin = make_admin(properties)  # kept: a future of a client that is gone never ends
    for future in admin.delete_records(wanted).values():
        future.result(60)


def set_config(properties: Mapping[str, str], topic: str, config: Mapping[str, str]) -> None:
    """Sets topic settings, and waits until the broker says so too."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = make_admin(properties)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
    # The controller has them first.
    wait_until(
        lambda: verbs.read_topic_overrides(admin, topic, config) == dict(config),
        what="the settings are in force",
    )


def expire_unread(
    properties: Mapping[str, str],
    topic: str,
    group: str,
    *,
    old: Mapping[int, int],
    read: Mapping[int, int],
    young: Mapping[int, int],
) -> None:
    """Real retention expires what the group left of the `old` messages; the `young` survive.

    The topic must be new, with `retention.ms=-1`. Afterwards each partition's log start is
    `old[p]`, the group's commit `read[p]`, the end `old[p] + young[p]`. Every partition needs at
    least one young message: it rolls the segment.
    """
    set_config(properties, topic, {"retention.ms": "-1", "segment.ms": "600000"})
    publish(properties, topic, old, hours_ago=5)
    commit(properties, group, topic, read)
    publish(properties, topic, young)
    set_config(properties, topic, {"retention.ms": str(HOUR_MS)})
    wait_until(
        lambda: verbs.list_offsets(properties, topic, old, "earliest") == dict(old),
        what="retention moves the log starts",
    )


def set_offsets_raw(
    properties: Mapping[str, str], group: str, topic: str, offsets: Mapping[int, int]
) -> None:
    """What an operator's tool does: sets offsets without looking at anything.

    By kafka-python: such a request of librdkafka's that is late ends the process (its issue 4605).
    """
    # Here: to a script of this directory this module is `kafka`.
    from kafka import TopicPartition as Place
    from kafka.errors import NoError
    from kafka.structs import OffsetAndMetadata

    wanted = {
        Place(topic, partition): OffsetAndMetadata(at, "", -1) for partition, at in offsets.items()
    }
    settings, why = translate_properties(properties)
    assert settings is not None, why

    def is_set() -> bool:
        try:
            with lend_client(settings, Deadline(60), properties) as client:
                answer = client.admin.alter_group_offsets(group, wanted)
        except Exception as error:
            if not translate_error(error, "set offsets", group).retryable:
                raise
            return False
        return all(error is NoError for error in answer.values())

    # A young broker still loads its coordinators.
    wait_until(is_set, what="offsets are set")


def find_coordinator(properties: Mapping[str, str], name: str, of: Coordinated = "GROUP") -> int:
    """The broker that coordinates a group, or the transactions of a transactional.id."""
    return _ask_coordinators(properties, of, lambda _, coordinators: coordinators.find(name))


def is_transactional_id(properties: Mapping[str, str], name: str) -> bool:
    """Whether somebody had it."""

    def describe(client: RawClient, coordinators: Coordinators) -> Coroutine[Any, Any, Any]:
        return describe_transaction(client, coordinators, name)

    return _ask_coordinators(properties, "TRANSACTION", describe) is not None


def _ask_coordinators(
    properties: Mapping[str, str],
    of: Coordinated,
    ask: Callable[[RawClient, Coordinators], Coroutine[Any, Any, Result]],
) -> Result:
    settings, why = translate_properties(properties)
    assert settings is not None, why
    with lend_client(settings, Deadline(60), properties) as client:
        return client.run(lambda: ask(client, Coordinators(client, of)), Deadline(60))


def leave_at(
    properties: Mapping[str, str], group: str, topic: str, offsets: Mapping[int, int]
) -> None:
    """A member joined and left, and the group stands there. Of a group that nobody ever joined, a
    reader that assigns its partitions itself may have read anything."""
    join(properties, group, topic).close()
    set_offsets_raw(properties, group, topic, offsets)


def delete_group(properties: Mapping[str, str], group: str) -> None:
    """Deletes a group without members."""
    verbs.delete_group(properties, group, Deadline(60))


def delete_topic(properties: Mapping[str, str], topic: str) -> None:
    """Deletes a topic and waits until it is gone."""
    admin: AdminClient = make_admin(properties)
    admin.delete_topics([topic])[topic].result(60)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, what="topic is deleted")


def need_kafka(major: int, minor: int) -> None:
    """The test is left out where `make test-kafka-versions` runs an older broker."""
    if kafka_version() < (major, minor):
        pytest.skip(f"brokers do this from {major}.{minor} on")


def join(properties: Mapping[str, str], group: str, topic: str, **settings: str) -> Consumer:
    """A member of the group that has partitions assigned."""
    if settings.get("group_protocol") == "consumer":
        need_kafka(4, 0)
    consumer = make_consumer(
        properties,
        {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            **{name.replace("_", "."): value for name, value in settings.items()},
        },
    )
    consumer.subscribe([topic])
    end = time.monotonic() + 90
    while not consumer.assignment():
        assert time.monotonic() < end, "no partitions were assigned"
        message = consumer.poll(0.1)
        error = message.error() if message is not None else None
        # A topic made a moment ago may not have reached this broker's metadata.
        if error is not None and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaException(error)
    return consumer


def read_all(properties: Mapping[str, str], topic: str, partitions: Iterable[int]) -> list[Message]:
    """Every committed message from the log starts to the ends."""
    settings = {"enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = make_consumer(properties, settings, fetch_wait_max_ms=20)
    wanted = set(partitions)
    starts = verbs.list_offsets(properties, topic, wanted, "earliest")
    consumer.assign([TopicPartition(topic, p, at) for p, at in starts.items()])
    messages: list[Message] = []
    while wanted:
        message = consumer.poll(60)
        assert message is not None
        error = message.error()
        if error is None:
            messages.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            partition = message.partition()
            assert partition is not None
            wanted.discard(partition)
        elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            raise KafkaException(error)
    consumer.close()
    return messages


@contextmanager
def forward(host: str, target: tuple[str, int], port: int = 0) -> Iterator[str]:
    """Listens on `host`, passes each connection on; yields `host:port`."""
    with socket.create_server((host, port)) as server:
        threading.Thread(target=_accept, args=(server, target), daemon=True).start()
        try:
            yield f"{host}:{server.getsockname()[1]}"
        finally:
            # Closed alone, a thread that accepts would take one more connection.
            server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, target: tuple[str, int]) -> None:
    with suppress(OSError):
        while True:
            near, _ = server.accept()
            far = socket.create_connection(target)
            threading.Thread(target=_carry, args=(near, far), daemon=True).start()


def _carry(near: socket.socket, far: socket.socket) -> None:
    with near, far:
        back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
        back.start()
        _pass_on(near, far)
        back.join()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def await_markers(properties: Mapping[str, str], topic: str, ends: Mapping[int, int]) -> None:
    """Until the log has the markers of a committed transaction: these are its stable ends then.

    The coordinator answers a commit before it sends them.
    """
    wait_until(
        lambda: list_offsets(properties, topic, ends, "latest", "read_committed") == dict(ends),
        what="the markers are written",
    )
