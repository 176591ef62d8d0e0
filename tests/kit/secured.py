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
)

from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.kafka.rights import Right, make_bindings, read_rights
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import add_rules, add_user
from examples.issuer import Issuer, make_settings
from tests.kit.kafka import wait_until

PASSWORD = "a-long-password"


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
