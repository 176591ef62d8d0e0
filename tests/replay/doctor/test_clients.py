"""Clients' configuration files: read as their clients read them, and judged (fault 107)."""

from __future__ import annotations

from pathlib import Path

import pytest

from backlogctl.errors import UsageError
from backlogctl.monitoring.doctor.checks import CheckFinding
from backlogctl.monitoring.doctor.client_file import read_client_file
from backlogctl.monitoring.doctor.client_settings import ClientKind
from backlogctl.monitoring.doctor.client_spring import is_active
from backlogctl.monitoring.doctor.clients import judge_client

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


Levels = dict[str, str]


def find(path: Path, text: str) -> dict[str, list[CheckFinding]]:
    """The findings of each profile; "" is the base."""
    path.write_text(text)
    return {one.name: list(judge_client(one)) for one in read_client_file(path)}


def judge_profiles(path: Path, text: str) -> dict[str, Levels]:
    """Each profile's checks and levels; of several of a check the first."""
    return {
        name: {one.check: str(one.level) for one in reversed(found)}
        for name, found in find(path, text).items()
    }


def judge(path: Path, text: str) -> Levels:
    """Of a file without profiles."""
    ((_, found),) = judge_profiles(path, text).items()
    return found


def say(path: Path, text: str) -> str:
    """All findings of a file as one text."""
    return "\n".join(
        f"{one.level} {one.subject}: {one.found} -> {one.mend}"
        for found in find(path, text).values()
        for one in found
    )


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("client.properties", GOOD_JAVA, ClientKind.JAVA),
        ("client.conf", GOOD_LIBRDKAFKA, ClientKind.LIBRDKAFKA),
        ("application.yml", GOOD_SPRING, ClientKind.JAVA),
    ],
)
def test_nothing_is_found_in_good_files(
    tmp_path: Path, name: str, text: str, kind: ClientKind
) -> None:
    assert judge(tmp_path / name, text) == {}
    (profile,) = read_client_file(tmp_path / name)
    assert [(one.title, one.kind) for one in profile.clients] == [
        ("producer", kind),
        ("consumer", kind),
    ]


WELL = (
    "group.id=g\nenable.auto.commit=false\nauto.offset.reset=none\nisolation.level=read_committed"
)


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
        # Java's does not start; librdkafka's would, and gives up early.
        ("delivery.timeout.ms=20000", {"client-file": "stops", "producer-retries": "unknown"}),
        (
            "delivery.timeout.ms=20000\nbuffer.memory=33554432",
            {"client-file": "stops"},
        ),
        ("enable.idempotence=false", {"producer-idempotence": "warns"}),
        ("linger.ms=5000", {"producer-buffer": "warns"}),
        ("max.block.ms=100", {"producer-buffer": "loses"}),
        ("buffer.memory=65536", {"producer-buffer": "warns"}),
        ("linger.ms=${LINGER}", {"client-file": "unknown"}),
        ("acks=@acks@", {"client-file": "unknown"}),
        ("acks=<how many>", {"client-file": "unknown"}),
        ("compression.type=lz4\nmetadata.broker.list=k:9092", {"producer-idempotence": "warns"}),
        # Java's, by the value; else librdkafka's would lose.
        (
            "group.id=g\nauto.offset.reset=none\nisolation.level=read_committed",
            {"consumer-commits": "warns"},
        ),
        (
            "group.id=g\nauto.offset.reset=earliest\nisolation.level=read_committed",
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
        (f"{WELL}\nmax.poll.interval.ms=10000", {"consumer-polls": "warns"}),
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
def test_each_setting(tmp_path: Path, text: str, expected: Levels) -> None:
    assert judge(tmp_path / "client.properties", text) == expected


def test_automatic_commits_need_a_group(tmp_path: Path) -> None:
    text = "enable.auto.commit=true\nauto.offset.reset=none\nisolation.level=read_committed\n"
    assert judge(tmp_path / "c.properties", text) == {
        "consumer-commits": "warns",
        "client-file": "unknown",
    }


def test_what_only_librdkafka_would_lose_is_unknown_where_nothing_tells_whose_it_is(
    tmp_path: Path,
) -> None:
    text = "group.id=g\nauto.offset.reset=earliest\nenable.auto.commit=true\n"
    found = say(tmp_path / "c.properties", text)
    assert "warns consumer in c.properties: enable.auto.commit is true" in found
    assert "unknown consumer in c.properties: nothing tells which client reads this file" in found


def test_fault_107_a_file_is_of_the_client_that_knows_its_names_and_values(tmp_path: Path) -> None:
    text = "group.id=g\nenable.auto.commit=true\nauto.offset.reset=smallest\n"
    assert judge(tmp_path / "a.properties", text) == {"consumer-commits": "loses"}
    text = f"{text}queued.max.messages.kbytes=100000\ncompression.codec=snappy\n"
    assert judge(tmp_path / "b.properties", text)["consumer-commits"] == "loses"
    text = "key.serializer=x.Y\nvalue.serializer=x.Y\nmessage.timeout.ms=1000\n"
    found = say(tmp_path / "c.properties", text)
    assert found == (
        "warns c.properties: message.timeout.ms: no setting of Kafka's, so Java's client ignores "
        "it -> it may be read by the application or a plug-in; else remove it"
    )


def test_names_that_no_client_knows(tmp_path: Path) -> None:
    text = (
        "bootstrap.servers=h:9092\nack=0\nenable.idempotance=false\nmax.blocks.ms=3000\n"
        "requests.timeout.ms=3000\ndelivery.timeout=1000\nlinger.ms=5\n"
        "schema.registry.url=http://r\n"
    )
    found = find(tmp_path / "c.properties", text)[""]
    assert [one.mend for one in found] == [
        f"write it as {name}"
        for name in (
            "acks",
            "enable.idempotence",
            "max.block.ms",
            "request.timeout.ms",
            "delivery.timeout.ms",
        )
    ]
    text = "metadata.broker.list=h:9092\nsocket.keepalive.enabled=true\n"
    assert judge(tmp_path / "l.conf", text)["client-file"] == "stops"
    text = '{"metadata.broker.list": "h", "topic": "t", "default.topic.config": {"acks": 1}}'
    assert judge(tmp_path / "l.json", text) == {
        "client-file": "unknown",  # the application may take the topic out
        "producer-acks": "loses",
        "producer-idempotence": "warns",
    }


# Profiles, names and placeholders of Spring.

PROFILES = """\
spring:
  kafka:
    producer: {acks: 1}
    consumer: {auto-offset-reset: latest, isolation-level: read_committed}
---
spring:
  config.activate.on-profile: test
  kafka:
    producer: {acks: all}
    consumer: {autoOffsetReset: earliest}
---
spring:
  config.activate.on-profile: "prod & !eu"
  kafka.consumer.auto_offset_reset: none
"""


def test_each_profile_is_judged_on_the_base(tmp_path: Path) -> None:
    producer = {"producer-acks": "loses", "producer-idempotence": "warns"}
    assert judge_profiles(tmp_path / "application.yml", PROFILES) == {
        "base and profile eu": {**producer, "consumer-reset": "loses"},
        "profile test": {},
        "profile prod": producer,
    }
    properties = (
        "spring.kafka.consumer.enable-auto-commit=true\n"
        "spring.kafka.consumer.isolation-level=read_committed\n"
        "spring.kafka.consumer.auto-offset-reset=none\n"
        "spring.profiles.active=dev\n#---\nspring.profiles=dev\n"
        "spring.kafka.consumer.enable-auto-commit=false\n"
        "!---\nspring.config.activate.on-profile=loud\n"
        "spring.kafka.consumer.enable-auto-commit=true\n"
    )
    assert judge_profiles(tmp_path / "application.properties", properties) == {
        "profile dev, as it starts": {},
        "profile loud": {"consumer-commits": "warns"},
    }


def test_profiles_that_do_not_differ_are_named_together(tmp_path: Path) -> None:
    text = (
        "spring.kafka.producer.acks: 1\n---\nspring.profiles: [prod, live]\n"
        "spring.kafka.producer.acks: all\n---\nspring.profiles: dev\nserver.port: 1\n"
        "---\nspring.config.activate.on-cloud-platform: kubernetes\n"
        "spring.kafka.producer.retries: 0\n"
    )
    assert list(judge_profiles(tmp_path / "application.yml", text)) == [
        "base and profile dev",
        "profile prod and profile live",
        "profile cloud-platform-kubernetes",
    ]


@pytest.mark.parametrize(
    ("expression", "active", "expected"),
    [
        ("a", "a", True),
        ("!a", "b", True),
        ("!a", "a", False),
        ("a & b", "a", False),
        ("a & (b | !c)", "a", True),
        ("a & (b | !c)", "a c", False),
        ("a, b", "b", True),
    ],
)
def test_profile_expressions(expression: str, active: str, expected: bool) -> None:
    assert is_active(expression, frozenset(active.split())) is expected


def test_a_file_that_lies_over_another_decides_only_what_it_sets(tmp_path: Path) -> None:
    text = "spring.kafka.consumer.enable-auto-commit: true\n"
    assert judge(tmp_path / "application-prod.yml", text) == {
        "consumer-commits": "warns",
        "consumer-reset": "unknown",
        "consumer-isolation": "unknown",
    }
    (tmp_path / "application.yaml").write_text(
        "spring.kafka.consumer: {autoOffsetReset: none, isolation-level: read_committed}\n"
        "---\nspring.config.activate.on-profile: prod\nspring.kafka.producer.acks: 1\n"
        "---\nspring.config.activate.on-profile: dev\nspring.kafka.producer.retries: 0\n"
    )
    assert judge_profiles(tmp_path / "application-prod.yml", text) == {
        "profile prod, on application.yaml": {
            "consumer-commits": "warns",
            "producer-acks": "loses",
            "producer-idempotence": "warns",
        }
    }
    text = 'spring:\n  config.import: "configserver:"\n  kafka.producer.acks: 1\n'
    found = say(tmp_path / "application.yml", text)
    assert "loses producer in application.yml: acks is 1" in found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            "${ACKS:all}",
            "warns producer in application.yml: acks: judged by the default of ${ACKS}; another",
        ),
        ("${ACKS:1}", "loses producer in application.yml: acks is 1, the default of ${ACKS} ->"),
        ("${A:${B:0}}", "loses producer in application.yml: acks is 0, the default of ${"),
        ("${app.acks:all}", "loses producer in application.yml: acks is 1 ->"),
        ("${ACKS}", "unknown producer in application.yml: acks is '${ACKS}'"),
    ],
)
def test_placeholders(tmp_path: Path, value: str, said: str) -> None:
    text = f"app.acks: 1\nspring.kafka.producer.acks: {value}\n"
    found = say(tmp_path / "application.yml", text)
    assert said in found
    assert ("loses" in found) is ("loses" in said)


def test_springs_own_names(tmp_path: Path) -> None:
    text = """\
spring.kafka:
  properties: {enable.auto.commit: true}
  producer:
    acks: 1
    bufferMemory: 1KB
    properties: {linger.ms: 20000}
  consumer:
    auto-offset-reset: latest
    isolation-level: ReadCommitted
    heartbeatInterval: 50s
---
spring.kafka.consumer.properties.[max.poll.interval.ms]: 1000
"""
    assert judge(tmp_path / "application.yml", text) == {
        "producer-acks": "loses",
        "producer-idempotence": "warns",
        "producer-buffer": "warns",
        "consumer-commits": "warns",
        "consumer-reset": "loses",
        "consumer-polls": "warns",
        "client-file": "stops",  # no session is as long as that
    }


def test_a_common_isolation_is_never_in_force(tmp_path: Path) -> None:
    text = """\
spring.kafka:
  properties: {isolation.level: read_committed}
  consumer: {auto-offset-reset: none}
"""
    found = say(tmp_path / "application.yml", text)
    assert "isolation.level is read_uncommitted, Spring's default" in found
    assert "isolation.level of the common properties is not in force" in found


def test_names_that_spring_ignores(tmp_path: Path) -> None:
    text = """\
spring.kafka:
  enable-auto-commit: true
  topic: orders
  producer:
    enable-idempotence: false
    linger-ms: 60000
    properties: {enable_idempotence: false}
  listener: {ack-mode: record, concurrency: 3}
  consumer: {auto.offset.reset: latest, auto-offset-reset: none, isolation-level: read_committed}
"""
    found = find(tmp_path / "application.yml", text)[""]
    assert {str(one.level) for one in found} == {"warns"}
    assert [one.mend.removeprefix("write it as spring.kafka.") for one in found] == [
        "properties.enable.auto.commit",
        "only code of the application can read it; remove it if none does",
        "producer.properties.enable.idempotence",
        "producer.properties.linger.ms",
        "consumer.auto-offset-reset",
        "write it as enable.idempotence",
    ]


def test_a_profile_that_differs_by_a_placeholder_alone(tmp_path: Path) -> None:
    text = (
        "app.acks: all\nspring.kafka.producer.acks: ${app.acks}\n"
        "---\nspring.config.activate.on-profile: fast\napp.acks: 0\n"
    )
    assert judge_profiles(tmp_path / "application.yml", text) == {
        "": {},
        "profile fast": {"producer-acks": "loses", "producer-idempotence": "warns"},
    }


def test_a_map_of_properties_lies_over_the_fields(tmp_path: Path) -> None:
    text = (
        "spring.kafka.producer.properties.acks=all\nspring.kafka.producer.acks=1\n"
        "spring.kafka.producer.retries=${RETRIES:}\n"
    )
    assert judge(tmp_path / "application.properties", text) == {}


def test_spring_makes_a_transactional_producer_idempotent(tmp_path: Path) -> None:
    text = "spring.kafka.producer: {transaction-id-prefix: tx-, acks: 1}\n"
    found = judge(tmp_path / "application.yml", text)
    assert found == {"producer-acks": "loses", "client-file": "stops"}


@pytest.mark.parametrize(
    "text",
    [
        "app.kafka.consumer: {auto-offset-reset: latest}\n",
        "mp.messaging.incoming.orders.auto.offset.reset: latest\n",
        "kafka.producers.default: {acks: 0}\n",
        "services.app.environment: {SPRING_KAFKA_PRODUCER_ACKS: 0}\n",
        "services.app.environment: [A=1, SPRING_KAFKA_PRODUCER_ACKS=0]\n",
        "spring.cloud.stream.kafka.binder.configuration: {enable.auto.commit: true}\n",
        "spring.kafka.consumer: {auto-offset-reset: none, isolation-level: read_committed}\n"
        "app.kafka.producer: {acks: 0}\n",
    ],
)
def test_settings_that_somebody_else_reads_are_unknown(tmp_path: Path, text: str) -> None:
    assert judge(tmp_path / "application.yml", text) == {"client-file": "unknown"}


def test_variables_of_an_environment(tmp_path: Path) -> None:
    text = (
        "# of the container\n"
        "SPRING_KAFKA_CONSUMER_AUTO_OFFSET_RESET=latest\n"
        'export SPRING_KAFKA_CONSUMER_ENABLEAUTOCOMMIT="true"\n'
        "SPRING_KAFKA_PRODUCER_PROPERTIES_LINGER_MS=20000\n"
    )
    assert judge(tmp_path / ".env", text) == {
        "consumer-reset": "loses",
        "consumer-commits": "warns",
        "consumer-isolation": "unknown",  # the application's own file may set it
        "producer-buffer": "warns",
    }


# Streams, Connect, and files of sections.


def test_streams_have_defaults_of_their_own(tmp_path: Path) -> None:
    text = "application.id=a\nbootstrap.servers=h:9092\nprocessing.guarantee=exactly_once_v2\n"
    assert judge(tmp_path / "s.properties", text) == {}
    text += "main.consumer.auto.offset.reset=latest\nproducer.acks=1\nenable.auto.commit=true\n"
    assert judge(tmp_path / "s.properties", text) == {
        "consumer-reset": "loses",
        "producer-acks": "loses",
        "client-file": "stops",
    }
    text = "spring.kafka.streams: {application-id: a, properties: {consumer.auto.offset.reset: latest}}\n"
    found = say(tmp_path / "application.yml", text)
    assert "loses consumer of Streams in application.yml: auto.offset.reset is latest" in found


def test_a_connect_worker_gives_its_clients_what_has_their_prefix(tmp_path: Path) -> None:
    text = (
        "bootstrap.servers=h:9092\ngroup.id=connect\nconfig.storage.topic=c\n"
        "offset.storage.topic=o\nstatus.storage.topic=s\nplugin.path=/p\n"
        "key.converter=x.Y\nvalue.converter=x.Y\nkey.converter.schemas.enable=false\n"
    )
    worker = {"producer-idempotence": "warns", "consumer-isolation": "warns"}
    assert judge(tmp_path / "w.properties", text) == worker
    found = say(tmp_path / "w.properties", f"{text}auto.offset.reset=latest\n")
    assert "-> write it as consumer.auto.offset.reset" in found
    assert "loses" not in found
    found = say(tmp_path / "w.properties", f"{text}producer.ack=1\noffset.flush.intervals.ms=1\n")
    assert "ack is no setting: Connect ignores it; acks is one" in found
    assert "offset.flush.interval.ms is one" in found
    found = say(tmp_path / "w.properties", f"{text}producer.acks=1\n")
    assert "loses producer of Connect in w.properties: acks is 1" in found


def test_a_connector_overrides_its_worker(tmp_path: Path) -> None:
    text = '{"name": "c", "config": {"connector.class": "X", "tasks.max": "1"%s}}'
    assert judge(tmp_path / "c.json", text % "") == {"client-file": "unknown"}
    found = judge(tmp_path / "c.json", text % ', "consumer.override.auto.offset.reset": "latest"')
    assert found == {"consumer-reset": "loses", "consumer-isolation": "unknown"}


def test_what_only_both_roles_have_tells_of_no_role(tmp_path: Path) -> None:
    text = "bootstrap.servers=h:9092\nsecurity.protocol=SASL_SSL\nrequest.timeout.ms=20000\n"
    assert set(judge(tmp_path / "c.properties", text).values()) == {"unknown"}
    text = "spring.kafka.bootstrap-servers: h:9092\n"
    assert judge(tmp_path / "application.yml", text) == {
        "consumer-reset": "unknown",
        "consumer-isolation": "unknown",
    }
    text = "zookeeper.connect=z:2181\ngroup.id=g\nauto.offset.reset=smallest\n"
    assert judge(tmp_path / "old.properties", text) == {"client-file": "unknown"}
    text = "clusters = A, B\nA.bootstrap.servers = a:9092\nA->B.enabled = true\n"
    assert judge(tmp_path / "mm2.properties", text) == {"client-file": "unknown"}


def test_sections_of_an_ini_file(tmp_path: Path) -> None:
    text = (
        "[default]\nbootstrap.servers=h:9092\nsasl.username=u\n\n"
        "[consumer]\ngroup.id=g\nenable.auto.commit=false\nauto.offset.reset=latest\n"
    )
    assert judge(tmp_path / "config.ini", text) == {"consumer-reset": "loses"}
    text = "producer: {acks: 0, enable.gapless.guarantee: false}\n"
    assert judge(tmp_path / "config.yml", text)["producer-acks"] == "loses"


def test_java_properties_as_java_reads_them(tmp_path: Path) -> None:
    text = "! a comment\nac\\\n    ks 1\n\nlinger.ms\t:\t5000\nclient.id=a\\u0020b\\\\\n"
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
        ("server.properties", b"broker.id=1\nmessage.max.bytes=9\n", "holds no setting"),
        ("client.yml", b"a: [1", "is not YAML at line 1"),
        ("client.yml", b"just text", "holds no setting of a Kafka client"),
        ("client.yml", b"", "holds no setting of a Kafka client"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=message):
        read_client_file(tmp_path / name)
