"""The shop of `demo expand`: a topic with a backlog, and customers who go on ordering."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from backlog.clock import Deadline
from backlog.config import load_config
from backlog.errors import KafkaFailure
from backlog.kafka.admin import committed_offsets, create_topic
from backlog.kafka.clients import make_admin
from fanout.launchers import Fleet, ProcessLauncher, Role
from replay.demo.orders import OrderProducer

TOPIC = "orders"
GROUP = "order-service"
HANDLED = "handled"  # the directory of the consumers' logs
CONFIG = "backlog.yaml"
_TICK = 0.05
_PATIENCE_SECONDS = 60.0

_TEXT = """\
# A shop whose orders are handled by three processes, of which each has its limits.
ledger: sqlite:///ledger.db
staging: {dir: ./staging}

clusters:
  main:
    bootstrap.servers: ${env:SHOP_KAFKA}

streams:
  orders:
    cluster: main
    topic: orders
    group: order-service
    consumers:
      launcher: process
      command: [@PYTHON@, -m, replay.demo.expand.order_consumer]
      replicas: @REPLICAS@
      environment: {ORDER_LOG: ./handled, ORDER_RATE: "@RATE@"}
      stop_within: 10s
      ramp: {step: 15, every: 1s}
    expand: {factor: @FACTOR@, order: key}
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


def render_configuration(size: Size) -> str:
    """The shop's backlog.yaml."""
    words = {
        "PYTHON": json.dumps(sys.executable),
        "REPLICAS": str(size.partitions),
        "RATE": str(size.rate),
        "FACTOR": str(size.factor),
    }
    text = _TEXT
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    return text


def make_backlog(bootstrap: str, size: Size) -> None:
    """The topic, all of its orders unread; each customer's orders are numbered from 1."""
    create_topic(
        {"bootstrap.servers": bootstrap}, size.topic, partitions=size.partitions, replication=1
    )
    producer = OrderProducer(bootstrap, size.topic)
    for index in range(size.orders):
        _publish(producer, index, size)
    producer.flush()


class NewOrders:
    """Customers go on ordering while this is entered; `published` counts the backlog too."""

    def __init__(self, bootstrap: str, size: Size) -> None:
        self._bootstrap = bootstrap
        self._size = size
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="new orders", daemon=True)
        self.published = size.orders

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        producer = OrderProducer(self._bootstrap, self._size.topic)
        began, size = time.monotonic(), self._size
        while not self._end.wait(_TICK):
            wanted = size.orders + int((time.monotonic() - began) * size.arriving)
            while self.published < wanted:
                _publish(producer, self.published, size)
                self.published += 1
            producer.poll()
        producer.flush()


def count_expected(published: int, customers: int) -> Counter[int]:
    """How many orders each customer has placed."""
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


def list_fleets(directory: Path) -> list[Fleet]:
    """Every fleet that was ever started in the demo's directory, the usual one first."""
    place = directory / "staging" / "consumers" / TOPIC
    names = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    names.sort(key=lambda name: name != Role.ORIGINAL.value)
    return [
        Fleet(
            stream=TOPIC,
            role=Role.ORIGINAL if name == Role.ORIGINAL.value else Role.RECOVERY,
            topic=TOPIC,
            group=GROUP,
            bootstrap_servers="",
            directory=place / name,
            recovery_id="" if name == Role.ORIGINAL.value else name,
        )
        for name in names
    ]


def make_launcher(directory: Path, bootstrap: str) -> ProcessLauncher:
    """The launcher of the demo's configuration."""
    config = load_config(directory / CONFIG, {"SHOP_KAFKA": bootstrap})
    consumers = config.stream(TOPIC).consumers
    assert consumers is not None
    return ProcessLauncher(consumers)


@contextmanager
def ending_consumers(directory: Path, bootstrap: str) -> Iterator[None]:
    """Ends every consumer of the story after it, and their supervisors."""
    try:
        yield
    finally:
        if (directory / CONFIG).exists():
            launcher = make_launcher(directory, bootstrap)
            for fleet in list_fleets(directory):
                launcher.stop(fleet, lambda: None)


def _publish(producer: OrderProducer, index: int, size: Size) -> None:
    number, customer = divmod(index, size.customers)
    value = (
        f'{{"order_id":"o-{index:08}","customer":"c-{customer:06}","number":{number + 1},'
        f'"status":"paid","amount":"{index % 9_973 / 100 + 1:.2f}","currency":"EUR"}}'
    ).encode()
    producer.publish(value, f"c-{customer:06}".encode())


def names_of(topics: Iterable[str]) -> list[str]:
    """Topics that are not Kafka's own."""
    return sorted(name for name in topics if not name.startswith("__"))
