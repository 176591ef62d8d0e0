"""Makes simulated traffic real: messages and control records in Kafka, rows in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import psycopg
from confluent_kafka import KafkaError, Message, Producer

from backlogctl.clock import Deadline
from backlogctl.kafka.admin import create_topic, describe_topic, list_offsets
from backlogctl.kafka.clients import make_admin
from tests.accuracy.scenarios import BEGIN
from tests.accuracy.traffic import Traffic, to_time
from tests.kit.kafka import move_log_start, properties_of
from tests.kit.services import Postgres
from tests.spark_backfill.world import await_decided

_EVENTS = """
CREATE TABLE events (event_id uuid PRIMARY KEY, order_key text, payload bytea NOT NULL,
                     created_at timestamptz NOT NULL)
"""
_ORDERS = """
CREATE TABLE events (order_key text PRIMARY KEY, payload bytea NOT NULL,
                     created_at timestamptz NOT NULL)
"""
_BEGIN_MS = int(BEGIN.timestamp()) * 1000
_Note = Callable[[int, KafkaError | None, Message], None]
_CONSUMED = "CREATE TABLE consumed (event_id uuid PRIMARY KEY)"


@dataclass(frozen=True)
class Stage:
    """Where the story took place."""

    traffic: Traffic
    bootstrap: str
    topic: str
    topic_id: str
    topic_config: dict[str, str]
    database_url: str


def set_stage(traffic: Traffic, bootstrap: str, postgres: Postgres, name: str) -> Stage:
    """A topic and a database of their own, as they are at the end of the story."""
    admin = make_admin(properties_of(bootstrap))
    config = {"retention.ms": "-1"}
    create_topic(
        admin, name, partitions=len(traffic.logs), replication=1, config=config,
        deadline=Deadline(60),
    )  # fmt: skip
    _publish(traffic, bootstrap, name)
    properties = properties_of(bootstrap)
    lows = {n: traffic.find_low(n, traffic.end) for n in range(len(traffic.logs))}
    move_log_start(properties, name, lows)
    assert list_offsets(properties, name, lows, "earliest") == lows
    database = name.replace("-", "_")
    postgres.execute(f"CREATE DATABASE {database}")
    url = postgres.url(database)
    _fill_tables(traffic, url.replace("+psycopg", ""))
    info = describe_topic(admin, name)
    return Stage(traffic, bootstrap, name, info.topic_id, dict(info.config), url)


def _publish(traffic: Traffic, bootstrap: str, topic: str) -> None:
    """Every message at the offset that the simulation gave it, control records in between."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "compression.type": "lz4",
        "linger.ms": 5,
    }
    size = traffic.scenario.transaction
    producer = Producer({**settings, "transactional.id": f"accuracy-{topic}"} if size else settings)
    if size:
        producer.init_transactions(60)
    arrived: dict[int, tuple[int, int]] = {}

    def note(event: int, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        arrived[event] = (partition, offset)

    for batch in _cut_batches(traffic):
        if size:
            producer.begin_transaction()
        for event in batch:
            _send(producer, traffic, topic, event, note)
        if size:
            producer.commit_transaction(60)
    assert producer.flush(120) == 0
    await_decided(bootstrap, topic, len(traffic.logs))
    expected = {
        int(log.event[offset]): (number, int(offset))
        for number, log in enumerate(traffic.logs)
        for offset in log.messages
    }
    assert arrived == expected, "the log is not the one that was simulated"


def _cut_batches(traffic: Traffic) -> Iterator[list[int]]:
    sent = traffic.events.sent
    order = np.argsort(sent, kind="stable")
    order = order[sent[order] >= 0]
    size = traffic.scenario.transaction or len(order)
    for begin in range(0, len(order), size):
        yield order[begin : begin + size].tolist()


def _send(producer: Producer, traffic: Traffic, topic: str, event: int, note: _Note) -> None:
    events = traffic.events
    key = events.key_of(event)
    while True:
        try:
            producer.produce(
                topic,
                events.payload_of(event),
                None if key is None else key.encode(),
                int(events.partition[event]),
                timestamp=_BEGIN_MS + int(events.sent[event]) // 1000,
                headers=[("event-id", events.ids[event].encode())],
                on_delivery=partial(note, event),
            )
        except BufferError:
            producer.poll(0.05)
            continue
        producer.poll(0)
        return


def _fill_tables(traffic: Traffic, url: str) -> None:
    """Rows as they are at the end, and the consumer's own table of what it handled."""
    events = traffic.events
    mutable = traffic.scenario.mutable
    rows: Iterable[int] = np.flatnonzero(~events.deleted).tolist()
    if mutable:
        # The last change of each order.
        rows = {int(events.key[row]): row for row in rows}.values()
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(_ORDERS if mutable else _EVENTS)
        names = "order_key, payload, created_at" + ("" if mutable else ", event_id")
        with cursor.copy(f"COPY events ({names}) FROM STDIN") as copy:
            for row in rows:
                at = to_time(int(events.created[row]))
                values = (events.key_of(row), events.payload_of(row), at)
                copy.write_row(values if mutable else (*values, events.ids[row]))
        cursor.execute("CREATE INDEX ON events (created_at)")
        if not mutable:
            cursor.execute(_CONSUMED)
            with cursor.copy("COPY consumed (event_id) FROM STDIN") as copy:
                for event in list_handled(traffic):
                    copy.write_row((events.ids[event],))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def list_handled(traffic: Traffic) -> list[int]:
    """Events whose message the consumer has handled."""
    handled = []
    for number, log in enumerate(traffic.logs):
        events = log.event[: traffic.find_committed(number, traffic.end)]
        handled += events[events >= 0].tolist()
    return handled
