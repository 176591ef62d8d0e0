"""Brokers as in a company's cluster: encrypted, with logins, and with Kafka's authorizer.

SASL_SSL with SCRAM-SHA-512, and SSL for who shows a certificate; all certificates are made here.
Nobody may do what no rule allows.
"""

from __future__ import annotations

import random
import secrets
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from backlogctl.errors import EmbeddedError

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
MUTUAL = "SSL"  # the listener for those who show a certificate
MECHANISM = "SCRAM-SHA-512"
ADMIN = "admin"
_ITERATIONS = 4096
_SECONDS = 60.0
_LIFE = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Security:
    """Certificates and administrator of secured brokers; made once for a directory."""

    directory: Path
    password: str = field(repr=False)

    @classmethod
    def make(cls, directory: Path) -> Security:
        """Makes an authority and a certificate for this machine, or takes those that are there."""
        directory.mkdir(parents=True, exist_ok=True)
        secret = directory / "secret"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_urlsafe(24))
        made = cls(directory.absolute(), secret.read_text())
        if not made.ca.exists():
            made._issue("ca")
            made._issue("broker")
        return made

    @property
    def ca(self) -> Path:
        """The certificate that clients trust, PEM."""
        return self.directory / "ca.pem"

    def broker_properties(self) -> dict[str, str]:
        """What a broker with the listeners `SASL_SSL` and `SSL` needs besides its addresses."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        login = f'{module} username="{ADMIN}" password="{self.password}";'
        return {
            "inter.broker.listener.name": PROTOCOL,
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            f"listener.name.{PROTOCOL.lower()}.{MECHANISM.lower()}.sasl.jaas.config": login,
            f"listener.name.{MUTUAL.lower()}.ssl.client.auth": "required",
            # Who shows a certificate is the user that it names.
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.directory / "broker.both.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # The controllers' own listener is plain, and on this machine only.
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

    def make_certificate(self, user: str) -> dict[str, str]:
        """The properties, besides `bootstrap.servers`, of a user who shows a certificate."""
        self._issue(user)
        return {
            "security.protocol": MUTUAL,
            "ssl.ca.location": str(self.ca),
            "ssl.certificate.location": str(self.directory / f"{user}.pem"),
            "ssl.key.location": str(self.directory / f"{user}.key"),
        }

    def _issue(self, name: str) -> None:
        """NAME.key, NAME.pem, and both in one file; by the authority, which signs itself."""
        # Only who plays with secured brokers needs it.
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
        from cryptography.x509.oid import NameOID

        key = rsa.generate_private_key(65537, 2048)
        # Of two authorities with one name the wrong one would be asked, and the signature be bad.
        told = f"authority {secrets.token_hex(4)}" if name == "ca" else name
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, told)])
        signer, issuer = key, subject
        if is_authority := name == "ca":
            alternatives = []
        else:
            loaded = serialization.load_pem_private_key(self._read("ca.key"), None)
            assert isinstance(loaded, rsa.RSAPrivateKey)
            signer, issuer = loaded, x509.load_pem_x509_certificate(self._read("ca.pem")).subject
            alternatives = [x509.IPAddress(ip_address(HOST)), x509.DNSName("localhost")]
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder(issuer, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + _LIFE)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if alternatives:
            made = made.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        encoding = serialization.Encoding.PEM
        certificate = made.sign(signer, hashes.SHA256()).public_bytes(encoding)
        form, open_ = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        secret = key.private_bytes(encoding, form, open_)
        for suffix, content in (
            (".key", secret),
            (".pem", certificate),
            (".both.pem", secret + certificate),
        ):
            place = self.directory / f"{name}{suffix}"
            place.touch(mode=0o600)
            place.write_bytes(content)

    def _read(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()


def add_user(
    admin: AdminClient,
    user: str,
    password: str,
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512,
) -> None:
    """A user with a password, or another password for one that is there."""
    credential = ScramCredentialInfo(mechanism, _ITERATIONS)
    change = UserScramCredentialUpsertion(user, credential, password.encode())
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(_SECONDS)


def add_rules(admin: AdminClient, rules: Iterable[AclBinding]) -> None:
    """Adds rules to the authorizer."""
    if bindings := list(rules):
        for future in admin.create_acls(bindings).values():
            future.result(_SECONDS)
