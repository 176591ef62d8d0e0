"""A client's settings, judged together.

Defaults: Kafka's producer and consumer configs (Java, 3.0 and later, KIP-679), and librdkafka's
CONFIGURATION.md (2.x).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from backlogctl.clock import parse_duration
from backlogctl.errors import BacklogError, UsageError
from backlogctl.formats import format_bytes, format_duration
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel, CheckScope, apply_rules

# A client's configuration file: Java properties, librdkafka's, Spring's in YAML or properties.

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

_JAVA = {
    "acks": "all",
    "retries": "2147483647",
    "delivery.timeout.ms": "120000",
    "request.timeout.ms": "30000",
    "enable.idempotence": "true",
    "max.in.flight.requests.per.connection": "5",
    "linger.ms": "5",
    "buffer.memory": "33554432",
    "max.block.ms": "60000",
    "enable.auto.commit": "true",
    "auto.commit.interval.ms": "5000",
    "auto.offset.reset": "latest",
    "isolation.level": "read_uncommitted",
    "max.poll.interval.ms": "300000",
    "max.poll.records": "500",
    "session.timeout.ms": "45000",
    "heartbeat.interval.ms": "3000",
}
_LIBRDKAFKA = {
    **_JAVA,
    "delivery.timeout.ms": "300000",
    "enable.idempotence": "false",
    "max.in.flight.requests.per.connection": "1000000",
    "buffer.memory": str(1_048_576 * 1024),
    "enable.auto.offset.store": "true",
    "isolation.level": "read_committed",
}
# A leader election, or a broker that restarts, takes that long.
_ELECTION_MS = 30_000
_BLOCK_MS = 5_000
_LINGER_MS = 1_000
_POLL_MS = 60_000
_IN_FLIGHT = 5


@dataclass(frozen=True, slots=True)
class _Settings:
    """Settings with their defaults; `subject` names the file and the client in it."""

    subject: str
    dialect: Dialect
    given: Mapping[str, str]

    def read(self, name: str) -> str:
        defaults = _LIBRDKAFKA if self.dialect is Dialect.LIBRDKAFKA else _JAVA
        return self.given.get(name, defaults.get(name, "")).strip().lower()

    def read_number(self, name: str) -> int | None:
        """None where it is no number: a placeholder of a template, for example."""
        text = self.read(name)
        try:
            return int(float(text))
        except ValueError:
            pass
        try:
            return int(parse_duration(text).total_seconds() * 1000)  # Spring's `30s`
        except (ValueError, BacklogError):
            return None

    def say(self, name: str) -> str:
        """A setting as a person reads it; that it is a default."""
        default = "" if name in self.given else f", {self.dialect}'s default"
        return f"{name} is {self.read(name) or 'not set'}{default}"

    def find(self, check: str, level: CheckLevel, found: str, mend: str) -> CheckFinding:
        return CheckFinding(check, level, self.subject, found, mend)


def judge_client(file: ClientFile) -> Iterator[CheckFinding]:
    """The producer and the consumer of a file, as far as it has them."""
    for room, name, given in (
        (CheckScope.PRODUCER, "producer", file.producer),
        (CheckScope.CONSUMER, "consumer", file.consumer),
    ):
        if given is not None:
            settings = _Settings(f"{name} in {file.path.name}", file.dialect, given)
            yield from apply_rules((room,), {"s": settings}, settings.subject)
            if room is CheckScope.PRODUCER or file.producer is None:
                yield from _judge_unreadable(settings)


@CheckScope.PRODUCER.check(
    "producer-acks",
    "`acks`",
    "Only with `acks=all` has a message reached more than one broker when it is acknowledged.",
)
def _judge_acks(s: _Settings) -> Iterator[CheckFinding]:
    if s.read("acks") not in ("all", "-1"):
        yield s.find("producer-acks", CheckLevel.LOSES, s.say("acks"), "acks=all")


@CheckScope.PRODUCER.check(
    "producer-retries",
    "`retries` and `delivery.timeout.ms`",
    "A leader that moves refuses for some seconds: a producer that gives up before loses what "
    "its application does not send again.",
)
def _judge_retries(s: _Settings) -> Iterator[CheckFinding]:
    retries, delivery = s.read_number("retries"), s.read_number("delivery.timeout.ms")
    linger, request = s.read_number("linger.ms"), s.read_number("request.timeout.ms")
    if retries == 0:
        yield s.find(
            *("producer-retries", CheckLevel.LOSES, s.say("retries")),
            "leave retries at its default, and bound the time by delivery.timeout.ms",
        )
    if delivery is None:
        return
    if s.dialect is Dialect.JAVA and None not in (linger, request):
        least = (linger or 0) + (request or 0)
        if delivery < least and "delivery.timeout.ms" in s.given:
            yield s.find(
                *("client-file", CheckLevel.STOPS),
                f"delivery.timeout.ms {delivery} is less than linger.ms + request.timeout.ms "
                f"({least}): the producer does not start",
                f"delivery.timeout.ms={max(120_000, least)}",
            )
            return
    if 0 < delivery < _ELECTION_MS:
        yield s.find(
            *("producer-retries", CheckLevel.LOSES),
            f"delivery.timeout.ms is {delivery} ({format_duration(delivery / 1000)}): shorter than "
            "an election of leaders may take",
            "delivery.timeout.ms=120000",
        )


@CheckScope.PRODUCER.check(
    "producer-idempotence",
    "`enable.idempotence` and requests in flight",
    "Without idempotence a retry may write a message twice, and with several requests in "
    "flight also change their order (KIP-98).",
)
def _judge_idempotence(s: _Settings) -> Iterator[CheckFinding]:
    flight = s.read_number("max.in.flight.requests.per.connection")
    on, asked = s.read("enable.idempotence") == "true", "enable.idempotence" in s.given
    acks_all = s.read("acks") in ("all", "-1")
    conflicts = [] if acks_all else [s.say("acks")]
    if flight is not None and flight > _IN_FLIGHT:
        conflicts.append(s.say("max.in.flight.requests.per.connection"))
    if s.read_number("retries") == 0:
        conflicts.append(s.say("retries"))
    if on and asked and conflicts and "max.in.flight.requests.per.connection" in s.given:
        yield s.find(
            *("client-file", CheckLevel.STOPS),
            f"enable.idempotence is true, but {' and '.join(conflicts)}: the producer does not "
            "start",
            "acks=all and max.in.flight.requests.per.connection=5",
        )
    elif on and asked and not acks_all:
        yield s.find(
            *("client-file", CheckLevel.STOPS),
            f"enable.idempotence is true, but {s.say('acks')}: the producer does not start",
            "acks=all",
        )
    # Java's producer turns idempotence off by itself where it is not asked for (KIP-679).
    if not on or (conflicts and not asked and s.dialect is Dialect.JAVA):
        more = f", and {s.say('max.in.flight.requests.per.connection')}"
        why = s.say("enable.idempotence") if not on else "not in force: " + " and ".join(conflicts)
        yield s.find(
            *("producer-idempotence", CheckLevel.WARNS),
            why + (more if flight != 1 and not on else ""),
            "enable.idempotence=true, acks=all, max.in.flight.requests.per.connection=5",
        )


@CheckScope.PRODUCER.check(
    "producer-buffer",
    "`buffer.memory`, `max.block.ms`, `linger.ms`",
    "What waits in memory is lost when the process ends, and when the buffer is full a send "
    "fails after `max.block.ms`.",
)
def _judge_buffer(s: _Settings) -> Iterator[CheckFinding]:
    linger, block = s.read_number("linger.ms"), s.read_number("max.block.ms")
    memory = s.read_number("buffer.memory")
    if linger is not None and linger > _LINGER_MS:
        yield s.find(
            *("producer-buffer", CheckLevel.WARNS),
            f"linger.ms is {linger}: up to {format_duration(linger / 1000)} of messages are in "
            "memory only",
            "linger.ms=20, and flush before the process ends",
        )
    if s.dialect is Dialect.LIBRDKAFKA or block is None or memory is None:
        return
    if block < _BLOCK_MS:
        yield s.find(
            *("producer-buffer", CheckLevel.LOSES),
            f"max.block.ms is {block}: once buffer.memory ({format_bytes(memory)}) is full, or "
            "the metadata is late, a send fails after that time, and the message is lost unless "
            "the application sends it again",
            "max.block.ms=60000, and look at the result of every send",
        )
    elif memory < 4 * 1024 * 1024:
        yield s.find(
            *("producer-buffer", CheckLevel.WARNS),
            f"buffer.memory is {format_bytes(memory)}: a short outage fills it, and sends wait",
            "buffer.memory=33554432",
        )


@CheckScope.CONSUMER.check(
    "consumer-commits",
    "Automatic commits",
    "Offsets that are committed by time say what was fetched, not what was done: after a "
    "crash the difference is skipped, and no hole shows it.",
)
def _judge_commits(s: _Settings) -> Iterator[CheckFinding]:
    if s.read("enable.auto.commit") != "true":
        return
    stores = s.dialect is Dialect.LIBRDKAFKA and s.read("enable.auto.offset.store") == "true"
    if s.dialect is Dialect.LIBRDKAFKA and not stores:
        return  # it commits what the application has stored, after it was handled
    found = s.say("enable.auto.commit")
    if stores:
        found += f"; {s.say('enable.auto.offset.store')}: stored before it is handled"
    yield s.find(
        *("consumer-commits", CheckLevel.LOSES if stores else CheckLevel.WARNS, found),
        "enable.auto.offset.store=false, and store each offset once its message is handled"
        if stores
        else "enable.auto.commit=false, and commit once messages are handled; it is safe only "
        "where each poll's messages are handled before the next poll, in the same thread",
    )


@CheckScope.CONSUMER.check(
    "consumer-reset",
    "`auto.offset.reset`",
    "It decides without a word where a group without valid commits starts: `latest` skips "
    "everything that is unread, and so does a group whose messages expired.",
)
def _judge_reset(s: _Settings) -> Iterator[CheckFinding]:
    reset = s.read("auto.offset.reset")
    if reset in ("latest", "largest", "end"):
        yield s.find(
            *("consumer-reset", CheckLevel.LOSES, s.say("auto.offset.reset")),
            "auto.offset.reset=none (the consumer fails, and a person decides), or earliest where "
            "repeated messages do no harm",
        )


@CheckScope.CONSUMER.check(
    "consumer-polls",
    "`max.poll.interval.ms` and `max.poll.records`",
    "A member that handles its messages for longer is put out of the group: its partitions "
    "move, and what it did is done again.",
)
def _judge_polls(s: _Settings) -> Iterator[CheckFinding]:
    poll, session = s.read_number("max.poll.interval.ms"), s.read_number("session.timeout.ms")
    if poll is not None and poll < _POLL_MS:
        each = "" if s.dialect is Dialect.LIBRDKAFKA else f" for {s.read('max.poll.records')} each"
        yield s.find(
            *("consumer-polls", CheckLevel.WARNS),
            f"max.poll.interval.ms is {poll} ({format_duration(poll / 1000)}{each})",
            "max.poll.interval.ms=300000, or fewer max.poll.records",
        )
    if s.dialect is Dialect.LIBRDKAFKA and None not in (poll, session) and poll < session:  # type: ignore[operator]
        yield s.find(
            *("client-file", CheckLevel.STOPS),
            f"max.poll.interval.ms {poll} is less than session.timeout.ms {session}: the consumer "
            "does not start",
            "max.poll.interval.ms=300000",
        )


@CheckScope.CONSUMER.check(
    "consumer-isolation",
    "`isolation.level`",
    "A reader of uncommitted messages handles those of aborted transactions too, as a "
    "recovery leaves them when it is interrupted.",
)
def _judge_isolation(s: _Settings) -> Iterator[CheckFinding]:
    if s.read("isolation.level") == "read_uncommitted":
        yield s.find(
            *("consumer-isolation", CheckLevel.WARNS, s.say("isolation.level")),
            "isolation.level=read_committed, and `isolation: read_committed` in the stream",
        )


@CheckScope.CLIENT.check(
    "client-file",
    "Settings that are unknown or contradict each other",
    "A client refuses to start with settings that exclude each other, and ignores names it "
    "does not know.",
)
def _judge_unreadable(s: _Settings) -> Iterator[CheckFinding]:
    """Numbers that are none, such as a template's placeholders: what needs them is unknown."""
    names = [
        "delivery.timeout.ms",
        "linger.ms",
        "request.timeout.ms",
        "retries",
        "max.block.ms",
        "buffer.memory",
        "max.in.flight.requests.per.connection",
        "max.poll.interval.ms",
    ]
    for name in names:
        if name in s.given and s.read_number(name) is None:
            yield s.find(
                *("client-file", CheckLevel.UNKNOWN),
                f"{name} is not a number: {s.given[name]!r}",
                "put the value in, and run it again",
            )
