"""Messages of a topic and letters of a dead-letter topic, as the frameworks write them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from backlogctl.kafka.clients import make_producer
from backlogctl_delivery import stamps
from tests.kit.kafka import commit, read_all
from tests.kit.shop import DONE, PARTITIONS, TOTAL, Shop, count_by_partition, place
from tests.spark_backfill.world import make_order as make_row
from tests.spark_backfill.world import publish_orders

Header = tuple[str, bytes | None]
AT = 1_760_000_000_000
# Its times are of another year.
KEEP = {"retention.ms": "-1"}
UNREAD = TOTAL - DONE
Message = tuple[int, bytes | None, bytes | None, tuple[Header, ...]]


@pytest.fixture
def plain_shop(empty_shop: Shop) -> Shop:
    """Orders that are unread, and no source table."""
    shop = empty_shop
    publish_orders(shop.bootstrap, shop.topic, [make_row(number) for number in range(TOTAL)])
    commit(shop.properties, shop.group, shop.topic, count_by_partition(range(DONE)))
    shop.write_config(source=None)
    return shop


def read_own(shop: Shop, topic: str = "", partitions: int = PARTITIONS) -> list[Message]:
    """Messages as the stream's producers sent them: without our stamps, in the log's order."""
    found = []
    for message in read_all(shop.properties, topic or shop.topic, range(partitions)):
        headers: Any = message.headers() or []
        own = tuple((name, value) for name, value in headers if name not in stamps.ALL)
        found.append((message.partition() or 0, message.key(), message.value(), own))
    return sorted(found, key=lambda item: item[0])


@dataclass(frozen=True)
class Letter:
    """A message to publish; its partition is that of the key where none is said."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    partition: int = 0
    timestamp: int = AT


def make_value(number: int) -> bytes:
    status = "PAID" if number % 2 else "NEW"
    return json.dumps({"order_id": number, "status": status, "email": f"u{number}@x.org"}).encode()


def make_order(number: int, headers: Sequence[Header] = ()) -> Letter:
    return Letter(
        str(number).encode(), make_value(number), headers, place(number), AT + number * 1000
    )


def publish(shop: Shop, topic: str, letters: Iterable[Letter], **settings: Any) -> None:
    producer = make_producer(shop.properties, {"linger.ms": 5, **settings})
    for letter in letters:
        producer.produce(
            topic,
            letter.value,
            letter.key,
            partition=letter.partition,
            headers=list(letter.headers),
            timestamp=letter.timestamp,
        )
    assert producer.flush(60) == 0


def spring(topic: str, partition: int, offset: int, error: str = "boom") -> list[Header]:
    """What Spring Kafka's DeadLetterPublishingRecoverer adds."""
    return [
        ("kafka_dlt-original-topic", topic.encode()),
        ("kafka_dlt-original-partition", partition.to_bytes(4, "big")),
        ("kafka_dlt-original-offset", offset.to_bytes(8, "big")),
        ("kafka_dlt-original-timestamp", (AT + offset).to_bytes(8, "big")),
        ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerFailed"),
        ("kafka_dlt-exception-cause-fqcn", b"java.lang.IllegalStateException"),
        ("kafka_dlt-exception-message", error.encode()),
        ("kafka_dlt-exception-stacktrace", b"at A\nat B"),
    ]


def connect(topic: str, partition: int, offset: int) -> list[Header]:
    """What Kafka Connect adds with `errors.deadletterqueue.context.headers.enable`."""
    return [
        ("__connect.errors.topic", topic.encode()),
        ("__connect.errors.partition", str(partition).encode()),
        ("__connect.errors.offset", str(offset).encode()),
        ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.DataException"),
        ("__connect.errors.exception.message", b"Bad schema\nmore"),
    ]


def streams(topic: str, partition: int, offset: int) -> list[Header]:
    """What Kafka Streams adds (KIP-1034)."""
    return [
        ("__streams.errors.exception", b"java.lang.ArithmeticException"),
        ("__streams.errors.message", b"/ by zero"),
        ("__streams.errors.stacktrace", b"at A"),
        ("__streams.errors.topic", topic.encode()),
        ("__streams.errors.partition", str(partition).encode()),
        ("__streams.errors.offset", str(offset).encode()),
    ]


def retryable(topic: str, partition: int, offset: int) -> list[Header]:
    """What Spring's @RetryableTopic adds."""
    return [
        ("kafka_original-topic", topic.encode()),
        ("kafka_original-partition", partition.to_bytes(4, "big")),
        ("kafka_original-offset", offset.to_bytes(8, "big")),
        ("kafka_exception-fqcn", b"org.springframework.kafka.listener.ListenerFailed"),
        ("kafka_exception-cause-fqcn", b"java.lang.NullPointerException"),
        ("kafka_exception-message", b"null"),
        ("retry_topic-attempts", b"\x00\x00\x00\x03"),
    ]


def pointer(topic: str, partition: int, offset: int) -> list[Header]:
    """What a share group writes beside no message (KIP-1191)."""
    return [
        ("__dlq.errors.topic", topic.encode()),
        ("__dlq.errors.partition", str(partition).encode()),
        ("__dlq.errors.offset", str(offset).encode()),
        ("__dlq.errors.message", b"Offset rejected by client."),
    ]


def generic(topic: str, partition: int, offset: int) -> list[Header]:
    return [
        ("x-original-topic", topic.encode()),
        ("x-original-partition", str(partition).encode()),
        ("x-original-offset", str(offset).encode()),
    ]


@dataclass(frozen=True)
class Sent:
    """A message that was put back, without the stamps."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    message_id: str
    replays: int
    original_time: str


def read_sent(shop: Shop, topic: str | None = None) -> list[Sent]:
    """What recoveries put into a topic, in the order of each partition."""
    found = []
    for message in read_all(shop.properties, topic or shop.topic, range(PARTITIONS)):
        headers: Any = message.headers() or []
        message_id = stamps.find_header(headers, stamps.MESSAGE_ID)
        if message_id is None:
            continue
        own = tuple((name, value) for name, value in headers if name not in stamps.ALL)
        found.append(
            Sent(
                message.partition() or 0,
                message.key(),
                message.value(),
                own,
                message_id,
                int(stamps.find_header(headers, stamps.REPLAYS) or 0),
                stamps.find_header(headers, stamps.ORIGINAL_TIME) or "",
            )
        )
    return found


def keys_of(sent: Iterable[Sent]) -> Counter[bytes | None]:
    return Counter(item.key for item in sent)


def plan(shop: Shop, *words: str, code: int = 0) -> dict[str, Any]:
    """The plan's document, or the error's."""
    document = shop.call("plan", "redrive", "orders", *words, "--json", code=code).document
    found: dict[str, Any] = document["error"] if code else document
    return found


def carry_out(shop: Shop, *words: str) -> dict[str, Any]:
    """Plans, approves and runs; the plan's document."""
    planned = plan(shop, *words)
    run(shop, planned["id"])
    return planned


def run(shop: Shop, recovery: str) -> dict[str, Any]:
    shop.call("approve", recovery, "--by", "Ada")
    done = shop.call("run", recovery, "--json").document
    assert done["state"] == "verified"
    return done
