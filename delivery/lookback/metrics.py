"""What an instance counts, and how its tables stand, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from backlog.errors import BacklogError
from delivery.lookback.database import Database
from delivery.lookback.operating import count_messages


class Metrics:
    """The figures of one instance."""

    def __init__(self, database: Database) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter(
            "backlog_lookback_events",
            "Records of the look-back topic that were stored, by what they say.",
            ["event"],
            registry=self.registry,
        )
        self.incidents = Counter(
            "backlog_lookback_incidents",
            "Records that did not fit, by kind: late decisions, other messages, unreadable ones.",
            ["kind"],
            registry=self.registry,
        )
        self.checks = Counter(
            "backlog_lookback_checks",
            "Questions to services, by what came of them.",
            ["service", "outcome"],
            registry=self.registry,
        )
        self.forwards = Counter(
            "backlog_lookback_forwards",
            "Messages sent to their business topics, and tries that failed or were refused.",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in ("sent", "failed", "refused"):
            self.forwards.labels(outcome)
        self.failures = Counter(
            "backlog_lookback_failures",
            "Failures after which a part of the instance began again.",
            ["part"],
            registry=self.registry,
        )
        self.registry.register(_Tables(database))


class _Tables(Collector):
    """How the tables stand; the same from every instance."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: registering must not ask the database."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The figures; without those of the tables where the database does not answer."""
        up = GaugeMetricFamily("backlog_lookback_database_up", "Whether the database answers.")
        try:
            counts = count_messages(self._database)
        except BacklogError:
            up.add_metric([], 0.0)
            yield up
            return
        up.add_metric([], 1.0)
        yield up
        messages = GaugeMetricFamily(
            "backlog_lookback_messages",
            "Messages that have not ended, by state.",
            labels=["state"],
        )
        oldest = GaugeMetricFamily(
            "backlog_lookback_oldest_seconds",
            "Age of the oldest message in this state.",
            labels=["state"],
        )
        for count in counts:
            messages.add_metric([count.state], count.messages)
            if count.oldest_seconds is not None:
                oldest.add_metric([count.state], count.oldest_seconds)
        yield messages
        yield oldest
