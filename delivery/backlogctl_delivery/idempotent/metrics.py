"""What an application exports of its idempotent consumers: prometheus-client is imported here only.

REGISTRY.register(OnceCollector(marks))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from backlogctl_delivery import metrics as families
from backlogctl_delivery.idempotent.attempts import OUTCOMES, Counts
from backlogctl_delivery.metrics import Metric

MESSAGES = Metric(
    "backlog_once_messages",
    ("marks", "outcome"),
    "Messages by what came of `handle_once`: first (its work was done), repeat (skipped), "
    "without_id and unmarked (done without a mark: it has no id, Redis was away), failed (the work "
    "or the database raised); and raised by it: refused (no id), in_progress (another worker had "
    "it), conflict (its id with another payload), lease_lost (done twice), away (Redis was). "
    "`marks` is the table, or the consumer's name in Redis.",
    "counter",
)
CATALOGUE = (MESSAGES,)


class CountedMarks(Protocol):
    """`Marks` or `RedisMarks`."""

    @property
    def name(self) -> str: ...

    @property
    def counts(self) -> Counts: ...


class OnceCollector(Collector):
    """Counts of these marks, for a registry; those of one name are one."""

    def __init__(self, *marks: CountedMarks) -> None:
        self._marks = marks

    def collect(self) -> Iterator[Family]:
        """The one family: every outcome of each, from 0."""
        family = families.Counter(MESSAGES)
        summed: Counter[tuple[str, str]] = Counter()
        for marks in self._marks:
            counts = marks.counts.read()
            for outcome in OUTCOMES:
                summed[marks.name, outcome] += counts[outcome]
        for place, number in summed.items():
            family.add_metric(place, number)
        yield family
