"""Brokers that ask who connects and what they may do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramMechanism,
)

from backlogctl.clock import Deadline
from backlogctl.kafka.admin import describe_topic, list_offsets
from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.kafka.raw_fetch import fetch_batches
from backlogctl.kafka.rights import Operation, Resource, Right, make_bindings, read_rights
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import add_rules, add_user
from backlogctl.values import OffsetRange
from backlogctl.wire import explain_absence
from examples.issuer import Issuer, make_settings
from tests.kit.kafka import publish, wait_until

PASSWORD = "a-long-password"
PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TLS, MUTUAL_TLS = "TLS", "mTLS"
LOGINS = (*PASSWORDS, TLS, MUTUAL_TLS)


class SecuredKafka:
    """The broker, for tests."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self._kafka = kafka
        self.properties = kafka.client_properties
        self._admin = make_admin(self.properties)

    def login(self, user: str, password: str = PASSWORD) -> dict[str, str]:
        """A client's properties."""
        assert self._kafka.security is not None
        return {**self.properties, **self._kafka.security.client_properties(user, password)}

    def login_by(self, way: str, user: str) -> dict[str, str]:
        """A client's properties; `way` is one of LOGINS, of `start_with_each_login`."""
        if way in PASSWORDS:
            return {**self.login(user), "sasl.mechanism": way}
        found = self._kafka.mutual_properties(user)
        shown = ("ssl.certificate.location", "ssl.key.location") if way == TLS else ()
        return {name: value for name, value in found.items() if name not in shown}

    def write_java_properties(self) -> str:
        """The administrator's client properties, as Kafka's own tools take them."""
        found = self.properties
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        login = f'{module} username="{found["sasl.username"]}" password="{found["sasl.password"]}";'
        return (
            f"security.protocol={found['security.protocol']}\n"
            f"sasl.mechanism={found['sasl.mechanism']}\n"
            f"sasl.jaas.config={login}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={found['ssl.ca.location']}\n"
        )

    def add_user(self, user: str, rights: Sequence[Right]) -> dict[str, str]:
        """A user who may do this and nothing else; its properties, once the broker knows them."""
        add_user(self._admin, user, PASSWORD)
        add_rules(self._admin, make_bindings(rights, f"User:{user}"))
        properties = self.login(user)
        wait_until(lambda: not read_rights(properties, rights).missing, what="the rules hold")
        return properties


@contextmanager
def start_secured(folder: Path) -> Iterator[SecuredKafka]:
    """Nobody may do what no rule allows."""
    with EmbeddedKafka.start(folder / "kafka", secured=True) as kafka:
        yield SecuredKafka(kafka)


@contextmanager
def start_with_each_login(
    folder: Path, user: str, rights: Sequence[Right]
) -> Iterator[SecuredKafka]:
    """Brokers that take the user's PASSWORD in each way, a certificate, or none: who shows none is
    ANONYMOUS, who may do everything here."""
    package, listener = "org.apache.kafka.common.security", "listener.name.sasl_ssl"
    plain = f'{package}.plain.PlainLoginModule required user_{user}="{PASSWORD}";'
    properties = {
        "sasl.enabled.mechanisms": ",".join(PASSWORDS),
        f"{listener}.plain.sasl.jaas.config": plain,
        f"{listener}.scram-sha-256.sasl.jaas.config": f"{package}.scram.ScramLoginModule required;",
        "listener.name.ssl.ssl.client.auth": "requested",
    }
    with EmbeddedKafka.start(folder, secured=True, properties=properties) as kafka:
        secured = SecuredKafka(kafka)
        secured.add_user(user, rights)
        add_user(make_admin(secured.properties), user, PASSWORD, ScramMechanism.SCRAM_SHA_256)
        yield secured


# What the look and the use of one topic need.
TOPIC = "orders"
RIGHTS = [
    Right(Resource.TOPIC, TOPIC, Operation.READ, "read"),
    Right(Resource.TOPIC, TOPIC, Operation.WRITE, "write"),
    Right(Resource.TOPIC, TOPIC, Operation.DESCRIBE, "look"),
    Right(Resource.TOPIC, TOPIC, Operation.DESCRIBE_CONFIGS, "look"),
    Right(Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE, "look"),
]


def use_both_clients(properties: Mapping[str, str]) -> None:
    """What each can do with a topic of one partition is done."""
    before = list_offsets(properties, TOPIC, [0], "latest")[0]
    publish(properties, TOPIC, {0: 10})
    assert describe_topic(make_admin(properties), TOPIC).partitions == 1
    seen = read_log_dirs(properties, TOPIC, Deadline(30))
    assert (seen.reason, len(seen.brokers or ())) == ("", 1)
    assert read_rights(properties, RIGHTS).missing == ()
    (found,) = fetch_batches(properties, TOPIC, [OffsetRange(0, before, before + 10)])
    assert sum(one.record_count for one in found.headers) == 10
    assert explain_absence(properties) == ""


@contextmanager
def start_with_tokens(
    folder: Path, issuer: Issuer, properties: Mapping[str, str] | None = None
) -> Iterator[SecuredKafka]:
    """Passwords and tokens; nobody may do what no rule allows."""
    settings = make_settings(issuer)
    settings["properties"] |= properties or {}
    with EmbeddedKafka.start(folder, **settings) as kafka:
        yield SecuredKafka(kafka)


@contextmanager
def start_guarded(folder: Path) -> Iterator[Admin]:
    """Everybody may do what nobody has forbidden."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with EmbeddedKafka.start(folder / "kafka", properties=properties) as kafka:
        yield make_admin({"bootstrap.servers": kafka.bootstrap})


def deny(admin: Admin, kind: ResourceType, name: str, operation: AclOperation) -> None:
    for verb, permission in (
        (AclOperation.ALL, AclPermissionType.ALLOW),
        (operation, AclPermissionType.DENY),
    ):
        binding = AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", verb, permission
        )
        for future in admin.create_acls([binding]).values():
            future.result(90)


def allow_all(admin: Admin, kind: ResourceType, name: str) -> None:
    """Takes the rules about a resource away."""
    anyone: Any = None  # the client's types do not know that a filter may leave it open
    every = AclBindingFilter(
        kind,
        name,
        ResourcePatternType.LITERAL,
        anyone,
        anyone,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for future in admin.delete_acls([every]).values():
        future.result(90)
