"""What one metric is: its name, kind, labels and meaning. Each room has a catalogue of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MetricType = Literal["gauge", "counter"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; a counter's `name` is written without the `_total` that is exported."""

    name: str
    labels: tuple[str, ...]
    help: str
    type: MetricType = "gauge"

    @property
    def exported_name(self) -> str:
        """As Prometheus shows it."""
        return f"{self.name}_total" if self.type == "counter" else self.name
