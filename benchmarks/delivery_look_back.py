"""What the look-back service forwards on PostgreSQL, and how long one message is on its way."""

from __future__ import annotations

import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition
from sqlalchemy import delete

from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_admin, make_consumer, make_producer
from backlogctl_delivery.lookback.messages import Decided, Event, Prepared, write_envelope
from backlogctl_delivery.lookback.producer import LookBackProducer
from backlogctl_delivery.lookback.service import Service
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import MESSAGES, LookBackDatabase, create_tables
from tests.delivery.kit import make_settings, run_instance

VALUE = b'{"status":"PAID","note":"' + b"x" * 300 + b'"}'
PARTITIONS = 6


def make_ways(
    url: str, bootstrap: str, count: int, one_by_one: int
) -> dict[str, Callable[[], float]]:
    """By name what is measured."""
    database = LookBackDatabase(url)
    create_tables(database)
    latencies: list[float] = []

    def measure_median() -> float:
        latencies[:] = measure_latencies(database, bootstrap, one_by_one)
        return statistics.median(latencies)

    return {
        "look_back_per_second": lambda: forward_all(database, bootstrap, count),
        "look_back_ms": measure_median,
        "look_back_ms_95": lambda: statistics.quantiles(latencies, n=20)[-1],
    }


@contextmanager
def start_instance(
    database: LookBackDatabase, bootstrap: str, own: str
) -> Iterator[tuple[Service, LookBackSettings]]:
    settings = make_settings(topic=own, group=own)
    with run_instance(database, settings, bootstrap) as service:
        yield service, settings


def make_topics(database: LookBackDatabase, bootstrap: str) -> tuple[str, str]:
    """Two that are new, and empty tables."""
    admin = make_admin({"bootstrap.servers": bootstrap})
    names = tuple(f"{name}-{uuid.uuid4().hex[:8]}" for name in ("look_back", "payments"))
    for name in names:
        create_topic(admin, name, partitions=PARTITIONS, replication=1, config={})
    with database.write() as connection:
        connection.execute(delete(MESSAGES))
    return names[0], names[1]


def forward_all(database: LookBackDatabase, bootstrap: str, count: int) -> float:
    """Messages a second, from the start of one instance: each is two records in the topic."""
    own, out = make_topics(database, bootstrap)
    producer: Producer = make_producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        biz_id = str(number)
        made = Prepared("payment", biz_id, "payments", out, biz_id.encode(), VALUE, ())
        decided = Decided(event=Event.COMMITTED, biz_type="payment", biz_id=biz_id)
        for envelope in (made, decided):
            producer.produce(own, write_envelope(envelope), biz_id)
            producer.poll(0)
    producer.flush()
    began = time.perf_counter()
    with start_instance(database, bootstrap, own) as (service, _):
        sent = service.metrics.forwards
        while sent.delivered < count:
            time.sleep(0.01)
            if time.perf_counter() - began > 300:
                sys.exit(f"{sent.delivered:,.0f} of {count:,} were forwarded in 300 s")
        return count / (time.perf_counter() - began)


def measure_latencies(database: LookBackDatabase, bootstrap: str, count: int) -> list[float]:
    """Milliseconds from the call of `prepare` until a consumer has it, one after the other."""
    own, out = make_topics(database, bootstrap)
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 0}
    sender = LookBackProducer(make_producer(settings), "payments", topic=own)
    consumer: Consumer = make_consumer({"bootstrap.servers": bootstrap}, {"fetch.wait.max.ms": 10})
    consumer.assign([TopicPartition(out, number, 0) for number in range(PARTITIONS)])
    found: list[float] = []
    with start_instance(database, bootstrap, own):
        for number in range(count + 1):
            began = time.perf_counter()
            sender.prepare("payment", str(number), topic=out, key=str(number), value=VALUE)
            sender.commit("payment", str(number))
            while (message := consumer.poll(1.0)) is None or message.error() is not None:
                if time.perf_counter() - began > 120:
                    sys.exit("a message was not forwarded in 120 s")
            found.append((time.perf_counter() - began) * 1_000)
    consumer.close()
    return found[1:]  # the first one waits until the instance has its partitions
