"""The shop of `demo offload`: a broker with a small disk, and orders that fill it."""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from backlog.clock import Deadline
from backlog.errors import KafkaFailure
from backlog.kafka.admin import create_topic
from backlog.kafka.log_dirs import BrokerLogDirs, read_log_dirs
from replay.demo.orders import OrderProducer

TOPIC = "orders"
GROUP = "order-service"
HANDLED = "handled"  # the directory of the consumers' logs
CONFIG = "backlog.yaml"
_TICK = 0.05
_LOOK_EACH = 1_000  # orders

_TEXT = """\
# A shop whose broker has a small disk, and whose consumers have their limits.
ledger: sqlite:///ledger.db
staging: {dir: ./staging}
spark: {master: "local[2]"}

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
    # Put back at night.
    off_peak: {from: "@FROM@", to: "@TO@", timezone: UTC}
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How large the story is.

    Attributes:
        disk: bytes that the broker has.
        filled: the share of it that is used when somebody notices.
        padding: bytes of each order that no compression makes smaller.
        slow: orders a second that one consumer handles while its database is ill.
        rate: the same once that is repaired.
        arriving: new orders a second while all of it happens.
    """

    disk: int = 128 * 2**20
    filled: float = 0.62
    padding: int = 2_500
    partitions: int = 3
    slow: int = 40
    rate: int = 10_000
    arriving: int = 200


def render_configuration(size: Size, now: datetime, *, slow: bool) -> str:
    """The shop's backlog.yaml; its off-peak window lies around that moment."""
    at = now.astimezone(UTC)
    words = {
        "PYTHON": json.dumps(sys.executable),
        "REPLICAS": str(size.partitions),
        "RATE": str(size.slow if slow else size.rate),
        "FROM": f"{at - timedelta(hours=1):%H:00}",
        "TO": f"{at + timedelta(hours=3):%H:00}",
    }
    text = _TEXT
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    return text


def make_topic(bootstrap: str, size: Size) -> None:
    """Small segments: a broker frees whole ones only."""
    create_topic(
        {"bootstrap.servers": bootstrap},
        TOPIC,
        partitions=size.partitions,
        replication=1,
        config={"segment.bytes": str(2**21), "retention.ms": "-1"},
    )


class Orders:
    """Customers order: first until the disk is nearly full, then, while this is entered, on and on.

    `published` counts all of them; they are numbered from 1.
    """

    def __init__(self, bootstrap: str, size: Size) -> None:
        self._bootstrap, self._size = bootstrap, size
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="new orders", daemon=True)
        self._producer = OrderProducer(bootstrap, TOPIC)
        self.published = 0

    def fill_disk(self) -> None:
        """Orders as fast as they go, until the broker's disk is used as far as `Size.filled`."""
        while True:
            for _ in range(_LOOK_EACH):
                self._publish()
            self._producer.flush()
            disk = read_disk(self._bootstrap)
            used = (disk.total_bytes or 0) - (disk.usable_bytes or 0)
            if used >= self._size.filled * self._size.disk:
                return

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
        began, first = time.monotonic(), self.published
        while not self._end.wait(_TICK):
            wanted = first + int((time.monotonic() - began) * self._size.arriving)
            while self.published < wanted:
                self._publish()
            self._producer.poll()
        self._producer.flush()

    def _publish(self) -> None:
        number = self.published + 1
        value = {
            "order_id": f"o-{number:08}",
            "customer": "c-000001",
            "number": number,
            "note": secrets.token_urlsafe(self._size.padding * 3 // 4),
        }
        text = json.dumps(value, separators=(",", ":")).encode()
        self._producer.publish(text, f"o-{number:08}".encode())
        self.published = number


def read_disk(bootstrap: str) -> BrokerLogDirs:
    """The broker's disk, as it tells itself.

    Raises:
        KafkaFailure: it does not.
    """
    found = read_log_dirs({"bootstrap.servers": bootstrap}, TOPIC, Deadline(15.0))
    if not found.brokers or found.brokers[0].usable_bytes is None:
        raise KafkaFailure(
            f"the broker does not tell its disk: {found.reason}", subject=f"cluster {bootstrap}"
        )
    return found.brokers[0]
