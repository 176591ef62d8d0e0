"""A broker as in a company's cluster: encrypted, with passwords, and with Kafka's authorizer.

SASL_SSL with SCRAM-SHA-512 on a certificate made here, and nobody may do what no rule allows.
"""

from __future__ import annotations

import random
import secrets
import socket
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from backlogctl.errors import EmbeddedError
from backlogctl.jars import find_java

# Ports on this machine.

HOST = "127.0.0.1"


def free_port() -> int:
    """A port that nobody listens on, outside the range that outgoing connections are given.

    Within that range a client that keeps trying to reach a stopped broker ends up connected to
    itself, and the broker cannot come back on its port.
    """
    low, high = _ephemeral_range()
    for port in _candidates(low, high):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise EmbeddedError("no free port was found", subject=HOST)


def _candidates(low: int, high: int) -> Iterator[int]:
    outside = [*range(15000, low), *range(high + 1, 65536)] or list(range(low, high + 1))
    # Not the shared generator: tests seed it, and two processes would try the same ports.
    chance = random.SystemRandom()
    for _ in range(200):
        yield chance.choice(outside)


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return 49152, 65535
    return int(low), int(high)


def listens(port: int) -> bool:
    """True when somebody accepts connections on this port."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0


PROTOCOL = "SASL_SSL"
MECHANISM = "SCRAM-SHA-512"
ADMIN = "admin"
_ITERATIONS = 4096
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Security:
    """Certificate and administrator of a secured broker; made once for a directory."""

    directory: Path
    password: str = field(repr=False)

    @classmethod
    def make(cls, directory: Path) -> Security:
        """Makes a certificate for this machine, or takes the one that is there.

        Raises:
            EmbeddedError: Java's `keytool` is missing, or failed.
        """
        directory.mkdir(parents=True, exist_ok=True)
        secret = directory / "secret"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_urlsafe(24))
        made = cls(directory.absolute(), secret.read_text())
        if not made.ca.exists():
            made._make_certificate()
        return made

    @property
    def ca(self) -> Path:
        """The certificate that clients trust, PEM."""
        return self.directory / "ca.pem"

    @property
    def _keystore(self) -> Path:
        return self.directory / "broker.p12"

    def broker_properties(self) -> dict[str, str]:
        """What a broker with one listener `SASL_SSL` needs besides its addresses."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        login = f'{module} username="{ADMIN}" password="{self.password}";'
        return {
            "inter.broker.listener.name": PROTOCOL,
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            f"listener.name.{PROTOCOL.lower()}.{MECHANISM.lower()}.sasl.jaas.config": login,
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self._keystore),
            "ssl.keystore.password": self.password,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # The controller's own listener is plain, and on this machine only.
            "super.users": f"User:{ADMIN};User:ANONYMOUS",
        }

    def format_arguments(self) -> list[str]:
        """For `kafka-storage format`: the administrator is there from the beginning."""
        return ["--add-scram", f"{MECHANISM}=[name={ADMIN},password={self.password}]"]

    def client_properties(self, user: str = ADMIN, password: str | None = None) -> dict[str, str]:
        """A client's properties besides `bootstrap.servers`; the administrator's without a user."""
        return {
            "security.protocol": PROTOCOL,
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self.password if password is None else password,
            "ssl.ca.location": str(self.ca),
        }

    def _make_certificate(self) -> None:
        common = ["-alias", "broker", "-keystore", str(self._keystore), "-storepass", self.password]
        _run_keytool(
            *("-genkeypair", *common, "-storetype", "PKCS12", "-keyalg", "RSA", "-keysize", "2048"),
            *("-validity", "3650", "-dname", f"CN={HOST}", "-ext", f"san=ip:{HOST},dns:localhost"),
        )
        _run_keytool("-exportcert", "-rfc", *common, "-file", str(self.ca))


def add_user(admin: AdminClient, user: str, password: str) -> None:
    """A user with a password, or another password for one that is there."""
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
    change = UserScramCredentialUpsertion(user, credential, password.encode())
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(_SECONDS)


def add_rules(admin: AdminClient, rules: Iterable[AclBinding]) -> None:
    """Adds rules to the authorizer."""
    if bindings := list(rules):
        for future in admin.create_acls(bindings).values():
            future.result(_SECONDS)


def _run_keytool(*arguments: str) -> None:
    tool = find_java().resolve().with_name("keytool")
    try:
        done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise EmbeddedError(f"it cannot be run: {error.strerror}", subject=str(tool)) from error
    if done.returncode:
        raise EmbeddedError(
            "the broker's certificate could not be made: "
            f"{(done.stdout or done.stderr).strip()[:200]}",
            subject=str(tool),
        )
