"""A client's configuration file: Java properties, librdkafka's, Spring's in YAML or properties."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from backlog.errors import UsageError

MOST_BYTES = 1_000_000
# Names that only librdkafka has: with one of them it is a file of librdkafka.
_LIBRDKAFKA_NAMES = frozenset(
    [
        "queue.buffering.max.ms",
        "queue.buffering.max.messages",
        "queue.buffering.max.kbytes",
        "message.timeout.ms",
        "request.required.acks",
        "message.send.max.retries",
        "enable.auto.offset.store",
        "broker.address.family",
        "log_level",
        "debug",
        "statistics.interval.ms",
        "enable.partition.eof",
        "queued.min.messages",
        "fetch.message.max.bytes",
        "metadata.broker.list",
        "socket.keepalive.enable",
        "log.connection.close",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
    ]
)
_ALIASES = {
    "request.required.acks": "acks",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
}
_SPRING = "spring.kafka."
_SPRING_ROLES = ("producer", "consumer", "properties", "admin", "streams", "listener")
_LINE = re.compile(r"((?:\\.|[^\s=:\\])+)\s*[=:\s]\s*(.*)")


class Dialect(StrEnum):
    """Whose defaults hold where a setting is left out."""

    JAVA = "java"
    LIBRDKAFKA = "librdkafka"


@dataclass(frozen=True, slots=True)
class ClientFile:
    """`producer` and `consumer`: settings by Java's names; None where it is none of these."""

    path: Path
    dialect: Dialect
    producer: Mapping[str, str] | None
    consumer: Mapping[str, str] | None


def read_client_file(path: Path) -> ClientFile:
    """Reads a file; which of the formats it is shows in its text.

    Raises:
        UsageError: there is no such file, or it holds no client's settings.
    """
    subject = f"client file {path}"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError("is too large for a client's settings", subject=subject)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no text in UTF-8"
        raise UsageError(f"could not be read: {reason}", subject=subject) from None
    settings = dict(_read_settings(path, text, subject))
    spring = {n.removeprefix(_SPRING): v for n, v in settings.items() if n.startswith(_SPRING)}
    if spring:
        return _take_spring(path, spring)
    dialect = Dialect.LIBRDKAFKA if settings.keys() & _LIBRDKAFKA_NAMES else Dialect.JAVA
    known = {_ALIASES.get(name, name): value for name, value in settings.items()}
    if not known.keys() & (_PRODUCER | _CONSUMER | {"bootstrap.servers"}):
        raise UsageError(
            "holds no setting of a Kafka client",
            subject=subject,
            hint="name a file of Java properties, of librdkafka (name=value), or of Spring",
        )
    produces = bool(known.keys() & _PRODUCER)
    consumes = bool(known.keys() & _CONSUMER)
    # Of both where it does not show: most settings are common to both.
    either = not produces and not consumes
    return ClientFile(
        path,
        dialect,
        known if produces or either else None,
        known if consumes or either else None,
    )


_PRODUCER = frozenset(
    [
        "acks",
        "retries",
        "delivery.timeout.ms",
        "enable.idempotence",
        "linger.ms",
        "batch.size",
        "buffer.memory",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "transactional.id",
        "key.serializer",
        "value.serializer",
        "queue.buffering.max.messages",
        "queue.buffering.max.kbytes",
        "compression.type",
    ]
)
_CONSUMER = frozenset(
    [
        "group.id",
        "auto.offset.reset",
        "enable.auto.commit",
        "auto.commit.interval.ms",
        "isolation.level",
        "max.poll.interval.ms",
        "max.poll.records",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "key.deserializer",
        "value.deserializer",
        "enable.auto.offset.store",
        "group.instance.id",
        "group.protocol",
        "partition.assignment.strategy",
        "fetch.min.bytes",
    ]
)


def _read_settings(path: Path, text: str, subject: str) -> Iterator[tuple[str, str]]:
    if path.suffix in (".yml", ".yaml", ".json"):
        try:
            documents = list(yaml.safe_load_all(text))
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f" at line {mark.line + 1}" if mark else ""
            raise UsageError(f"is not YAML{where}", subject=subject) from None
        for document in documents:
            yield from _flatten(document, "")
        return
    # Java's Properties: a backslash at the end goes on, `#` and `!` begin comments.
    for line in re.sub(r"\\\r?\n\s*", "", text).splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        if found := _LINE.match(stripped):
            yield re.sub(r"\\(.)", r"\1", found[1]), found[2].strip()


def _flatten(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flatten(item, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(value, list):
        yield prefix, ",".join(map(str, value))
    elif isinstance(value, bool):
        yield prefix, str(value).lower()
    elif value is not None:
        yield prefix, str(value)


def _take_spring(path: Path, settings: Mapping[str, str]) -> ClientFile:
    """Spring's `spring.kafka.producer.acks`, and Kafka's own names below `properties`."""
    common: dict[str, str] = {}
    roles: dict[str, dict[str, str]] = {"producer": {}, "consumer": {}}
    for name, value in settings.items():
        role, _, rest = name.partition(".")
        if role == "properties":
            common[rest] = value
        elif role in roles:
            own = rest.removeprefix("properties.")
            plain = own if own != rest else rest.replace("-", ".")
            # Spring writes `read-committed`.
            written = value.replace("-", "_") if plain == "isolation.level" else value
            roles[role][_SPRING_NAMES.get(plain, plain)] = written
        elif role not in _SPRING_ROLES:
            common[name.replace("-", ".")] = value
    # Spring commits itself unless it is told to let the client do it (since Spring Kafka 2.3).
    roles["consumer"].setdefault("enable.auto.commit", "false")
    produces = any(name.startswith("producer.") for name in settings)
    consumes = any(name.startswith("consumer.") for name in settings)
    either = not produces and not consumes
    return ClientFile(
        path,
        Dialect.JAVA,
        {**common, **roles["producer"]} if produces or either else None,
        {**common, **roles["consumer"]} if consumes or either else None,
    )


_SPRING_NAMES = {
    "auto.commit.interval": "auto.commit.interval.ms",
    "heartbeat.interval": "heartbeat.interval.ms",
    "max.poll.interval": "max.poll.interval.ms",
    "transaction.id.prefix": "transactional.id",
}
