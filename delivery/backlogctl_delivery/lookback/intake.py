"""Reads the look-back topic: offsets are committed only after the database has what they say."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from sqlalchemy import Connection, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.errors import KafkaFailure
from backlogctl_delivery.kafka import Silence, close_consumer, make_consumer, translate
from backlogctl_delivery.lookback.messages import (
    ENDED,
    Decided,
    Decision,
    Incident,
    MessageStatus,
    NotReadable,
    Prepared,
    State,
    Transition,
    decide_step,
    make_id,
    read_envelope,
)
from backlogctl_delivery.lookback.metrics import Metrics
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import INCIDENTS, MESSAGES, LookBackDatabase, forward

BY_APPLICATION, BY_LOOK_BACK = "application", "look-back"
_NO_MESSAGE = {"service": None, "topic": None, "key": None, "value": None, "headers": None}
# Columns that an event may change.
_CHANGED = (
    *("state", "decision", "decided_by", "decided_at", "service", "topic", "key", "value"),
    *("headers", "next_at", "lease_token", "lease_until", "ended_at", "parked_because"),
)


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the look-back topic."""

    topic: str
    partition: int
    offset: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Applied:
    """What a batch came to: events by their word, incidents by their kind, rows of the outbox."""

    events: Mapping[str, int]
    incidents: Mapping[str, int]
    hints: Sequence[int] = ()


def apply_records(
    database: LookBackDatabase, settings: LookBackSettings, records: Sequence[Record]
) -> Applied:
    """Stores what records say. The same records again change nothing.

    Raises:
        LookBackDatabaseError: nothing of the batch is stored.
    """
    with database.write() as connection:
        batch = _Batch(database, connection, settings)
        applied = batch.apply(records)
        reach("p8.applied.before")
    reach("p8.applied.after")
    return applied


class _Batch:
    """Rows of one transaction, by id: those that were there and those that are new."""

    def __init__(
        self, database: LookBackDatabase, connection: Connection, settings: LookBackSettings
    ) -> None:
        self._database, self._connection, self._settings = database, connection, settings
        self._rows: dict[str, dict[str, Any]] = {}
        self._new: set[str] = set()
        self._changed: set[str] = set()
        self._incidents: list[dict[str, Any]] = []
        self._committed: list[dict[str, Any]] = []

    def apply(self, records: Sequence[Record]) -> Applied:
        events: Counter[str] = Counter()
        read: list[tuple[Record, str, Prepared | Decided]] = []
        now = self._database.now(self._connection)
        for record in records:
            try:
                envelope = read_envelope(record.value)
            except NotReadable as error:
                self._note(record, Incident.UNREADABLE, now, error.message)
                continue
            events[envelope.event] += 1
            made = make_id(self._settings.topic, envelope.biz_type, envelope.biz_id)
            read.append((record, made, envelope))
        self._load(sorted({made for _, made, _ in read}))
        for record, made, envelope in read:
            self._apply(record, made, envelope, now)
        hints = self._store(now)
        return Applied(events, Counter(one["kind"] for one in self._incidents), hints)

    def _load(self, ids: list[str]) -> None:
        if not ids:
            return
        self._database.lock_ids(self._connection, ids)
        # In one order: askers lock rows as well.
        wanted = select(MESSAGES).where(MESSAGES.c.id.in_(ids)).order_by(MESSAGES.c.id)
        for row in self._connection.execute(wanted.with_for_update()).mappings():
            self._rows[row["id"]] = dict(row)

    def _apply(
        self, record: Record, made: str, envelope: Prepared | Decided, now: datetime
    ) -> None:
        row = self._rows.get(made)
        message = _read_message(envelope) if isinstance(envelope, Prepared) else _NO_MESSAGE
        is_same = row is not None and all(row[name] == item for name, item in message.items())
        step = decide_step(None if row is None else read_status(row), envelope.event, is_same)
        if step.incident is not None:
            assert row is not None
            reason = f"it is {row['state']}, decided: {row['decision'] or 'nothing'}"
            self._note(record, step.incident, now, reason, made, envelope)
        if step.state is None:
            return
        if row is None:
            row = {"id": made, "created_at": now, "biz_type": envelope.biz_type}
            row |= {"biz_id": envelope.biz_id, "checks": 0, "last_outcome": None}
            row |= {**dict.fromkeys(_CHANGED), **_NO_MESSAGE}
            self._rows[made] = row
            self._new.add(made)
        if step.takes_message:
            row |= message
        row |= make_change(step, BY_APPLICATION, now)
        if row["state"] == State.PREPARED:
            row["next_at"] = now + self._settings.first_check
        elif row["state"] == State.COMMITTED:
            row["next_at"] = now + self._settings.wait_for_prepare
        elif row["state"] == State.FORWARDED:
            self._committed.append(row)
        self._changed.add(made)

    def _note(
        self,
        record: Record,
        kind: Incident,
        now: datetime,
        reason: str,
        made: str | None = None,
        envelope: Prepared | Decided | None = None,
    ) -> None:
        self._incidents.append(
            {
                "at": now,
                "kind": kind.value,
                "message_id": made,
                "biz_type": None if envelope is None else envelope.biz_type,
                "biz_id": None if envelope is None else envelope.biz_id,
                "reason": reason,
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
            }
        )

    def _store(self, now: datetime) -> list[int]:
        if self._new:
            rows = [self._rows[made] for made in sorted(self._new)]
            self._connection.execute(insert(MESSAGES), rows)
        if changed := sorted(self._changed - self._new):
            statement = (
                update(MESSAGES)
                .where(MESSAGES.c.id == bindparam("at_id"))
                .where(MESSAGES.c.created_at == bindparam("at_created"))
                .values({name: bindparam(f"to_{name}") for name in _CHANGED})
            )
            self._connection.execute(
                statement,
                [
                    {"at_id": made, "at_created": self._rows[made]["created_at"]}
                    | {f"to_{name}": self._rows[made][name] for name in _CHANGED}
                    for made in changed
                ],
            )
        if self._incidents:
            make: Callable[..., Any] = sqlite.insert
            if not self._database.is_sqlite:
                make = postgresql.insert
            self._connection.execute(
                make(INCIDENTS).on_conflict_do_nothing(
                    index_elements=["topic", "partition", "offset", "kind"]
                ),
                self._incidents,
            )
        return forward(self._connection, self._settings, self._committed, now)


def read_status(row: Mapping[str, Any]) -> MessageStatus:
    """How a row stands."""
    decision = None if row["decision"] is None else Decision(row["decision"])
    return MessageStatus(State(row["state"]), decision, row["topic"] is not None)


def make_change(step: Transition, decided_by: str, now: datetime) -> dict[str, Any]:
    """The columns of a step other than the message itself. Whoever held a lease has lost it."""
    assert step.state is not None
    change: dict[str, Any] = {
        "state": step.state.value,
        "next_at": now,
        "lease_token": None,
        "lease_until": None,
        "parked_because": None,
    }
    if step.decision is not None and not step.takes_message:
        change |= {"decision": step.decision.value, "decided_by": decided_by, "decided_at": now}
    if step.state in ENDED:
        change["ended_at"] = now
    return change


def _read_message(envelope: Prepared) -> dict[str, Any]:
    return {
        "service": envelope.service,
        "topic": envelope.topic,
        "key": envelope.key,
        "value": envelope.value,
        "headers": [
            [name, None if item is None else base64.b64encode(item).decode()]
            for name, item in envelope.headers
        ],
    }


_BATCH = 500
_WAIT_SECONDS, _MORE_SECONDS = 0.2, 0.005
_PROBE_SECONDS = 2.0
# The partitions of an instance that was killed wait for so long.
_SESSION_MS = 10_000


class Intake:
    """One instance's member of the consumer group.

    Args:
        properties: the cluster's client properties.
        notify: is told of rows of the outbox when they are committed.
    """

    def __init__(
        self,
        database: LookBackDatabase,
        settings: LookBackSettings,
        properties: Mapping[str, Any],
        metrics: Metrics,
        notify: Callable[[Sequence[int]], None],
    ) -> None:
        self._database, self._settings, self._metrics = database, settings, metrics
        self._notify = notify
        self._properties = properties
        # Whether a broker answers at all: asked when the client lost all connections.
        self._is_doubtful = False
        self._owes_commit = False

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
                "on_commit": self._note_commit,
            },
        )
        try:
            consumer.subscribe([self._settings.topic])
            silence = Silence(self._settings.topic)
            while not stop.is_set():
                if self._take_batch(consumer):
                    silence.end()
                else:
                    silence.check(consumer)
                if self._owes_commit:
                    self._commit(consumer)
                if self._is_doubtful:
                    self._is_doubtful = False
                    consumer.list_topics(self._settings.topic, _PROBE_SECONDS)
        except KafkaException as error:
            raise self._translate(error.args[0]) from error
        finally:
            close_consumer(consumer)

    def _take_batch(self, consumer: Consumer) -> bool:
        # Waits for the first one only: `consume` alone would wait until its batch is full.
        first = consumer.poll(_WAIT_SECONDS)
        messages = [] if first is None else [first, *consumer.consume(_BATCH - 1, _MORE_SECONDS)]
        for message in messages:
            if (error := message.error()) is not None:
                raise self._translate(error)
        if not messages:
            return False
        records = [_read_record(message) for message in messages]
        applied = apply_records(self._database, self._settings, records)
        if applied.hints:
            self._notify(applied.hints)
        for event, count in applied.events.items():
            self._metrics.events.labels(event).inc(count)
        for kind, count in applied.incidents.items():
            self._metrics.incidents.labels(kind).inc(count)
        reach("p8.offsets.before")
        for message in messages:
            consumer.store_offsets(message)
        self._commit(consumer)
        reach("p8.offsets.after")
        return True

    def _commit(self, consumer: Consumer) -> None:
        """Not waited for: a client that has lost its brokers would never come back."""
        self._owes_commit = False
        consumer.commit(asynchronous=True)

    def _note_commit(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        # "No offset": since a rebalance nothing was stored.
        self._owes_commit = error is not None and error.code() != KafkaError._NO_OFFSET

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
