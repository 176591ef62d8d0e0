"""A consumer whose marks are in Redis, killed at each of its steps, or whose Redis is emptied.

With marks in SQL: tests/crash/test_crash.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from backlogctl.errors import BacklogError
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.crashpoints import VARIABLE
from backlogctl_delivery.idempotent.redis import RedisMarks
from backlogctl_delivery.stamps import EVENT_ID
from tests.conftest import MakeTopic
from tests.delivery.paying import IDENTITY
from tests.kit.kafka import run_together
from tests.kit.processes import ROOT
from tests.kit.services import EmbeddedRedis

ORDERS = [f"order-{number}" for number in range(30)]


@pytest.fixture
def orders(kafka: EmbeddedKafka, topic: MakeTopic) -> tuple[str, int]:
    """A topic of one partition, and its end: every third message is there twice."""
    name = topic(partitions=1)
    sent = [order for number, order in enumerate(ORDERS) for _ in range(2 if number % 3 else 1)]
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for order in sent:
        producer.produce(name, b"pay", headers=[(IDENTITY, order.encode())])
    assert producer.flush(60) == 0
    return name, len(sent)


def consume(
    kafka: EmbeddedKafka, orders: tuple[str, int], group: str, port: int, file: Path, point: str
) -> None:
    """Runs the consumer to its end: killed with its third order, else at the end of the topic."""
    words = (kafka.bootstrap, orders[0], group, str(orders[1]), str(port), str(file))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.delivery.paying", *words],
        cwd=ROOT,
        env={**os.environ, VARIABLE: f"{point}:3"},
        start_new_session=True,
        timeout=240,
        capture_output=True,
        text=True,
        check=False,
    )
    wanted = 0 if point == "never" else -signal.SIGKILL
    assert ended.returncode == wanted, (point, ended.stderr)


def test_fault_54_a_consumer_killed_at_every_step_repeats_only_what_redis_cannot_know(
    kafka: EmbeddedKafka,
    orders: tuple[str, int],
    group: str,
    redis_server: EmbeddedRedis,
    tmp_path: Path,
) -> None:
    """Killed between work and mark: that message's work is done once more, and no other's."""
    file, port = tmp_path / "paid", redis_server.port
    os.close(os.open(file, os.O_CREAT))

    def list_paid() -> list[str]:
        return [line.split()[0] for line in file.read_text().splitlines()]

    repeated: Counter[str] = Counter()
    for point in ("begun", "worked", "marked", "read"):
        consume(kafka, orders, group, port, file, point)
        if point == "worked":
            repeated[list_paid()[-1]] += 1
    consume(kafka, orders, group, port, file, "never")
    consume(kafka, orders, f"{group}-2", port, file, "never")
    assert len(repeated) == 1
    assert Counter(list_paid()) == Counter(ORDERS) + repeated
    told = [line.split()[0] for line in file.read_text().splitlines() if line.endswith(" 1")]
    # The two that were begun and not ended; whether they were done only their worker knew.
    assert len(told) == 2
    assert set(repeated) < set(told)


# Fault 56: Redis is emptied in the middle of a run: what was marked before may be done twice.

_IDS = [f"order-{number}" for number in range(40)]


def test_fault_56_flushall_in_the_middle_of_a_run_repeats_what_came_before_and_nothing_else(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    """Two workers; each message comes twice, at once and after all others. None is left out."""
    name = topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for round_ in range(2):
        for number, each in enumerate(_IDS):
            for _ in range(2 - round_):
                headers: list[tuple[str, str | bytes | None]] = [(EVENT_ID, each.encode())]
                producer.produce(name, b"pay", headers=headers, partition=number % 2)
    assert producer.flush(60) == 0
    before, after = Counter[str](), Counter[str]()
    done = Counter[str]()
    failed: list[BacklogError] = []
    lock, halfway = threading.Lock(), threading.Event()

    with EmbeddedRedis() as server, server.connect() as client:
        marks = RedisMarks(
            client, group, lease=timedelta(minutes=1), keep=timedelta(hours=1), when_away="closed"
        )

        end = time.monotonic() + 100

        def work() -> None:
            consumer = Consumer(
                {
                    "bootstrap.servers": kafka.bootstrap,
                    "group.id": group,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "fetch.wait.max.ms": 50,
                }
            )
            consumer.subscribe([name])
            try:
                read(consumer)
            except BacklogError as error:
                failed.append(error)
            finally:
                consumer.close()

        def read(consumer: Consumer) -> None:
            while done.total() < 3 * len(_IDS) and time.monotonic() < end:
                message = consumer.poll(0.2)
                if message is None or message.error() is not None:
                    continue
                with marks.handle_once(message) as attempt:
                    if attempt.is_first:
                        with lock:
                            (after if halfway.is_set() else before)[attempt.message_id or ""] += 1
                            if before.total() == len(_IDS) // 2 and not halfway.is_set():
                                # While this very attempt is under way.
                                client.flushall()
                                halfway.set()
                consumer.commit(message=message, asynchronous=False)
                with lock:
                    done[attempt.message_id or ""] += 1

        run_together(*[work] * 2)
    assert failed == []
    assert done == Counter(dict.fromkeys(_IDS, 3))
    assert set(before + after) == set(_IDS)
    assert set(before.values()) == set(after.values()) == {1}
    repeated = set(before) & set(after)
    # Of the turns under way one or two were marked again at their end.
    assert len(_IDS) // 2 - 2 <= len(repeated) < len(_IDS) // 2 + 1
