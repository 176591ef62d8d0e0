"""Reads the look-back topic: offsets are committed only after the database has what they say."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from backlog.config import LookBack
from backlog.crashpoints import reach
from backlog.errors import KafkaFailure
from backlog.kafka.clients import make_consumer
from backlog.kafka.errors import translate
from delivery.lookback.applying import Record, apply_records
from delivery.lookback.database import Database
from delivery.lookback.metrics import Metrics

_BATCH = 500
_WAIT_SECONDS, _MORE_SECONDS = 0.2, 0.005
_PROBE_SECONDS = 2.0
# The partitions of an instance that was killed wait for so long.
_SESSION_MS = 10_000


class Intake:
    """One instance's member of the consumer group.

    Args:
        properties: the cluster's client properties.
        wake: is set when messages may be due to be sent.
    """

    def __init__(
        self,
        database: Database,
        settings: LookBack,
        properties: Mapping[str, Any],
        metrics: Metrics,
        wake: threading.Event,
    ) -> None:
        self._database, self._settings, self._metrics = database, settings, metrics
        self._wake = wake
        self._properties = properties
        # Whether a broker answers at all: asked when the client lost all connections.
        self._is_doubtful = False

    def run(self, stop: threading.Event) -> None:
        """Reads until told to stop.

        Raises:
            LookBackDatabaseError, KafkaFailure: begin again; what was not committed is read again.
        """
        consumer = make_consumer(
            self._properties,
            {
                "group.id": self._settings.group,
                # Read twice nothing changes; skipped, a message would be lost.
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": _SESSION_MS // 3,
                "partition.assignment.strategy": "cooperative-sticky",
                # The client would log each lost connection, and go on as if nothing had come.
                "log_level": 2,
                "error_cb": self._note_error,
            },
        )
        try:
            consumer.subscribe([self._settings.topic])
            while not stop.is_set():
                self._take_batch(consumer)
                if self._is_doubtful:
                    self._is_doubtful = False
                    consumer.list_topics(self._settings.topic, _PROBE_SECONDS)
        except KafkaException as error:
            raise self._translate(error.args[0]) from error
        finally:
            consumer.close()

    def _take_batch(self, consumer: Consumer) -> None:
        # Waits for the first one only: `consume` alone would wait until its batch is full.
        first = consumer.poll(_WAIT_SECONDS)
        messages = [] if first is None else [first, *consumer.consume(_BATCH - 1, _MORE_SECONDS)]
        for message in messages:
            if (error := message.error()) is not None:
                raise self._translate(error)
        if not messages:
            return
        records = [_read_record(message) for message in messages]
        applied = apply_records(self._database, self._settings, records)
        self._wake.set()
        for event, count in applied.events.items():
            self._metrics.events.labels(event).inc(count)
        for kind, count in applied.incidents.items():
            self._metrics.incidents.labels(kind).inc(count)
        reach("p8.offsets.before")
        for message in messages:
            consumer.store_offsets(message)
        consumer.commit(asynchronous=False)
        reach("p8.offsets.after")

    def _note_error(self, error: KafkaError) -> None:
        self._is_doubtful |= error.code() == KafkaError._ALL_BROKERS_DOWN

    def _translate(self, error: KafkaError) -> KafkaFailure:
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return KafkaFailure(
                "there is no such topic",
                subject=f"topic {self._settings.topic}",
                hint="create it, with as many partitions as instances will ever read it",
                retryable=True,
            )
        addresses = str(self._properties.get("bootstrap.servers", ""))
        subject = f"topic {self._settings.topic}"
        told = translate(error, subject, "read it", addresses=addresses)
        return KafkaFailure(told.message, subject=told.subject, hint=told.hint, retryable=True)


def _read_record(message: Message) -> Record:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return Record(topic, partition, offset, message.value())
