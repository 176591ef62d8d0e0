"""What the clients themselves refuse is what is said to stop them (fault 107)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from backlogctl.jars import ensure_jars, find_java
from backlogctl.monitoring.doctor.client_settings import list_settings
from tests.replay.doctor.test_clients import say

JAVA_FILES = [
    ("producer", "acks=1"),
    ("producer", "acks=1\nenable.idempotence=true"),
    ("producer", "acks=2\nkey.serializer=x"),
    ("producer", "acks=ALL\nkey.serializer=x"),
    ("producer", "max.in.flight.requests.per.connection=10"),
    ("producer", "enable.idempotence=true\nmax.in.flight.requests.per.connection=10"),
    ("producer", "enable.idempotence=true\nretries=0"),
    ("producer", "enable.idempotence=false\nmax.in.flight.requests.per.connection=10"),
    ("producer", "retries=0"),
    ("producer", "retries=-1"),
    ("producer", "transactional.id=t\nenable.idempotence=false"),
    ("producer", "transactional.id=t\nacks=1"),
    ("producer", "transactional.id=t\nretries=0"),
    ("producer", "transactional.id="),
    ("producer", "linger.ms=1.5\nbuffer.memory=40000000"),
    ("producer", "linger.ms=200000"),
    ("producer", "delivery.timeout.ms=20000"),
    ("producer", "request.timeout.ms=200000"),
    ("producer", "compression.type=GZIP\nkey.serializer=x"),
    ("producer", "batch.size=99999999999"),
    ("producer", "ack=0\nenable.idempotance=false"),
    ("consumer", "session.timeout.ms=6000\nheartbeat.interval.ms=10000"),
    ("consumer", "session.timeout.ms=6000\nheartbeat.interval.ms=6000"),
    ("consumer", "session.timeout.ms=3000"),
    ("consumer", "session.timeout.ms=6000"),
    ("consumer", "group.instance.id="),
    ("consumer", "auto.offset.reset=by_duration:P1D"),
    ("consumer", "auto.offset.reset=LATEST\nkey.deserializer=x"),
    ("consumer", "auto.offset.reset=smallest\nkey.deserializer=x"),
    ("consumer", "isolation.level=READ_COMMITTED\nmax.poll.records=9"),
    ("consumer", "enable.auto.commit=yes"),
    ("consumer", "enable.auto.commit=True"),
    ("consumer", "max.poll.records=0"),
    ("consumer", "group.id=\nenable.auto.commit=false"),
    ("consumer", "max.poll.interval.ms=1000"),
    ("consumer", "group.protocol=consumer\nsession.timeout.ms=6000"),
    ("consumer", "group.protocol=consumer\nheartbeat.interval.ms=6000"),
    ("consumer", "group.protocol=Consumer"),
    ("consumer", "group.remote.assignor=uniform"),
]


def test_javas_client_refuses_what_is_said_to_stop_it(tmp_path: Path) -> None:
    files = []
    for number, (role, text) in enumerate(JAVA_FILES):
        path = tmp_path / f"{number}.properties"
        needs_group = role == "consumer" and "group.id" not in text
        path.write_text(text + ("\ngroup.id=g\n" if needs_group else "\n"))
        files += [role, str(path)]
    jars = ensure_jars(Path(__file__).parents[3] / "sandbox/kafka.jars")
    command = [
        *(str(find_java()), "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"),
        *("-cp", ":".join(map(str, jars)), str(Path(__file__).with_name("Refusal.java"))),
    ]
    done = subprocess.run(
        [*command, *files], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    produced, consumed, *lines = done.stdout.splitlines()
    for letter, names in (("P", produced), ("C", consumed)):
        public = {name for name in names.split() if not name.startswith("internal.")}
        assert public <= list_settings(letter).keys()
    answers = [line.split(" ")[0] for line in lines]
    told = [
        "refuses" if "stops " in say(path, path.read_text()) else "starts"
        for path in map(Path, files[1::2])
    ]
    assert list(zip(JAVA_FILES, told, strict=True)) == list(zip(JAVA_FILES, answers, strict=True))


@pytest.mark.parametrize(
    ("role", "text"),
    [
        (Producer, "acks=1"),
        (Producer, "acks=1\nenable.idempotence=true"),
        (Producer, "max.in.flight=10\nenable.idempotence=true"),
        (Producer, "max.in.flight=10"),
        (Producer, "message.send.max.retries=0\nenable.idempotence=true"),
        (Producer, "transactional.id=t\nenable.idempotence=false"),
        (Producer, "transactional.id=t\nacks=1"),
        (Producer, "transactional.id=t\nmessage.timeout.ms=300000"),
        (Producer, "transactional.id=t\nmessage.timeout.ms=50000"),
        (Producer, "linger.ms=10000\nmessage.timeout.ms=5000"),
        (Producer, "queue.buffering.max.ms=1.5"),
        (Producer, "enable.idempotenc=true"),
        (Producer, "compression.codec=brotli"),
        (Consumer, "session.timeout.ms=6000\nheartbeat.interval.ms=10000"),
        (Consumer, "session.timeout.ms=6000\nmax.poll.interval.ms=5000"),
        (Consumer, "enable.auto.commit=yes"),
        (Consumer, "enable.auto.commit=T"),
        (Consumer, "auto.offset.reset=LATEST"),
        (Consumer, "auto.offset.reset=never"),
        (Consumer, "group.protocol=consumer\nsession.timeout.ms=6000"),
    ],
)
def test_librdkafka_refuses_what_is_said_to_stop_it(
    tmp_path: Path, role: type[Producer | Consumer], text: str
) -> None:
    text += "\nmetadata.broker.list=127.0.0.1:1\nlog_level=0\nsocket.keepalive.enable=true\n"
    text += "group.id=g\n" if role is Consumer else ""
    settings = dict(line.split("=") for line in text.split())
    try:
        role(settings)
        refused = False
    except KafkaException:
        refused = True
    assert ("stops " in say(tmp_path / "client.conf", text)) is refused
