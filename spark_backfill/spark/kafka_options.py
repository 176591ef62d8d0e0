"""Client properties of librdkafka as Kafka's Java client, with which Spark reads, wants them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import Path

from backlogctl.errors import ConfigurationError
from backlogctl.jars import find_java_version
from backlogctl.kafka.tokens import OIDC_NAMES, uses_oidc
from backlogctl_delivery.visible import quote_word

# Which private keys Kafka's Java client reads: PKCS#8 in PEM, of the kinds that it knows.
#
# What it does with others was tried with kafka-clients 3.9 and 4.3 on Java 17 and 25: it fails
# with "Private key could not be loaded" when Spark reads first.

_PEM = re.compile(r"-----BEGIN ((?:[A-Z0-9]+ )*PRIVATE KEY)-----(.*?)-----END \1-----", re.DOTALL)
_OLD_FORMS = {
    "RSA PRIVATE KEY": "a PKCS#1 key",
    "EC PRIVATE KEY": "a SEC1 key",
    "DSA PRIVATE KEY": "an OpenSSL DSA key",
}
_READ, _ENCRYPTED = "PRIVATE KEY", "ENCRYPTED PRIVATE KEY"
# Object identifiers as they stand in DER, behind their tag and length.
_KINDS = tuple(
    bytes.fromhex(code)
    for code in (
        "06092a864886f70d010101",  # rsaEncryption
        "06072a8648ce3d0201",  # id-ecPublicKey
        "06072a8648ce380401",  # id-dsa
    )
)
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_SHA1_3DES = bytes.fromhex("060a2a864886f70d010c0103")
# Java 17 looks for a cipher of that name; Java 25 knows better, and those between were not tried.
_WITHOUT_PBES2 = 17
_HEAD_BYTES = 40


def is_encrypted(pem: str) -> bool:
    """Whether it takes a password to read it."""
    found = _PEM.search(pem)
    return found is not None and (found[1] == _ENCRYPTED or "ENCRYPTED" in found[2])


def check_key(pem: str, path: str, *, has_password: bool) -> None:
    """Refuses a key that Kafka's Java client does not read.

    Args:
        path: its file; "" where it is `ssl.key.pem`.

    Raises:
        ConfigurationError: with the command that makes one that it reads.
    """
    found = _PEM.search(pem)
    if found is None:
        raise ConfigurationError(
            "there is no private key in PEM in it",
            subject=path or "ssl.key.pem",
            hint="a key begins with `-----BEGIN PRIVATE KEY-----`",
        )
    name, body = found[1], found[2]
    if why := _say_why_not(name, body, has_password=has_password):
        raise ConfigurationError(
            f"it is {why}, which Kafka's Java client does not read; Spark reads Kafka with it",
            subject=path or "ssl.key.pem",
            hint=_make_hint(path, is_known=not why.startswith(_OTHER_KIND)),
        )


_OTHER_KIND = "a key of another kind than RSA, EC or DSA"


def _say_why_not(name: str, body: str, *, has_password: bool) -> str:
    told = f"(`BEGIN {name}`)"
    if name == _READ:
        head = _decode(body)
        is_known = head is None or any(kind in head for kind in _KINDS)
        return "" if is_known else f"{_OTHER_KIND} {told}"
    if name != _ENCRYPTED:
        return f"{_OLD_FORMS.get(name, 'no PKCS#8 key')} {told}"
    if not has_password:
        return f"encrypted {told}, and without `ssl.key.password`"
    head = _decode(body) or b""
    if _SHA1_3DES in head:
        return ""
    if _PBES2 in head and (version := find_java_version()) <= _WITHOUT_PBES2:
        return f"encrypted with PBES2 {told}, on Java {version}"
    return ""


def _decode(body: str) -> bytes | None:
    """The first bytes, which name the algorithm; None where it is no base64."""
    try:
        return base64.b64decode("".join(body.split()), validate=True)[:_HEAD_BYTES]
    except binascii.Error:
        return None


def _make_hint(path: str, *, is_known: bool) -> str:
    if not is_known:
        return "take an RSA or an EC key"
    source = Path(path) if path else Path("KEY.pem")
    target = source.with_name(f"{source.stem}.pkcs8.pem")
    words = f"-in {quote_word(str(source))} -out {quote_word(str(target))}"
    return (
        f"`openssl pkcs8 -topk8 -nocrypt {words}` makes one that every client reads, without a "
        "password: nobody else may read the file. Name it in `ssl.key.location`"
    )


# Same name, same meaning.
_SAME = frozenset(
    [
        "bootstrap.servers",
        "client.dns.lookup",
        "security.protocol",
        "client.rack",
        "ssl.endpoint.identification.algorithm",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "request.timeout.ms",
        "metadata.max.age.ms",
        "connections.max.idle.ms",
        "socket.connection.setup.timeout.ms",
    ]
)
_SECURITY = ("sasl.", "ssl.", "enable.ssl.")
_HANDLED = frozenset(
    [
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "sasl.oauthbearer.method",
        *OIDC_NAMES,
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.password",
    ]
)


def make_java_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of Kafka's Java client. They hold secrets: never shown, never a setting.

    Raises:
        ConfigurationError: a security property has no counterpart, or Java does not read the key.
            (Tuning without a counterpart is left out.)
    """
    unknown = [
        name
        for name in properties
        if name.startswith(_SECURITY) and name not in _HANDLED and name not in _SAME
    ]
    if unknown:
        raise ConfigurationError(
            f"{unknown[0]} has no counterpart in Spark's Kafka reader",
            subject="client properties",
            hint="use PLAIN or SCRAM, and PEM files or PKCS12 key stores",
        )
    java = {name: value for name, value in properties.items() if name in _SAME}
    java.update(_make_sasl(properties))
    java.update(_make_tls(properties))
    return java


def _make_sasl(properties: Mapping[str, str]) -> dict[str, str]:
    mechanism = properties.get("sasl.mechanisms") or properties.get("sasl.mechanism")
    if not mechanism:
        return {}
    if mechanism == "PLAIN":
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    elif mechanism.startswith("SCRAM-"):
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    elif mechanism == "AWS_MSK_IAM":
        package = "software.amazon.msk.auth.iam"
        return {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"{package}.IAMLoginModule required;",
            "sasl.client.callback.handler.class": f"{package}.IAMClientCallbackHandler",
        }
    elif mechanism == "OAUTHBEARER" and uses_oidc(properties):
        return _make_oidc(properties)
    else:
        raise ConfigurationError(
            f"{mechanism} is not supported by Spark's Kafka reader here yet",
            subject="client properties",
            hint="docs/clusters.md says which logins it takes",
        )
    user = _quote(properties.get("sasl.username", ""))
    password = _quote(properties.get("sasl.password", ""))
    login = f"{module} required username={user} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _make_oidc(properties: Mapping[str, str]) -> dict[str, str]:
    """Java fetches its tokens itself (KIP-768)."""
    words = {
        "clientId": properties["sasl.oauthbearer.client.id"],
        "clientSecret": properties["sasl.oauthbearer.client.secret"],
    }
    if scope := properties.get("sasl.oauthbearer.scope"):
        words["scope"] = scope
    if extensions := properties.get("sasl.oauthbearer.extensions"):
        for one in extensions.split(","):
            name, _, value = one.partition("=")
            words[f"extension_{name.strip()}"] = value.strip()
    if ca := properties.get("https.ca.location"):
        words |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": ca}
    told = " ".join(f"{name}={_quote(value)}" for name, value in words.items())
    package = "org.apache.kafka.common.security.oauthbearer"
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required {told};",
        "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": properties["sasl.oauthbearer.token.endpoint.url"],
    }


def _make_tls(properties: Mapping[str, str]) -> dict[str, str]:
    java: dict[str, str] = {}
    if "ssl.ca.location" in properties:
        java["ssl.truststore.type"] = "PEM"
        java["ssl.truststore.location"] = properties["ssl.ca.location"]
    if "ssl.ca.pem" in properties:
        java["ssl.truststore.type"] = "PEM"
        java["ssl.truststore.certificates"] = properties["ssl.ca.pem"]
    chain = _read_pem(properties, "ssl.certificate")
    key = _read_pem(properties, "ssl.key")
    if key:
        path, password = properties.get("ssl.key.location", ""), properties.get("ssl.key.password")
        place = "" if "ssl.key.pem" in properties else path
        check_key(key, place, has_password=bool(password))
    if chain and key:
        java["ssl.keystore.type"] = "PEM"
        java["ssl.keystore.certificate.chain"] = chain
        java["ssl.keystore.key"] = key
    if "ssl.keystore.location" in properties:
        java["ssl.keystore.type"] = "PKCS12"
        java["ssl.keystore.location"] = properties["ssl.keystore.location"]
        java["ssl.keystore.password"] = properties.get("ssl.keystore.password", "")
    # Java takes a key for encrypted once it is given a password; OpenSSL does not.
    if "ssl.key.password" in properties and (not key or is_encrypted(key)):
        java["ssl.key.password"] = properties["ssl.key.password"]
    return java


def _read_pem(properties: Mapping[str, str], name: str) -> str:
    if f"{name}.pem" in properties:
        return properties[f"{name}.pem"]
    path = properties.get(f"{name}.location")
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the file of {name}.location could not be read: {error.strerror}",
            subject="client properties",
        ) from error


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
