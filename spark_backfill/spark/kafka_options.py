"""Client properties of librdkafka as Spark's Kafka source, a Java client, wants them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from backlog.errors import ConfigurationError
from spark_backfill.spark.private_keys import check_key, is_encrypted

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
    """Options of `spark.read.format("kafka")`. They hold secrets: never shown, never a setting.

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
    return {f"kafka.{name}": value for name, value in java.items()}


def _make_sasl(properties: Mapping[str, str]) -> dict[str, str]:
    mechanism = properties.get("sasl.mechanisms") or properties.get("sasl.mechanism")
    if not mechanism:
        return {}
    if mechanism == "PLAIN":
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    elif mechanism.startswith("SCRAM-"):
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    else:
        raise ConfigurationError(
            f"{mechanism} is not supported by Spark's Kafka reader here yet",
            subject="client properties",
            hint="use PLAIN or SCRAM",
        )
    user = _quote(properties.get("sasl.username", ""))
    password = _quote(properties.get("sasl.password", ""))
    login = f"{module} required username={user} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


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
