"""What a sender exports: its catalogue, and the collector that fills it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backlog.errors import BacklogError
from delivery.outbox.desk import Desk, OutboxStatus
from delivery.outbox.sender import OutboxSender

# Scrapers that come more often get the figures of the last look.
_LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class OutboxMetric:
    """One metric; a counter's `name` is written without the `_total` that is exported."""

    name: str
    labels: tuple[str, ...]
    help: str
    type: Literal["gauge", "counter"] = "gauge"

    @property
    def exported_name(self) -> str:
        """As Prometheus shows it."""
        return f"{self.name}_total" if self.type == "counter" else self.name


MESSAGES = OutboxMetric(
    "backlog_outbox_messages",
    ("state",),
    "Rows that are not sent, by state: pending, in_progress, parked. Absent while the database "
    "does not answer.",
)
OLDEST = OutboxMetric(
    "backlog_outbox_oldest_seconds",
    (),
    "Since the oldest row that is not sent was added; 0 where all are sent, absent while the "
    "database does not answer.",
)
ATTEMPTS = OutboxMetric(
    "backlog_outbox_attempts",
    ("outcome",),
    "Attempts of this sender: delivered, refused (by Kafka, which counts towards parking), away "
    "(Kafka did not answer).",
    "counter",
)
PARKED = OutboxMetric(
    "backlog_outbox_parked", (), "Rows that this sender parked after their last attempt.", "counter"
)
LATE = OutboxMetric(
    "backlog_outbox_late_marks",
    (),
    "Messages acknowledged after their lease had ended: another sender sends them once more, with "
    "the same id.",
    "counter",
)
AWAY = OutboxMetric(
    "backlog_outbox_away", ("what",), "1 while `kafka` or the `database` does not answer."
)
CATALOGUE = (MESSAGES, OLDEST, ATTEMPTS, PARKED, LATE, AWAY)


class OutboxCollector(Collector):
    """Figures of one sender and its table, looked up when they are scraped."""

    def __init__(self, desk: Desk, sender: OutboxSender) -> None:
        self._desk, self._sender = desk, sender
        self._status: OutboxStatus | None = None
        self._looked_at = float("-inf")

    def collect(self) -> Iterator[Metric]:
        """One family for each entry of the catalogue that is known."""
        status = self._look()
        if status is not None:
            messages = _make_gauge(MESSAGES)
            for state in ("pending", "in_progress", "parked"):
                messages.add_metric([state], getattr(status, state))
            yield messages
            oldest = _make_gauge(OLDEST)
            oldest.add_metric([], status.oldest_seconds or 0.0)
            yield oldest
        counts = self._sender.counts
        attempts = _make_counter(ATTEMPTS)
        for outcome in ("delivered", "refused", "away"):
            attempts.add_metric([outcome], getattr(counts, outcome))
        yield attempts
        for metric, count in ((PARKED, counts.parked), (LATE, counts.late)):
            family = _make_counter(metric)
            family.add_metric([], count)
            yield family
        away = _make_gauge(AWAY)
        away.add_metric(["kafka"], self._sender.kafka_outage.is_on)
        away.add_metric(["database"], self._sender.database_outage.is_on or status is None)
        yield away

    def _look(self) -> OutboxStatus | None:
        if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            try:
                self._status = self._desk.read_status()
            except BacklogError:
                self._status = None
            self._looked_at = time.monotonic()
        return self._status


def _make_gauge(metric: OutboxMetric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def _make_counter(metric: OutboxMetric) -> CounterMetricFamily:
    return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
