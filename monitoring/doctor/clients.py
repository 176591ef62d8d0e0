"""A client's settings, judged together.

Defaults: Kafka's producer and consumer configs (Java, 3.0 and later, KIP-679), and librdkafka's
CONFIGURATION.md (2.x). What a client refuses: ProducerConfig, ConsumerConfig, KafkaProducer,
Heartbeat (Java, 4.3), and rd_kafka_conf_finalize.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from backlogctl.formats import format_bytes, format_duration
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel, CheckScope, apply_rules
from backlogctl.monitoring.doctor.client_file import ClientProfile, FileClient
from backlogctl.monitoring.doctor.client_settings import ClientKind, list_settings

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
    "transaction.timeout.ms": "60000",
    "enable.auto.commit": "true",
    "auto.commit.interval.ms": "5000",
    "auto.offset.reset": "latest",
    "isolation.level": "read_uncommitted",
    "max.poll.interval.ms": "300000",
    "max.poll.records": "500",
    "session.timeout.ms": "45000",
    "heartbeat.interval.ms": "3000",
    "group.protocol": "classic",
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
_NAMES = {ClientKind.JAVA: "java", ClientKind.LIBRDKAFKA: "librdkafka"}
_PLACED = "the default of ${"
_TRUE = ("true", "t", "1")
# By the column of the table of settings: what may not be more than, or has to be below, another.
_LIMITS = (
    ("C", "heartbeat.interval.ms", "session.timeout.ms", True),
    ("c", "session.timeout.ms", "max.poll.interval.ms", False),
    ("p", "linger.ms", "delivery.timeout.ms", True),
    ("p", "delivery.timeout.ms", "transaction.timeout.ms", False),
)
_COMMITS = "enable.auto.commit"
_CLASSIC = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
# A leader election, or a broker that restarts, takes that long.
_ELECTION_MS = 30_000
_BLOCK_MS = 5_000
_LINGER_MS = 1_000
_POLL_MS = 60_000
_IN_FLIGHT = 5
_MEMORY_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Settings:
    """A client's settings with their defaults; `subject` names the file and the client in it."""

    subject: str
    client: FileClient
    partial: str

    @property
    def is_java(self) -> bool:
        return self.client.kind is ClientKind.JAVA

    @property
    def name(self) -> str:
        return "Java's client" if self.is_java else "librdkafka"

    def is_given(self, *names: str) -> bool:
        return any(name in self.client.given for name in names)

    def read(self, name: str) -> str | None:
        """None where it is not known before the client runs, or its client does not take it."""
        if one := self.client.given.get(name):
            known = list_settings(self.client.letter).get(name)
            if one.value is None or (known and known.refuse(one.value)):
                return None
            return one.value.strip().lower()
        defaults = _JAVA if self.is_java else _LIBRDKAFKA
        return self.client.defaults.get(name, defaults.get(name, ""))

    def read_number(self, name: str) -> int | None:
        text = self.read(name)
        return int(float(text)) if text else None

    def read_flag(self, name: str) -> bool:
        """Whether it is known to be on."""
        return self.read(name) in _TRUE

    def say(self, name: str) -> str:
        """A setting as a person reads it; that it is a default."""
        origin = f"{_NAMES[self.client.kind]}'s default"
        if one := self.client.given.get(name):
            origin = one.origin
        elif name in self.client.defaults:
            origin = f"{self.client.by}'s default"
        return f"{name} is {self.read(name) or 'not set'}" + (f", {origin}" if origin else "")

    def find(
        self, check: str, level: CheckLevel, names: tuple[str, ...], found: str, mend: str
    ) -> CheckFinding:
        """A finding that rests on these settings: unknown where all may stand elsewhere."""
        if self.partial and not self.is_given(*names):
            found = f"{found}, if nothing else sets it: {self.partial}"
            level = CheckLevel.UNKNOWN
        return CheckFinding(check, level, self.subject, found, mend)


def judge_client(profile: ClientProfile) -> Iterator[CheckFinding]:
    """What a file's clients lose or refuse, and what of the file was not understood.

    Where nothing in the file tells whose it is, Java's client is judged, and what librdkafka alone
    would lose or refuse is unknown.
    """
    place = profile.path.name + (f", {profile.name}" if profile.name else "")
    for note in profile.notes:
        yield CheckFinding("client-file", note.level, place, note.found, note.mend)
    found = list(_judge_clients(profile.clients, place, profile.partial))
    yield from found
    worse = {(one.check, one.subject) for one in found if one.needs_somebody}
    for one in _judge_clients(profile.alternatives, place, profile.partial):
        if one.needs_somebody and (one.check, one.subject) not in worse:
            told = f"nothing tells which client reads this file: with librdkafka, {one.found}"
            yield CheckFinding(one.check, CheckLevel.UNKNOWN, one.subject, told, one.mend)


def _judge_clients(
    clients: tuple[FileClient, ...], place: str, partial: str
) -> Iterator[CheckFinding]:
    for client in clients:
        settings = _Settings(f"{client.title} in {place}", client, partial)
        rooms = (client.scope, CheckScope.CLIENT)
        yield from apply_rules(rooms, {"s": settings}, settings.subject)


@CheckScope.PRODUCER.check(
    "producer-acks",
    "`acks`",
    "Only with `acks=all` has a message reached more than one broker when it is acknowledged.",
)
def _judge_acks(s: _Settings) -> Iterator[CheckFinding]:
    if s.read("acks") not in (None, "all", "-1"):
        yield s.find("producer-acks", CheckLevel.LOSES, ("acks",), s.say("acks"), "acks=all")


@CheckScope.PRODUCER.check(
    "producer-retries",
    "`retries` and `delivery.timeout.ms`",
    "A leader that moves refuses for some seconds: a producer that gives up before loses what "
    "its application does not send again.",
)
def _judge_retries(s: _Settings) -> Iterator[CheckFinding]:
    if s.read_number("retries") == 0:
        yield s.find(
            *("producer-retries", CheckLevel.LOSES, ("retries",), s.say("retries")),
            "leave retries at its default, and bound the time by delivery.timeout.ms",
        )
    delivery, linger = s.read_number("delivery.timeout.ms"), s.read_number("linger.ms")
    request = s.read_number("request.timeout.ms")
    if delivery is None:
        return
    if s.is_java and s.is_given("delivery.timeout.ms") and linger is not None is not request:
        least = linger + (request or 0)
        if delivery < least:
            yield s.find(
                *("client-file", CheckLevel.STOPS, ("delivery.timeout.ms",)),
                f"delivery.timeout.ms {delivery} is less than linger.ms + request.timeout.ms "
                f"({least}): the producer does not start",
                f"delivery.timeout.ms={max(120_000, least)}",
            )
            return
    if 0 < delivery < _ELECTION_MS or (delivery == 0 and s.is_java):
        yield s.find(
            *("producer-retries", CheckLevel.LOSES, ("delivery.timeout.ms",)),
            f"{s.say('delivery.timeout.ms')} ({format_duration(delivery / 1000)}): shorter than "
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
    flight_name = "max.in.flight.requests.per.connection"
    flight, retries = s.read_number(flight_name), s.read_number("retries")
    asked, transactional = s.is_given("enable.idempotence"), s.is_given("transactional.id")
    idempotence = s.read("enable.idempotence")
    on = idempotence == "true" or (transactional and not s.is_java and not asked)
    conflicts = {
        "acks": s.read("acks") not in (None, "all", "-1"),
        "retries": retries == 0,
        # librdkafka lowers its own default by itself.
        flight_name: flight is not None and flight > _IN_FLIGHT and s.is_given(flight_name),
    }
    names = tuple(name for name, found in conflicts.items() if found)
    said = " and ".join(map(s.say, names))
    mend = f"enable.idempotence=true, acks=all, {flight_name}=5"
    if idempotence is None:
        return
    refused = ""
    if on and names and asked:
        refused = f"{s.say('enable.idempotence')}, but {said}: the producer does not start"
    elif transactional and (not on or names):
        refused = f"transactional.id needs idempotence, but {said or s.say('enable.idempotence')}"
        refused += ": the producer does not start"
    elif on and s.is_java and flight_name in names:
        refused = f"{said}: Kafka 4's producer does not start; an older one is not idempotent"
    if refused:
        asking = ("enable.idempotence", "transactional.id", *names)
        yield s.find("client-file", CheckLevel.STOPS, asking, refused, mend)
    # Java's producer turns idempotence off by itself where it is not asked for (KIP-679).
    elif not on or names:
        why = s.say("enable.idempotence") if not on else f"not in force: {said}"
        if not on and flight != 1:
            why += f", and {s.say(flight_name)}"
        asking = ("enable.idempotence", *names)
        yield s.find("producer-idempotence", CheckLevel.WARNS, asking, why, mend)


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
            *("producer-buffer", CheckLevel.WARNS, ("linger.ms",)),
            f"{s.say('linger.ms')}: up to {format_duration(linger / 1000)} of messages are in "
            "memory only",
            "linger.ms=20, and flush before the process ends",
        )
    if not s.is_java:
        return
    size = "buffer.memory" if memory is None else f"buffer.memory ({format_bytes(memory)})"
    if block is not None and block < _BLOCK_MS:
        yield s.find(
            *("producer-buffer", CheckLevel.LOSES, ("max.block.ms",)),
            f"{s.say('max.block.ms')}: once {size} is full, or "
            "the metadata is late, a send fails after that time, and the message is lost unless "
            "the application sends it again",
            "max.block.ms=60000, and look at the result of every send",
        )
    elif memory is not None and memory < _MEMORY_BYTES:
        yield s.find(
            *("producer-buffer", CheckLevel.WARNS, ("buffer.memory",)),
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
    if not s.read_flag(_COMMITS):
        return
    names = (_COMMITS, "enable.auto.offset.store")
    found = s.say(_COMMITS)
    if s.is_java:
        yield s.find(
            *("consumer-commits", CheckLevel.WARNS, names, found),
            "enable.auto.commit=false, and commit once messages are handled; it is safe only "
            "where each poll's messages are handled before the next poll, in the same thread",
        )
    # Else it commits what the application has stored, after it was handled.
    elif s.read_flag("enable.auto.offset.store"):
        yield s.find(
            *("consumer-commits", CheckLevel.LOSES, names),
            f"{found}; {s.say('enable.auto.offset.store')}: stored before it is handled",
            "enable.auto.offset.store=false, and store each offset once its message is handled",
        )


@CheckScope.CONSUMER.check(
    "consumer-reset",
    "`auto.offset.reset`",
    "It decides without a word where a group without valid commits starts: `latest` skips "
    "everything that is unread, and so does a group whose messages expired.",
)
def _judge_reset(s: _Settings) -> Iterator[CheckFinding]:
    if s.read("auto.offset.reset") in ("latest", "largest", "end"):
        name = "auto.offset.reset"
        stops = "none" if s.is_java else "error"
        yield s.find(
            *("consumer-reset", CheckLevel.LOSES, (name,), s.say(name)),
            f"{name}={stops} (the consumer fails, and a person decides), or earliest where "
            "repeated messages do no harm",
        )


@CheckScope.CONSUMER.check(
    "consumer-polls",
    "`max.poll.interval.ms` and `max.poll.records`",
    "A member that handles its messages for longer is put out of the group: its partitions "
    "move, and what it did is done again.",
)
def _judge_polls(s: _Settings) -> Iterator[CheckFinding]:
    poll = s.read_number("max.poll.interval.ms")
    if poll is not None and poll < _POLL_MS:
        each = f" for {s.read('max.poll.records')} each" if s.is_java else ""
        yield s.find(
            *("consumer-polls", CheckLevel.WARNS, ("max.poll.interval.ms",)),
            f"{s.say('max.poll.interval.ms')} ({format_duration(poll / 1000)}{each})",
            "max.poll.interval.ms=300000, or fewer max.poll.records",
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
            *("consumer-isolation", CheckLevel.WARNS, ("isolation.level",)),
            s.say("isolation.level"),
            "isolation.level=read_committed, and `isolation: read_committed` in the stream",
        )


@CheckScope.CLIENT.check(
    "client-file",
    "Settings that are unknown or contradict each other",
    "A client refuses to start with settings that exclude each other, and ignores names it "
    "does not know.",
    "librdkafka refuses those too. A placeholder without a default, or a setting that stands where "
    "only the application reads it, is unknown: it is judged with the value that it has there.",
)
def _judge_values(s: _Settings) -> Iterator[CheckFinding]:
    """Values that a client refuses; those that are put in later, as far as they are judged."""
    defaults = _JAVA if s.is_java else _LIBRDKAFKA
    placed = [n for n, one in s.client.given.items() if _PLACED in one.origin and n in defaults]
    if placed:
        origins = " and ".join(dict.fromkeys(s.client.given[name].origin for name in placed))
        yield s.find(
            *("client-file", CheckLevel.WARNS, tuple(placed)),
            f"{', '.join(placed)}: judged by {origins}; another value may be in force "
            "where it runs",
            "put the values in that it has there, and run it again",
        )
    for name, known in list_settings(s.client.letter).items():
        if not (one := s.client.given.get(name)):
            continue
        if one.value is None and name in defaults:
            yield s.find(
                *("client-file", CheckLevel.UNKNOWN, (name,)),
                f"{name} is {one.text!r}: not known before the client runs",
                "put the value in, and run it again",
            )
        elif one.value is not None and (reason := known.refuse(one.value)):
            yield s.find(
                *("client-file", CheckLevel.STOPS, (name,)),
                f"{name} is {one.value!r}, {reason}: {s.name} does not start",
                f"write a value that it takes, or leave {name} out",
            )
    yield from _judge_limits(s)
    yield from _judge_protocol(s)


def _judge_limits(s: _Settings) -> Iterator[CheckFinding]:
    for letter, low, high, below in _LIMITS:
        less, more = s.read_number(low), s.read_number(high)
        if letter != s.client.letter or not s.is_given(low, high) or less is None or more is None:
            continue
        if high == "transaction.timeout.ms" and not (
            s.is_given("transactional.id") and s.is_given(low)
        ):
            continue  # librdkafka adjusts its default
        if less > more or (below and less == more):
            yield s.find(
                *("client-file", CheckLevel.STOPS, (low, high)),
                f"{s.say(low)}, and {s.say(high)}: it has to be {'less' if below else 'no more'}, "
                f"or the client does not start",
                f"raise {high}, or leave out both",
            )


def _judge_protocol(s: _Settings) -> Iterator[CheckFinding]:
    """What a consumer's group needs, and what its protocol excludes (KIP-848)."""
    if s.client.scope is not CheckScope.CONSUMER:
        return
    group, plain = s.client.given.get("group.id"), s.is_java and not s.client.by
    if plain and not group and s.is_given(_COMMITS) and s.read_flag(_COMMITS):
        yield s.find(
            *("client-file", CheckLevel.UNKNOWN, (_COMMITS,)),
            f"{_COMMITS} is true, and the file has no group.id: unless code of the "
            "application sets one, the consumer does not start",
            "group.id=NAME",
        )
    if s.is_java and group and group.value is not None and not group.value.strip():
        yield s.find(
            *("client-file", CheckLevel.STOPS, ("group.id",)),
            "group.id is empty: the consumer does not start",
            "group.id=NAME",
        )
    new = s.read("group.protocol") == "consumer"
    for name in _CLASSIC if new else ("group.remote.assignor",):
        if s.is_given(name):
            protocol = "consumer" if new else "classic"
            yield s.find(
                *("client-file", CheckLevel.STOPS, (name,)),
                f"{name} is set, but group.protocol is {protocol}: the consumer does not start",
                f"leave {name} out",
            )
