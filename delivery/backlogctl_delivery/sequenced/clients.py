"""Adapters for confluent-kafka and kafka-python producers, and the partitions they choose.

The two are told apart by what they can do; neither is imported here before it is used. Keyed
messages go exactly where the client itself would send them, so that taking in the wrapper moves no
key (the scalar twin of the kernel's partitioners, without numpy and pyarrow). Messages without a
key stay in one partition for 10 ms, then go on to the next, from a partition chosen by chance:
whole batches, and evenly spread over time. A partition without a leader is not left out.
"""

from __future__ import annotations

import random
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic
from typing import Any, Protocol

from backlogctl_delivery.errors import BacklogError, ClusterUnreachable, KafkaFailure, UsageError

Headers = list[tuple[str, Any]]
# Called once with (None, what was delivered), or with (the error, ...).
Report = Callable[[Any, Any], None]
# topic, value, key, partition, report, None, timestamp (ms, 0 is now), headers: as confluent_kafka
# takes them by position. Names would cost a third more of its time.
Produce = Callable[[str, Any, Any, int, Report, None, int, Headers], Any]

_UNKNOWN_TOPIC, _NO_LEADER_YET = 3, 5
_AGAIN_SECONDS = 0.1


class Client(Protocol):
    """What a SequencedProducer needs of the wrapped producer.

    Attributes:
        partitioner: the name of the one it uses; None where it is not known.
        plain_key: keys of just this type are sent as they are; None where there is none.
    """

    partitioner: str | None
    plain_key: type | None

    def count_partitions(self, topic: str, seconds: float) -> int:
        """How many partitions the topic has; waits for at most so many seconds."""

    def encode_key(self, topic: str, key: Any) -> bytes | None:
        """The key's bytes, as they will be sent."""

    @property
    def produce(self) -> Produce:
        """Queues one message. What the client raises then comes through.

        Returns None, or a future, to which `attach` has yet to give the report.
        """

    def attach(self, sent: Any, report: Report) -> None:
        """Has the future of `produce` call the report; at once where it is done already."""

    def poll(self, seconds: float | None) -> int:
        """Serves reports; returns how many."""

    def flush(self, seconds: float | None) -> int:
        """Waits for all reports; returns how many messages have none yet."""


class ConfluentClient:
    """confluent_kafka.Producer."""

    partitioner: str | None = "crc32"
    plain_key: type | None = bytes

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        # A subclass, or what watches calls from around, may have them in another order.
        is_itself = type(type(producer).produce).__name__ == "method_descriptor"
        self.produce: Produce = producer.produce if is_itself else self._produce_by_name

    def count_partitions(self, topic: str, seconds: float) -> int:
        """Asks the cluster. A topic that is about to be made is waited for.

        Raises:
            ClusterUnreachable: nobody answered.
            KafkaFailure: there is no such topic, or it may not be looked at.
        """
        from confluent_kafka import KafkaException

        end = time.monotonic() + seconds
        while True:
            left = max(0.1, end - time.monotonic())
            try:
                topic_now = self._producer.list_topics(topic, timeout=left).topics[topic]
            except KafkaException as error:
                raise ClusterUnreachable(
                    f"the number of its partitions could not be read within {seconds:.0f} s: "
                    f"{error.args[0].str()}",
                    subject=f"topic {topic}",
                    hint="are the brokers up, and does bootstrap.servers name them?",
                ) from error
            if topic_now.error is None and topic_now.partitions:
                return len(topic_now.partitions)
            is_young = topic_now.error is None or topic_now.error.code() in (
                _UNKNOWN_TOPIC,
                _NO_LEADER_YET,
            )
            if not is_young or time.monotonic() + _AGAIN_SECONDS > end:
                why = "it has no partitions" if topic_now.error is None else topic_now.error.str()
                raise KafkaFailure(
                    f"the number of its partitions could not be read: {why}",
                    subject=f"topic {topic}",
                    hint="is its name right, and may the producer describe it?",
                )
            time.sleep(_AGAIN_SECONDS)

    def encode_key(self, topic: str, key: Any) -> bytes | None:
        """As confluent_kafka does: text is UTF-8.

        Raises:
            UsageError: the key is of another type.
        """
        if key is None or isinstance(key, bytes):
            return key
        if isinstance(key, str):
            return key.encode()
        raise _refuse_key(topic, key)

    def _produce_by_name(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int,
        report: Report,
        _: None,
        timestamp: int,
        headers: Headers,
    ) -> None:
        self._producer.produce(
            topic,
            value=value,
            key=key,
            partition=partition,
            on_delivery=report,
            timestamp=timestamp,
            headers=headers,
        )

    def attach(self, sent: Any, report: Report) -> None:
        """Nothing: the client has it since `produce`."""

    def poll(self, seconds: float | None) -> int:
        """As the client's."""
        served: int = self._producer.poll() if seconds is None else self._producer.poll(seconds)
        return served

    def flush(self, seconds: float | None) -> int:
        """As the client's."""
        left: int = self._producer.flush() if seconds is None else self._producer.flush(seconds)
        return left


class KafkaPythonClient:
    """kafka-python's KafkaProducer."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._key_serializer = producer.config.get("key_serializer")
        self.plain_key: type | None = bytes if self._key_serializer is None else None
        named = type(producer.config.get("partitioner")).__name__
        known = ("DefaultPartitioner", "StickyPartitioner")
        self.partitioner: str | None = "murmur2" if named in known else None

    def count_partitions(self, topic: str, seconds: float) -> int:
        """From the client's own metadata, which it refreshes itself. Waits for `max_block_ms`.

        Raises:
            KafkaFailure: the client does not know.
        """
        from kafka.errors import KafkaError

        try:
            return len(self._producer.partitions_for(topic))
        except KafkaError as error:
            raise KafkaFailure(
                f"the number of its partitions could not be read: {error}",
                subject=f"topic {topic}",
                hint="are the brokers up, is the topic's name right, and may it be described?",
            ) from error

    def encode_key(self, topic: str, key: Any) -> bytes | None:
        """By the client's own `key_serializer`. The client does so once more when it sends.

        Raises:
            UsageError: what comes out is not bytes.
        """
        if self._key_serializer is not None:
            try:
                key = self._key_serializer.serialize(topic, [], key)
            except TypeError:  # one of old, without headers
                key = self._key_serializer.serialize(topic, key)
        if key is None or isinstance(key, bytes):
            return key
        if isinstance(key, bytearray | memoryview):
            return bytes(key)
        raise _refuse_key(topic, key)

    def produce(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int,
        report: Report,
        _: None,
        timestamp: int,
        headers: Headers,
    ) -> Any:
        """Returns the client's future. Blocks for `max_block_ms` where the buffer is full."""
        return self._producer.send(
            topic,
            value=value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp or None,
        )

    def attach(self, sent: Any, report: Report) -> None:
        """Both ways a future can end."""
        sent.add_callback(report, None)
        sent.add_errback(lambda error: report(error, None))

    def poll(self, seconds: float | None) -> int:
        """Nothing: the client's own thread calls back."""
        return 0

    def flush(self, seconds: float | None) -> int:
        """Raises KafkaTimeoutError where the time did not do."""
        self._producer.flush(seconds)
        return 0


def adapt(producer: Any) -> Client:
    """The face of a producer of either client.

    Raises:
        UsageError: it is neither, or it turns keys into bytes where nobody can look.
    """
    if any(base.__name__ == "SerializingProducer" for base in type(producer).__mro__):
        raise UsageError(
            "it serializes keys itself, so that nobody can tell where they go",
            subject="confluent_kafka.SerializingProducer",
            hint="wrap a confluent_kafka.Producer, and call the serializers before produce()",
        )
    if all(hasattr(producer, name) for name in ("produce", "list_topics", "poll", "flush")):
        return ConfluentClient(producer)
    if all(hasattr(producer, name) for name in ("send", "partitions_for", "config", "flush")):
        return KafkaPythonClient(producer)
    raise UsageError(
        "it is neither confluent_kafka.Producer nor kafka-python's KafkaProducer",
        subject=f"{type(producer).__module__}.{type(producer).__qualname__}",
        hint="give SequencedProducer the producer that the application made",
    )


def _refuse_key(topic: str, key: Any) -> UsageError:
    return UsageError(
        f"a key of type {type(key).__name__} was given",
        subject=f"topic {topic}",
        hint="give bytes: the partition is chosen by the bytes that are sent",
    )


@dataclass(frozen=True)
class Received:
    """A message as a consumer got it, of either client."""

    topic: str
    partition: int
    headers: Sequence[tuple[str, Any]]
    is_bare: bool  # neither key nor value


def read_received(message: Any) -> Received | None:
    """A message of either client; None where it is an error in a message's place.

    Raises:
        ValueError: the client itself cannot read its headers.
    """
    if not callable(message.topic):
        is_bare = _is_empty(message.key) and _is_empty(message.value)
        return Received(message.topic, message.partition, message.headers or (), is_bare)
    if message.error() is not None:
        return None
    is_bare = _is_empty(message.key()) and _is_empty(message.value())
    return Received(message.topic(), message.partition(), message.headers() or (), is_bare)


def _is_empty(value: Any) -> bool:
    """A deserialized 0 is not."""
    return value is None or (isinstance(value, bytes | str) and not value)


# The partition of a key among so many partitions; None where the key is as good as none.
Partitioner = Callable[[bytes | None, int], int | None]

STICKY_SECONDS = 0.01
_M = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF
# A refresh of the number of partitions that failed is tried again after so many seconds.
_REFRESH_AGAIN_SECONDS = 10.0


# Keys come again, and in pure Python the hash costs as much as all else.
@lru_cache(maxsize=16_384)
def hash_murmur2(key: bytes) -> int:
    """Kafka's `Utils.murmur2` as an unsigned 32-bit number."""
    length = len(key)
    whole = length >> 2
    h = _SEED ^ length
    for k in struct.unpack_from(f"<{whole}I", key):
        k = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ (((k ^ (k >> 24)) * _M) & _MASK)
    if length & 3:
        h = ((h ^ int.from_bytes(key[whole << 2 :], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def place_murmur2(key: bytes | None, partitions: int) -> int | None:
    """Java's and kafka-python's default, and librdkafka's `murmur2_random`."""
    return None if key is None else (hash_murmur2(key) & 0x7FFFFFFF) % partitions


def place_crc32(key: bytes | None, partitions: int) -> int | None:
    """librdkafka's default, `consistent_random`, for which an empty key is none."""
    return zlib.crc32(key) % partitions if key else None


PARTITIONERS: dict[str, Partitioner] = {"murmur2": place_murmur2, "crc32": place_crc32}


def find_partitioner(wanted: str | Partitioner) -> Partitioner:
    """The partitioner of that name, or the application's own.

    Raises:
        UsageError: there is none of that name.
    """
    if not isinstance(wanted, str):
        return wanted
    if wanted not in PARTITIONERS:
        raise UsageError(
            f"{wanted!r} is no partitioner",
            subject="SequencedProducer",
            hint=f"take {' or '.join(PARTITIONERS)}, or a function (key, partitions) -> partition",
        )
    return PARTITIONERS[wanted]


class Placement:
    """Chooses partitions of one topic.

    Args:
        count_partitions: how many the topic has now. The first call is made here; later ones,
            every `refresh_seconds`, in a thread beside, so that no message waits for them.
        partitioner: places keys.
        refresh_seconds: how long a count holds. Meanwhile a topic that has grown is used as it was.

    Raises:
        BacklogError, or the client's own error: the topic could not be looked at.
    """

    def __init__(
        self, count_partitions: Callable[[], int], partitioner: Partitioner, refresh_seconds: float
    ) -> None:
        self._count_partitions = count_partitions
        self._partitioner = partitioner
        self._refresh_seconds = refresh_seconds
        self.partitions = count_partitions()
        self._refresh_at = monotonic() + refresh_seconds
        self._sticky = random.randrange(self.partitions)
        self._sticky_until = 0.0
        self._is_looking = False

    def choose(self, key: bytes | None) -> int:
        """The partition for a message with that key."""
        now = monotonic()
        if now > self._refresh_at:
            self.refresh()
        partition = self._partitioner(key, self.partitions)
        if partition is not None:
            return partition
        if now > self._sticky_until:
            self._sticky += 1
            self._sticky_until = now + STICKY_SECONDS
        return self._sticky % self.partitions

    def refresh(self) -> None:
        """Has the number of partitions looked up again, beside."""
        if self._is_looking:
            return
        self._is_looking = True
        self._refresh_at = monotonic() + self._refresh_seconds
        threading.Thread(target=self._refresh, name="backlog-partitions", daemon=True).start()

    def _refresh(self) -> None:
        try:
            self.partitions = self._count_partitions()
        # RuntimeError: the application has closed its producer.
        except (BacklogError, RuntimeError):
            self._refresh_at = monotonic() + min(_REFRESH_AGAIN_SECONDS, self._refresh_seconds)
        finally:
            self._is_looking = False
