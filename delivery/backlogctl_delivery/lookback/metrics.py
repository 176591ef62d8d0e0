"""What is seen of look-back: the catalogue, its tables, and what an instance counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from backlogctl_delivery import metrics as families
from backlogctl_delivery.lookback.admin import Count, count_messages
from backlogctl_delivery.lookback.messages import Event, Incident, Outcome
from backlogctl_delivery.lookback.tables import LookBackDatabase
from backlogctl_delivery.metrics import Gauge, Metric, Poll
from backlogctl_delivery.outbox.sender import SenderCounts

# Messages whose service the configuration does not name: what stands in a message is no label.
NOT_LISTED = "not listed"

UP = Metric("backlog_lookback_database_up", (), "1 where the database answers, else 0.")
MESSAGES = Metric(
    "backlog_lookback_messages",
    ("state",),
    "Messages that have not ended, by state: prepared, committed (and their prepared message has "
    "not come), forwarding, parked. Absent while the database does not answer.",
)
OLDEST = Metric(
    "backlog_lookback_oldest_seconds",
    ("state",),
    "Since the first record of the oldest message in this state was read; absent where there is "
    "none, and while the database does not answer.",
)
EVENTS = Metric(
    "backlog_lookback_events",
    ("event",),
    "Records of the look-back topic that this instance stored, by what they say.",
    "counter",
)
INCIDENTS = Metric(
    "backlog_lookback_incidents",
    ("kind",),
    "Records that did not fit, by kind: late decisions, other messages, unreadable ones.",
    "counter",
)
CHECKS = Metric(
    "backlog_lookback_checks",
    ("service", "outcome"),
    "Questions to services, by what came of them: committed, rolled_back, unknown (the service "
    "said so), failed (no answer), refused (it was not asked). Service `not listed`: of messages "
    "whose service the configuration does not name.",
    "counter",
)
FORWARDS = Metric(
    "backlog_lookback_forwards",
    ("outcome",),
    "Messages sent to their business topics, and tries that failed (no answer) or were refused (by "
    "the brokers, which counts towards parking).",
    "counter",
)
FAILURES = Metric(
    "backlog_lookback_failures",
    ("part",),
    "Failures after which a part of the instance began again: intake, asker, forwarder, keeper.",
    "counter",
)
OF_TABLES = (UP, MESSAGES, OLDEST)
OF_INSTANCE = (EVENTS, INCIDENTS, CHECKS, FORWARDS, FAILURES)
CATALOGUE = (*OF_TABLES, *OF_INSTANCE)


def collect_look_back(counts: Sequence[Count] | None) -> Iterator[Family]:
    """Families of the tables; None where the database does not answer."""
    up, messages, oldest = Gauge(UP), Gauge(MESSAGES), Gauge(OLDEST)
    up.add_metric((), counts is not None)
    for count in counts or ():
        messages.add_metric((count.state,), count.messages)
        if count.oldest_seconds is not None:
            oldest.add_metric((count.state,), count.oldest_seconds)
    yield from (up, messages, oldest)


class Metrics:
    """The figures of one instance. What it counts begins at 0: a first one is seen as an increase.
    `services`: who may be asked.
    """

    def __init__(self, database: LookBackDatabase, services: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self.forwards = SenderCounts()  # of the outbox's sender
        self.events, self.incidents, self.checks, self.failures = (
            Counter(metric.name, metric.help, metric.labels, registry=self.registry)
            for metric in (EVENTS, INCIDENTS, CHECKS, FAILURES)
        )
        for event in Event:
            self.events.labels(event)
        for kind in Incident:
            self.incidents.labels(kind)
        for service in (*services, NOT_LISTED):
            for answer in Outcome:
                self.checks.labels(service, answer)
        for part in ("intake", "asker", "forwarder", "keeper"):
            self.failures.labels(part)
        self.registry.register(_Tables(database, self.forwards))


class _Tables(Collector):
    """How the tables stand, the same from every instance, and what this one has sent."""

    def __init__(self, database: LookBackDatabase, forwards: SenderCounts) -> None:
        self._forwards = forwards
        self._poll = Poll(database.label, lambda: count_messages(database))

    def describe(self) -> list[Family]:
        """Nothing: registering must not ask the database."""
        return []

    def collect(self) -> Iterator[Family]:
        """The figures; without those of the tables where the database does not answer."""
        yield from collect_look_back(self._poll.read())
        forwards, counts = families.Counter(FORWARDS), self._forwards
        for outcome, count in (
            ("sent", counts.delivered),
            ("failed", counts.away),
            ("refused", counts.refused),
        ):
            forwards.add_metric((outcome,), count)
        yield forwards
