"""The processes of a chain, as they are forked: the demo's services, the senders, look-back."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Message
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

import backlogctl.replay.cli.lookback
import backlogctl.replay.cli.outbox  # noqa: F401
from backlogctl.replay.cli import main
from backlogctl_delivery.idempotent.sql import DEADLOCK, is_error
from backlogctl_delivery.lookback import intake
from backlogctl_delivery.outbox import sender as settings
from examples.delivery import order_consumer, order_service, payment_service

# The partitions of a dead instance wait for seconds.
_SESSION_MS = 2_000


class SharingConsumer(order_consumer.OrderConsumer):
    """One of several: each end of one, and each beginning, is a rebalance for the others."""

    membership: Mapping[str, str | int] = {
        "session.timeout.ms": _SESSION_MS,
        "heartbeat.interval.ms": _SESSION_MS // 4,
    }

    def handle(self, message: Message) -> None:
        """Anew where the database has ended the transaction by a deadlock."""
        while True:
            try:
                return super().handle(message)
            except OperationalError as error:
                if not is_error(error, DEADLOCK):
                    raise
                print(error.orig, file=sys.stderr, flush=True)


class ForgetfulConsumer(SharingConsumer):
    """The promise broken on purpose."""

    def handle(self, message: Message) -> None:
        """Without a mark."""
        with Session(self._engine) as session, session.begin():
            self.do(session, message)


def serve_orders(
    database: str, bootstrap: str | None, topic: str, begun: Path, rate: float
) -> None:
    """The demo's order service; without `bootstrap` it leaves sending to senders."""
    words = ["--database", database, "--topic", topic, "--begun", str(begun), "--rate", str(rate)]
    order_service.main(words + (["--bootstrap", bootstrap] if bootstrap else []))


def serve_payments(
    database: str, bootstrap: str, topic: str, prepared: str, begun: Path, rate: float
) -> None:
    """The demo's payment service."""
    words = ["--database", database, "--bootstrap", bootstrap, "--topic", topic]
    words += ["--prepared", prepared, "--begun", str(begun), "--rate", str(rate)]
    payment_service.main(words)


def send(database: str, bootstrap: str) -> None:
    """`backlogctl outbox run`."""
    # A key has more rows than a claim takes.
    settings.Settings = functools.partial(settings.Settings, most=12, most_of_key=5)  # type: ignore[assignment, misc]
    words = ["--url", database, "--bootstrap", bootstrap, "--lease", "2s"]
    sys.exit(main(["outbox", "run", *words]))


def look_back(config: Path) -> None:
    """`backlogctl lookback run`."""
    os.chdir(config.parent)
    intake._SESSION_MS = _SESSION_MS
    sys.exit(main(["lookback", "run", "--config", str(config)]))


def consume(database: str, bootstrap: str, topic: str, group: str) -> None:
    """A consumer that handles once."""
    _consume(SharingConsumer, database, bootstrap, topic, group)


def consume_always(database: str, bootstrap: str, topic: str, group: str) -> None:
    """One that does not: it does the work each time."""
    _consume(ForgetfulConsumer, database, bootstrap, topic, group)


def _consume(
    kind: type[order_consumer.OrderConsumer], database: str, bootstrap: str, topic: str, group: str
) -> None:
    order_consumer.OrderConsumer = kind  # type: ignore[misc]
    words = ["--database", database, "--bootstrap", bootstrap, "--topic", topic, "--group", group]
    order_consumer.main(words)
