"""What of the shop the story starts, counts and compares: its orders, and who handles them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from confluent_kafka import Message

from backlog.kafka.clients import Properties
from backlogctl_delivery.stamps import EVENT_ID, find_header
from replay.demo.delivery.audit import Facts, Row, Sent
from replay.demo.delivery.players import Part
from replay.demo.delivery.tables import DROPPED, HANDLED, connect, read_value
from replay.demo.reading import read_topic

PARTITIONS = 3
LOOK_BACK_TOPIC, LOOK_BACK_GROUP = "look_back_msg", "backlog-look-back"

# What is silent is asked about soon, and what a killed process held waits for seconds.
_TEXT = """\
clusters:
  main:
    bootstrap.servers: "@BOOTSTRAP@"

look_back:
  database: sqlite:///look-back.db
  cluster: main
  first_check: 1s
  pause: 200ms
  longest_pause: 1s
  max_checks: 1000
  lease: 3s
  listen: 127.0.0.1:0
  services:
    payments:
      http: "http://127.0.0.1:@PORT@/look-back"
      networks: [127.0.0.0/8]
      timeout: 2s
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How large the story is.

    Attributes:
        seconds: for so long everything is killed at random moments.
        rate: business transactions a second.
        apart: seconds between two kills of one process, at least and at most.
    """

    seconds: float = 30.0
    rate: float = 100.0
    apart: tuple[float, float] = (1.5, 5.0)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the facts are: a business table and its begun ids, a topic, a consumer's table.

    Attributes:
        rows: what is committed: id, key, number.
    """

    rows: sa.Select[Any]
    database: str
    begun: Path
    topic: str
    group: str
    handled: str

    def count(self) -> tuple[int, int]:
        """How many rows are committed, and how many are handled."""
        return _count(self.database, self.rows), _count(self.handled, sa.select(HANDLED))

    def read_facts(self, client: Properties) -> Facts:
        """All that the audit compares."""
        with connect(self.handled) as connection:
            handled = connection.execute(sa.select(HANDLED).order_by(HANDLED.c.place)).all()
        return Facts(
            begun=frozenset(self.begun.read_text().split()),
            committed=tuple(_read_rows(self.database, self.rows)),
            topic=tuple(_read_sent(found) for found in read_topic(client, self.topic, PARTITIONS)),
            handled=tuple(Row(row.id, row.key, row.number) for row in handled),
            dropped=_count(self.handled, sa.select(DROPPED)),
        )


def render_configuration(bootstrap: str, port: int) -> str:
    """backlog.yaml, for look-back."""
    return _TEXT.replace("@BOOTSTRAP@", bootstrap).replace("@PORT@", str(port))


def make_part(name: str, module: str, **options: object) -> Part:
    """A process of the shop."""
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    return Part(name, (sys.executable, "-m", f"replay.demo.delivery.{module}", *words))


def _read_rows(url: str, rows: sa.Select[Any]) -> list[Row]:
    with connect(url) as connection:
        return [Row(*row) for row in connection.execute(rows)]


def _read_sent(message: Message) -> Sent:
    headers = message.headers()
    found = find_header(headers, EVENT_ID)  # type: ignore[arg-type]
    return Sent(found or "", read_value(message.key(), message.value()))


def _count(url: str, rows: sa.Select[Any]) -> int:
    counted = sa.select(sa.func.count()).select_from(rows.subquery())
    with connect(url) as connection:
        return int(connection.execute(counted).scalar_one())
