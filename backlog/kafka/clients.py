"""Kafka clients made from a plain mapping of client properties.

Spark executors have only that mapping, so nothing here knows the configuration file. librdkafka's
own log goes to the logger `backlog.kafka.client`, never to stderr.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from backlog.errors import BacklogError
from backlog.kafka.encryption import explain_encryption
from backlog.kafka.errors import (
    is_refused_login,
    is_unreachable,
    refuse_encryption,
    refuse_login,
    translate,
    unwrap,
)

CLIENT_LOG = logging.getLogger("backlog.kafka.client")
# Without a handler of its own Python would print librdkafka's warnings to stderr.
CLIENT_LOG.addHandler(logging.NullHandler())

Properties = Mapping[str, Any]
_PROBE_SECONDS = 2.0
# Of readers that assign, and never commit.
READER_GROUP = "backlogctl-reader"

COMMON: Mapping[str, Any] = {
    "client.id": "backlogctl",
    "socket.connection.setup.timeout.ms": 10_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "log.connection.close": False,
    # 0 is "errors only" in syslog terms plus critical; 4 keeps warnings for the logger.
    "log_level": 4,
}
CONSUMER: Mapping[str, Any] = {
    # A consumer without a start offset must fail, not jump.
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    # The default of 1000 ms stalls a fast reader.
    "fetch.queue.backoff.ms": 5,
}
PRODUCER: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "compression.type": "lz4",
    # A producer would ask the broker for a topic that is gone, by librdkafka's default: a deleted
    # ledger or target must stay deleted, and be noticed.
    "allow.auto.create.topics": False,
}
# librdkafka's own names of the partitioners that the configuration names.
PARTITIONERS: Mapping[str, str] = {"murmur2": "murmur2_random", "crc32": "consistent_random"}


class ConnectionReports:
    """Remembers a client's last connection error, which a mere "timed out" leaves out."""

    def __init__(self) -> None:
        self.last = ""
        # None where the last of them was about something else.
        self.refusal: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        # "All brokers down" says less than the broker's own report that came before it.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.last:
            self.last = error.str() or error.name()
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.refusal = error if is_refused_login(error) else None

    def clear(self) -> None:
        """A broker answered."""
        self.last, self.refusal = "", None


class GrouplessConsumer(Consumer):
    """A consumer that only assigns, and needs no right on any group.

    librdkafka wants a group.id all the same, and looks for that group's coordinator: where it may
    not, it says so among the messages. Nothing here needs one.
    """

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message or error, but for the coordinator's."""
        message = super().poll() if timeout is None else super().poll(timeout)
        return None if message is None or _is_of_group(message) else message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """As `poll`, for several."""
        return [m for m in super().consume(num_messages, timeout) if not _is_of_group(m)]


def _is_of_group(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


class Admin(AdminClient):
    """An AdminClient that remembers the addresses it was given and its last connection error."""

    def __init__(self, properties: Properties) -> None:
        self.addresses = find_addresses(properties)
        self.reports = ConnectionReports()
        # To ask for a topic's metadata must not make the topic.
        settings = {
            **COMMON,
            "allow.auto.create.topics": False,
            **properties,
            "error_cb": self.reports,
        }
        super().__init__(settings, logger=CLIENT_LOG)
        self._properties = dict(properties)
        # (group, topic) -> since when an answer about them is wrong, by the monotonic clock.
        self.behind_since: dict[tuple[str, str], float] = {}
        self.has_answered = False
        self._consumers: dict[tuple[tuple[str, Any], ...], Consumer] = {}

    @property
    def properties(self) -> Properties:
        """What it was made with."""
        return self._properties

    def open_reader(self, group: str, require_stable: bool) -> Consumer:
        """A consumer that only asks for the group's commits; it never joins. Kept for next time."""
        # librdkafka asks for stable offsets exactly when it reads committed data.
        level = "read_committed" if require_stable else "read_uncommitted"
        return self.keep_consumer({"group.id": group, "isolation.level": level})

    def keep_consumer(self, settings: Mapping[str, Any]) -> Consumer:
        """A consumer with these settings, the same one each time; it is never closed."""
        key = tuple(sorted(settings.items()))
        if key not in self._consumers:
            self._consumers[key] = make_consumer(
                self._properties, {**settings, "error_cb": self.reports}
            )
        return self._consumers[key]

    def translate(
        self,
        error: KafkaError | BaseException,
        subject: str,
        doing: str,
        seconds: float | None = None,
    ) -> BacklogError:
        """`translate` with this client's addresses and last connection error."""
        self.poll(0)  # connection errors and log lines are delivered by poll only
        inner = unwrap(error)
        is_late = isinstance(error, TimeoutError) or (inner is not None and is_unreachable(inner))
        if is_late and (refused := self._tell_refused_login(subject, doing)) is not None:
            return refused
        return translate(
            error,
            subject,
            doing,
            addresses=self.addresses,
            last_report=self.reports.last,
            seconds=seconds,
        )

    def find_refusal(self, subject: str, doing: str) -> BacklogError | None:
        """Why brokers that are there do not let this client in; None where that is not known.

        Takes some seconds where a broker hangs.
        """
        self.poll(0)
        if (refused := self._tell_refused_login(subject, doing)) is not None:
            return refused
        if self.has_answered and not self.reports.last:
            return None  # only slow
        why = explain_encryption(self._properties, self.addresses, _PROBE_SECONDS)
        return refuse_encryption(why, subject, doing, self.addresses) if why else None

    def _tell_refused_login(self, subject: str, doing: str) -> BacklogError | None:
        if (refusal := self.reports.refusal) is None:
            return None
        login = _name_login(self._properties)
        return refuse_login(refusal, subject, doing, self.addresses, login)


def _name_login(properties: Properties) -> str:
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
    user = properties.get("sasl.username")
    return f"user {user} with {mechanism}" if user else f"this client with {mechanism}"


def find_addresses(properties: Properties) -> str:
    """`bootstrap.servers` of the properties, for error messages."""
    return str(properties.get("bootstrap.servers") or properties.get("metadata.broker.list") or "")


def make_admin(properties: Properties) -> Admin:
    """An admin client; it connects on first use.

    Raises:
        ConfigurationError: librdkafka does not take a property.
    """
    try:
        return Admin(properties)
    except (KafkaException, TypeError, ValueError) as error:
        raise _refuse(error, properties, "make an admin client") from error


def make_consumer(
    properties: Properties, overrides: Mapping[str, Any] | None = None, **settings: Any
) -> Consumer:
    """A consumer that reads committed data, commits nothing by itself and never resets.

    Args:
        properties: the cluster's client properties.
        overrides: properties by their Kafka name, over the defaults.
        settings: the same with `_` for `.`: `group_id="g"` is `group.id`.

    Raises:
        ConfigurationError: librdkafka does not take a property.
    """
    merged = {**COMMON, **CONSUMER, **properties, **(overrides or {}), **_dotted(settings)}
    made = Consumer if "group.id" in merged else GrouplessConsumer
    merged.setdefault("group.id", READER_GROUP)
    merged.setdefault("error_cb", ConnectionReports())
    try:
        return made(merged, logger=CLIENT_LOG)
    except (KafkaException, TypeError, ValueError) as error:
        raise _refuse(error, properties, "make a consumer") from error


def assign_partitions(
    consumer: Consumer, starts: Sequence[TopicPartition], seconds: float = 30.0
) -> None:
    """Assigns partitions of one topic, of which the leaders are asked for first.

    Without a leader librdkafka waits for half a second before it looks again (tried, 2.16.1).

    Raises:
        KafkaFailure, ClusterUnreachable: nobody answered.
    """
    try:
        consumer.list_topics(starts[0].topic, seconds)
        consumer.assign(list(starts))
    except KafkaException as error:
        subject = f"topic {starts[0].topic}"
        raise translate(error, subject, "find its leaders", seconds=seconds) from error


def make_producer(
    properties: Properties, overrides: Mapping[str, Any] | None = None, **settings: Any
) -> Producer:
    """An idempotent producer; transactional when given `transactional_id`.

    Arguments and errors as of `make_consumer`.
    """
    merged = {**COMMON, **PRODUCER, **properties, **(overrides or {}), **_dotted(settings)}
    merged.setdefault("error_cb", ConnectionReports())
    try:
        return Producer(merged, logger=CLIENT_LOG)
    except (KafkaException, TypeError, ValueError) as error:
        raise _refuse(error, properties, "make a producer") from error


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def _refuse(error: BaseException, properties: Properties, doing: str) -> BacklogError:
    addresses = find_addresses(properties)
    return translate(error, f"cluster {addresses}", doing, addresses=addresses)
