"""Clients' configuration files: three formats, judged with the defaults of their client."""

from __future__ import annotations

from pathlib import Path

import pytest

from backlogctl.errors import UsageError
from backlogctl.monitoring.doctor.clients import Dialect, judge_client, read_client_file

GOOD_JAVA = """\
# of the order service
bootstrap.servers=kafka:9092
acks = all
enable.idempotence: true
group.id=order-service
enable.auto.commit=false
auto.offset.reset=none
isolation.level=read_committed
"""
GOOD_LIBRDKAFKA = """\
metadata.broker.list=kafka:9092
acks=-1
enable.idempotence=true
max.in.flight=5
group.id=order-service
enable.auto.offset.store=false
auto.offset.reset=error
"""
GOOD_SPRING = """\
spring:
  kafka:
    bootstrap-servers: kafka:9092
    producer:
      acks: all
    consumer:
      group-id: order-service
      auto-offset-reset: none
      isolation-level: read-committed
"""


def judge(path: Path, text: str) -> dict[str, str]:
    """The findings' checks and levels; of several of a check the last."""
    path.write_text(text)
    return {one.check: str(one.level) for one in judge_client(read_client_file(path))}


@pytest.mark.parametrize(
    ("name", "text", "dialect"),
    [
        ("client.properties", GOOD_JAVA, Dialect.JAVA),
        ("client.conf", GOOD_LIBRDKAFKA, Dialect.LIBRDKAFKA),
        ("application.yml", GOOD_SPRING, Dialect.JAVA),
    ],
)
def test_nothing_is_found_in_good_files(
    tmp_path: Path, name: str, text: str, dialect: Dialect
) -> None:
    assert judge(tmp_path / name, text) == {}
    file = read_client_file(tmp_path / name)
    assert (file.dialect, file.producer is None, file.consumer is None) == (dialect, False, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("acks=1", {"producer-acks": "loses", "producer-idempotence": "warns"}),
        ("acks=0", {"producer-acks": "loses", "producer-idempotence": "warns"}),
        ("acks=1\nenable.idempotence=true", {"producer-acks": "loses", "client-file": "stops"}),
        ("retries=0", {"producer-retries": "loses", "producer-idempotence": "warns"}),
        (
            "delivery.timeout.ms=20000\nrequest.timeout.ms=5000",
            {"producer-retries": "loses"},
        ),
        ("delivery.timeout.ms=20000", {"client-file": "stops"}),
        ("enable.idempotence=false", {"producer-idempotence": "warns"}),
        (
            "enable.idempotence=true\nmax.in.flight.requests.per.connection=10",
            {"client-file": "stops"},
        ),
        ("linger.ms=5000", {"producer-buffer": "warns"}),
        ("max.block.ms=100", {"producer-buffer": "loses"}),
        ("buffer.memory=65536", {"producer-buffer": "warns"}),
        ("linger.ms=${LINGER}", {"client-file": "unknown"}),
        ("compression.type=lz4\nmetadata.broker.list=k:9092", {"producer-idempotence": "warns"}),
        (
            "group.id=g\nauto.offset.reset=none\nisolation.level=read_committed",
            {"consumer-commits": "warns"},
        ),
        (
            "group.id=g\nenable.auto.commit=false\nisolation.level=read_committed",
            {"consumer-reset": "loses"},
        ),
        (
            "group.id=g\nenable.auto.commit=false\nauto.offset.reset=none",
            {"consumer-isolation": "warns"},
        ),
        (
            "group.id=g\nenable.auto.commit=false\nauto.offset.reset=none\n"
            "isolation.level=read_committed\nmax.poll.interval.ms=10000",
            {"consumer-polls": "warns"},
        ),
        (
            "metadata.broker.list=k:9092\ngroup.id=g\nauto.offset.reset=error",
            {"consumer-commits": "loses"},
        ),
        (
            "metadata.broker.list=k:9092\ngroup.id=g\nauto.offset.reset=error\n"
            "enable.auto.commit=false\nmax.poll.interval.ms=10000",
            {"consumer-polls": "warns", "client-file": "stops"},
        ),
    ],
)
def test_each_setting(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    assert judge(tmp_path / "client.properties", text) == expected


def test_springs_own_names(tmp_path: Path) -> None:
    text = """\
spring.kafka:
  properties: {isolation.level: read_committed}
  producer:
    acks: 1
    properties: {linger.ms: 20000}
  consumer:
    auto-offset-reset: latest
    enable-auto-commit: true
---
spring.kafka.consumer.properties.max.poll.interval.ms: 1000
"""
    assert judge(tmp_path / "application.yml", text) == {
        "producer-acks": "loses",
        "producer-idempotence": "warns",
        "producer-buffer": "warns",
        "consumer-commits": "warns",
        "consumer-reset": "loses",
        "consumer-polls": "warns",
    }


def test_java_properties_as_java_reads_them(tmp_path: Path) -> None:
    text = "! a comment\nac\\\n    ks 1\n\nlinger.ms\t:\t5000\n"
    found = judge(tmp_path / "p.properties", text)
    assert found == {
        "producer-acks": "loses",
        "producer-idempotence": "warns",
        "producer-buffer": "warns",
    }


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("none.properties", None, "could not be read: No such file or directory"),
        ("client.properties", b"hello world\n", "holds no setting of a Kafka client"),
        ("client.properties", b"\xff\xfe\x00", "could not be read: is no text in UTF-8"),
        ("client.properties", b"a" * 2_000_000, "is too large"),
        ("client.yml", b"a: [1", "is not YAML at line 1"),
        ("client.yml", b"just text", "holds no setting of a Kafka client"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=message):
        read_client_file(tmp_path / name)
