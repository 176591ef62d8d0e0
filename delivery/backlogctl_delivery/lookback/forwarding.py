"""Sends what is committed to its business topic: at least once, always with the same message id.

A message is claimed, sent, and marked when the brokers have it. A crash between sending and marking
sends it again when the lease ends. Messages that are slow hold up no others: each is marked when
its own report comes.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from backlogctl_delivery import stamps
from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.errors import KafkaFailure
from backlogctl_delivery.kafka import PARTITIONERS, explain_kafka, is_refusal, make_producer
from backlogctl_delivery.lookback.asker import (
    Claim,
    claim_due,
    find_held,
    find_pause,
    give_back,
    give_back_all,
    shorten,
)
from backlogctl_delivery.lookback.messages import State
from backlogctl_delivery.lookback.metrics import Metrics
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import Database

LOG = logging.getLogger("backlog.delivery.lookback")

_AT_ONCE = 500  # messages under way
_IDLE_SECONDS = 0.2
_PARTING_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Report:
    """What came of one message; None is no error."""

    claim: Claim
    error: KafkaError | None


class Forwarder:
    """One instance's sender.

    Args:
        properties: the cluster's client properties.
        token: of this instance's leases.
        wake: set when something may be due; without it that is seen a moment later.
    """

    def __init__(
        self,
        database: Database,
        settings: LookBackSettings,
        properties: Mapping[str, Any],
        token: str,
        metrics: Metrics,
        wake: threading.Event | None = None,
    ) -> None:
        self._database, self._settings = database, settings
        self._token, self._metrics = token, metrics
        own = {
            # What was given up is long over when the lease ends.
            "delivery.timeout.ms": int(settings.lease.total_seconds() * 1_000 / 2),
            # A topic that is not there is told soon.
            "topic.metadata.propagation.max.ms": 5_000,
            # It tells of each lost connection; the intake says once that no broker answers.
            "log_level": 2,
            "partitioner": PARTITIONERS[settings.partitioner],
        }
        self._producer: Producer = make_producer(properties, own)
        self._wake = threading.Event() if wake is None else wake
        self._under_way = 0
        self._reports: list[Report] = []

    def run(self, stop: threading.Event) -> None:
        """Forwards until told to stop.

        Raises:
            LookBackDatabaseError, KafkaFailure: begin again with a new Forwarder; what was under
                way is sent again when its lease has ended.
        """
        while not stop.is_set():
            claimed = self.send_due()
            if not self._under_way:
                self._wake.wait(_IDLE_SECONDS)
                self._wake.clear()  # before the next look, which sees what it was set for
            self._producer.poll(_IDLE_SECONDS if self._under_way and not claimed else 0)
            self.mark_reported()
        self._producer.flush(_PARTING_SECONDS)
        self.mark_reported()

    def send_due(self) -> int:
        """Claims and sends what is due; how many messages."""
        room = _AT_ONCE - self._under_way
        if room <= _AT_ONCE // 2:
            return 0  # a few at a time would cost a transaction each
        lease = self._settings.lease
        claims = claim_due(self._database, self._token, lease, room, State.FORWARDING)
        reach("p8.claimed.after")
        for claim in claims:
            self._send(claim)
        return len(claims)

    def mark_reported(self) -> None:
        """Writes down what came of messages whose reports are here."""
        if not self._reports:
            return
        reach("p8.marked.before")
        reports, self._reports = self._reports, []
        self._under_way -= len(reports)
        done = [report.claim for report in reports if report.error is None]
        with self._database.write() as connection:
            now = self._database.now(connection)
            change = {"state": State.FORWARDED.value, "ended_at": now, "last_outcome": None}
            late = len(done) - give_back_all(connection, done, State.FORWARDING, change)
            for report in reports:
                if report.error is not None:
                    self._note_failure(connection, now, report.claim, report.error)
        reach("p8.marked.after")
        self._metrics.forwards.labels("sent").inc(len(done))
        if late:
            LOG.warning("%d messages were sent after their lease had ended: perhaps twice", late)
        if fatal := next((one.error for one in reports if one.error and one.error.fatal()), None):
            raise KafkaFailure(
                f"the producer has ended: {fatal.str()}", subject="forwarding", retryable=True
            )

    def _send(self, claim: Claim) -> None:
        row = claim.row
        headers: list[tuple[str, str | bytes | None]] = [
            (name, None if item is None else base64.b64decode(item))
            for name, item in row["headers"] or ()
            if name != stamps.EVENT_ID
        ]
        headers.append((stamps.EVENT_ID, claim.id.encode()))
        self._under_way += 1
        report = self._make_report(claim)
        try:
            while True:
                try:
                    self._producer.produce(
                        row["topic"], row["value"], row["key"], headers=headers, on_delivery=report
                    )
                    break
                except BufferError:
                    self._producer.poll(_IDLE_SECONDS)
        except KafkaException as error:
            report(error.args[0], None)
        reach("p8.sent.middle")

    def _make_report(self, claim: Claim) -> Callable[[KafkaError | None, Any], None]:
        return lambda error, _: self._reports.append(Report(claim, error))

    def _note_failure(self, connection: Any, now: Any, claim: Claim, error: KafkaError) -> None:
        row = find_held(connection, claim, State.FORWARDING)
        if row is None:
            return
        is_refused = is_refusal(error)
        # Brokers that cannot be reached use up no tries.
        forwards = row["forwards"] + is_refused
        pauses = forwards if is_refused else 1
        outcome = f"refused: {explain_kafka(error)}"
        if not is_refused:
            outcome = f"no acknowledgement: {error.name()}; the brokers may have it"
        change: dict[str, Any] = {
            "forwards": forwards,
            "last_outcome": shorten(outcome),
            "next_at": now + find_pause(self._settings, pauses),
        }
        if forwards >= self._settings.max_forwards:
            change["state"] = State.PARKED.value
            change["parked_because"] = f"the brokers refused it {forwards} times: {error.name()}"
        give_back(connection, claim, State.FORWARDING, change)
        self._metrics.forwards.labels("refused" if is_refused else "failed").inc()
