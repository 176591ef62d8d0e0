"""Admin clients and readers made from a plain mapping of client properties.

Spark executors have only that mapping, so nothing here knows the configuration file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from backlog.errors import BacklogError
from backlog.kafka.encryption import explain_encryption
from backlog.kafka.errors import translate
from backlogctl_delivery.kafka import (
    CLIENT_LOG,
    COMMON,
    ConnectionReports,
    Properties,
    explain_creation_failure,
    find_addresses,
    is_unreachable,
    make_consumer,
    make_producer,
    refuse_encryption,
    refuse_login,
    unwrap,
)

__all__ = ["Properties", "find_addresses", "make_consumer", "make_producer"]  # beside those below

_PROBE_SECONDS = 2.0


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


def make_admin(properties: Properties) -> Admin:
    """An admin client; it connects on first use.

    Raises:
        ConfigurationError: librdkafka does not take a property.
    """
    try:
        return Admin(properties)
    except (KafkaException, TypeError, ValueError) as error:
        raise explain_creation_failure(error, properties, "make an admin client") from error


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
