"""Descriptions of metrics, their families for prometheus-client, and reads that may hang."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any, Generic, Literal, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from backlogctl_delivery.errors import BacklogError
from backlogctl_delivery.visible import escape_name

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


class Gauge(GaugeMetricFamily):
    """A gauge. Alerts and dashboards show labels as they are."""

    def __init__(self, metric: Metric) -> None:
        super().__init__(metric.name, metric.help, labels=metric.labels)

    def add_metric(self, labels: Sequence[str], value: float, *more: Any, **named: Any) -> None:
        super().add_metric([escape_name(label) for label in labels], value, *more, **named)


class Counter(CounterMetricFamily):
    """A counter, likewise."""

    def __init__(self, metric: Metric) -> None:
        super().__init__(metric.name, metric.help, labels=metric.labels)

    def add_metric(self, labels: Sequence[str], value: float, *more: Any, **named: Any) -> None:
        super().add_metric([escape_name(label) for label in labels], value, *more, **named)


# Two Prometheus servers and a probe at the same time cost one read.
FRESH_SECONDS = 2.0
# What is older is not shown; what is only slow is asked again long before that.
KEPT_SECONDS = 60.0
WAIT_SECONDS = 1.0
LOG = logging.getLogger(__name__)

T = TypeVar("T")


class Poll(Generic[T]):
    """Asks in a thread of its own, once at a time; thread-safe.

    Args:
        subject: what is asked, for the log.
        ask: raises BacklogError where there is no answer.
        wait: the longest that `read` takes, in seconds.
    """

    def __init__(
        self,
        subject: str,
        ask: Callable[[], T],
        *,
        wait: float = WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subject = subject
        self._call = ask
        self._wait = wait
        self._clock = clock
        self._changed = Condition()
        self._asking = False
        # The last answer, and when it came; None is a failure.
        self._answer: T | None = None
        self._at = float("-inf")

    def read(self) -> T | None:
        """The answer, from the last minute; None where there was none then.

        It waits a moment for a new one, and no longer: asking goes on without it.
        """
        with self._changed:
            if self._find_age() > FRESH_SECONDS:
                if not self._asking:
                    self._asking = True
                    Thread(target=self._ask, name="backlog-asking", daemon=True).start()
                self._changed.wait_for(lambda: not self._asking, self._wait)
            return self._answer if self._find_age() <= KEPT_SECONDS else None

    def answers(self) -> bool:
        """Whether there was an answer when it was last asked."""
        return self.read() is not None

    def _find_age(self) -> float:
        return self._clock() - self._at

    def _ask(self) -> None:
        answer: T | None = None
        try:
            answer = self._call()
        except BacklogError as error:
            LOG.debug("%s was asked for its figures: %s", self._subject, error)
        except Exception:
            # A bug must not look like a database that hangs.
            LOG.exception("%s was asked for its figures", self._subject)
        with self._changed:
            self._answer, self._at, self._asking = answer, self._clock(), False
            self._changed.notify_all()
