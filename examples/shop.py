"""The shop of `expand`, `offload` and `make airflow`: its orders, and who handles them."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from confluent_kafka import Producer

from backlogctl.clock import Deadline
from backlogctl.config import load_config
from backlogctl.errors import KafkaFailure
from backlogctl.fanout.launchers import Fleet, ProcessLauncher, Role
from backlogctl.kafka.admin import committed_offsets, create_topic
from backlogctl.kafka.clients import make_admin
from examples.stage import PRODUCER, flush, send

TOPIC = "orders"
GROUP = "order-service"
HANDLED = "handled"  # the directory of the consumers' logs
CONFIG = "backlog.yaml"
_TICK = 0.05
_PATIENCE_SECONDS = 60.0

_TEXT = """\
# A shop whose orders are handled by processes, of which each has its limits.
ledger: sqlite:///ledger.db
staging: {dir: ./staging}
spark: {master: "local[2]"}

clusters:
  main:
    bootstrap.servers: ${env:SHOP_KAFKA}

streams:
"""
_STREAM = """\
  @TOPIC@:
    cluster: main
    topic: @TOPIC@
    group: @GROUP@
    consumers:
      launcher: process
      command: [@PYTHON@, -m, examples.order_consumer]
      replicas: @REPLICAS@
      environment: {ORDER_LOG: ./handled, ORDER_RATE: "@RATE@"}
      directory: .
      stop_within: 10s
      ramp: {step: 15, every: 1s}
    expand: {factor: @FACTOR@, order: key}
"""
_OFF_PEAK = """\
    # Put back at night.
    off_peak: {from: "@FROM@", to: "@TO@", timezone: UTC}
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How large the story is. Rates are messages a second.

    Attributes:
        orders: the backlog; every customer has as many of them, within one.
        rate: what one consumer handles at most.
        arriving: new orders a second while all of it happens.
        measured: seconds that the usual consumers work before the plan is made.
        least_ratio: how much faster it must be, both measured while all consumers run.
        most_seconds: what set-up and restore may take together.
    """

    orders: int = 300_000
    customers: int = 30_000
    partitions: int = 3
    factor: int = 10
    rate: int = 1_000
    arriving: int = 200
    measured: float = 6.0
    least_ratio: float = 9.0
    most_seconds: float = 20.0
    topic: str = TOPIC
    group: str = GROUP

    @property
    def consumers(self) -> int:
        """How many run on the temporary topic."""
        return self.partitions * self.factor


def find_off_peak(now: datetime) -> dict[str, str]:
    at = now.astimezone(UTC)
    return {
        "FROM": f"{at - timedelta(hours=1):%H:00}",
        "TO": f"{at + timedelta(hours=3):%H:00}",
    }


def render_stream(size: Size) -> str:
    """A stream whose consumers are processes."""
    words = {
        "TOPIC": size.topic,
        "GROUP": size.group,
        "PYTHON": json.dumps(sys.executable),
        "REPLICAS": str(size.partitions),
        "RATE": str(size.rate),
        "FACTOR": str(size.factor),
    }
    return replace_words(_STREAM, words)


def render_configuration(size: Size, now: datetime | None = None) -> str:
    """The shop's backlog.yaml; with `now` it has an off-peak window around that moment."""
    off_peak = "" if now is None else replace_words(_OFF_PEAK, find_off_peak(now))
    return _TEXT + render_stream(size) + off_peak


def replace_words(text: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    return text


def make_backlog(bootstrap: str, size: Size) -> None:
    """The topic, all of its orders unread; each customer's orders are numbered from 1."""
    create_topic(
        {"bootstrap.servers": bootstrap}, size.topic, partitions=size.partitions, replication=1
    )
    orders = NewOrders(bootstrap, size)
    orders.publish(size.orders)
    orders.flush()


def make_order(index: int, size: Size) -> tuple[bytes, bytes]:
    """Key and value of one; each customer's orders are numbered from 1."""
    number, customer = divmod(index, size.customers)
    value = (
        f'{{"order_id":"o-{index:08}","customer":"c-{customer:06}","number":{number + 1},'
        f'"status":"paid","amount":"{index % 9_973 / 100 + 1:.2f}","currency":"EUR"}}'
    )
    return f"c-{customer:06}".encode(), value.encode()


class NewOrders:
    """Customers go on ordering while this is entered; `published` counts all of their orders.
    `arrivals`: how many come at most while it is entered, however long that is.
    """

    def __init__(
        self,
        bootstrap: str,
        size: Size,
        make: Callable[[int], tuple[bytes, bytes]] | None = None,
        published: int = 0,
        arrivals: int = sys.maxsize,
    ) -> None:
        self._size, self.published, self._arrivals = size, published, arrivals
        self._make = make or (lambda index: make_order(index, size))
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="new orders", daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})

    def publish(self, count: int) -> None:
        """As fast as they go."""
        for _ in range(count):
            key, value = self._make(self.published)
            send(self._producer, self._size.topic, value, key)
            self.published += 1

    def flush(self) -> None:
        """Waits until the broker has all of them."""
        flush(self._producer, self._size.topic)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        began, first = time.monotonic(), self.published
        while not self._end.wait(_TICK):
            wanted = int((time.monotonic() - began) * self._size.arriving)
            self.publish(first + min(wanted, self._arrivals) - self.published)
            self._producer.poll(0)
        self.flush()


def count_expected(published: int, customers: int) -> Counter[int]:
    whole, rest = divmod(published, customers)
    return Counter({number: whole + (number < rest) for number in range(customers)})


def await_commits(bootstrap: str, size: Size) -> None:
    """Waits until the usual consumers work on every partition."""
    admin, limit = make_admin({"bootstrap.servers": bootstrap}), Deadline(_PATIENCE_SECONDS)
    while None in committed_offsets(admin, size.group, size.topic, range(size.partitions)).values():
        if limit.expired:
            raise KafkaFailure(
                f"a partition has no commit after {_PATIENCE_SECONDS:g} s",
                subject=f"group {size.group}",
            )
        time.sleep(_TICK)


def list_fleets(directory: Path, topic: str = TOPIC) -> list[Fleet]:
    """Every fleet that was ever started in the demo's directory, the usual one first."""
    place = directory / "staging" / "consumers" / topic
    names = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    names.sort(key=lambda name: name != Role.ORIGINAL.value)
    return [
        Fleet(
            stream=topic,
            role=Role.ORIGINAL if name == Role.ORIGINAL.value else Role.RECOVERY,
            topic=topic,
            group=GROUP,
            bootstrap_servers="",
            directory=place / name,
            recovery_id="" if name == Role.ORIGINAL.value else name,
        )
        for name in names
    ]


def make_launcher(directory: Path, bootstrap: str, topic: str = TOPIC) -> ProcessLauncher:
    config = load_config(directory / CONFIG, {"SHOP_KAFKA": bootstrap})
    consumers = config.stream(topic).consumers
    assert consumers is not None
    return ProcessLauncher(consumers)


@contextmanager
def ending_consumers(directory: Path, bootstrap: str, topic: str = TOPIC) -> Iterator[None]:
    """Ends every consumer of the story after it, and their supervisors."""
    try:
        yield
    finally:
        if (directory / CONFIG).exists():
            launcher = make_launcher(directory, bootstrap, topic)
            for fleet in list_fleets(directory, topic):
                launcher.stop(fleet, lambda: None)


def names_of(topics: Iterable[str]) -> list[str]:
    """Topics that are not Kafka's own."""
    return sorted(name for name in topics if not name.startswith("__"))
