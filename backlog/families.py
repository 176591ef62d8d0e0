"""Families of prometheus-client, made from a metric's description; what labels hold is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Timestamp

from backlog.metric import Metric
from backlog.visible import escape_name


class Gauge(GaugeMetricFamily):
    """A gauge. Alerts and dashboards show labels as they are."""

    def __init__(self, metric: Metric) -> None:
        super().__init__(metric.name, metric.help, labels=metric.labels)

    def add_metric(
        self, labels: Sequence[str], value: float, timestamp: Timestamp | float | None = None
    ) -> None:
        """A line."""
        super().add_metric([escape_name(label) for label in labels], value, timestamp)


class Counter(CounterMetricFamily):
    """A counter, likewise."""

    def __init__(self, metric: Metric) -> None:
        super().__init__(metric.name, metric.help, labels=metric.labels)

    def add_metric(
        self,
        labels: Sequence[str],
        value: float,
        created: float | None = None,
        timestamp: Timestamp | float | None = None,
    ) -> None:
        """A line."""
        super().add_metric([escape_name(label) for label in labels], value, created, timestamp)
