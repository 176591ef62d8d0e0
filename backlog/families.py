"""Families of prometheus-client, made from a metric's description; what labels hold is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from backlog.metric import Metric
from backlog.visible import escape_name


class Gauge(GaugeMetricFamily):
    """A gauge. Alerts and dashboards show labels as they are."""

    def __init__(self, metric: Metric) -> None:
        super().__init__(metric.name, metric.help, labels=metric.labels)

    def add_metric(self, labels: Sequence[str], value: float, *more: Any, **named: Any) -> None:
        """A line."""
        super().add_metric([escape_name(label) for label in labels], value, *more, **named)


class Counter(CounterMetricFamily):
    """A counter, likewise."""

    def __init__(self, metric: Metric) -> None:
        super().__init__(metric.name, metric.help, labels=metric.labels)

    def add_metric(self, labels: Sequence[str], value: float, *more: Any, **named: Any) -> None:
        """A line."""
        super().add_metric([escape_name(label) for label in labels], value, *more, **named)
