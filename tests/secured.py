"""A broker with logins over TLS and an authorizer, and users with just these rights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.rights import Right, make_bindings, read_rights
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import add_rules, add_user
from tests.kafka_tools import wait_until

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
