"""What is seen of outboxes: the catalogue, their tables, and what a sender counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from backlogctl_delivery.metrics import Counter, Gauge, Metric, Poll
from backlogctl_delivery.outbox.admin import OutboxAdmin, OutboxStatus
from backlogctl_delivery.outbox.sender import OutboxSender, SenderCounts

MESSAGES = Metric(
    "backlog_outbox_messages",
    ("outbox", "state"),
    "Rows that are not sent, by state: pending, in_progress, parked. Absent while the database "
    "does not answer.",
)
OLDEST = Metric(
    "backlog_outbox_oldest_seconds",
    ("outbox",),
    "Since the oldest row that waits to be sent was added, parked ones left out; absent where none "
    "waits, and while the database does not answer.",
)
AWAY = Metric(
    "backlog_outbox_away",
    ("outbox", "what"),
    "1 while the `database`, or of a sender `kafka`, does not answer; `thread`: while that of an "
    "application ends again and again, as its log says.",
)
ATTEMPTS = Metric(
    "backlog_outbox_attempts",
    ("outbox", "outcome"),
    "Attempts of this sender: delivered, refused (by Kafka, which counts towards parking), away "
    "(Kafka did not answer).",
    "counter",
)
PARKED = Metric(
    "backlog_outbox_parked",
    ("outbox",),
    "Rows that this sender parked after their last attempt.",
    "counter",
)
LATE = Metric(
    "backlog_outbox_late_marks",
    ("outbox",),
    "Messages acknowledged after their lease had ended: another sender sends them once more, with "
    "the same id.",
    "counter",
)
OF_TABLE = (MESSAGES, OLDEST, AWAY)
OF_SENDER = (ATTEMPTS, PARKED, LATE)
CATALOGUE = (*OF_TABLE, *OF_SENDER)

Away = Mapping[tuple[str, str], bool]


def collect_outboxes(
    statuses: Mapping[str, OutboxStatus | None], away: Away | None = None
) -> Iterator[Family]:
    """Families of these outboxes, by name.

    Args:
        statuses: how each stands; None where its database does not answer.
        away: what else does not answer, or does, by outbox and `what`.
    """
    messages, oldest, outages = Gauge(MESSAGES), Gauge(OLDEST), Gauge(AWAY)
    for name, status in statuses.items():
        if status is None:
            continue
        for state in ("pending", "in_progress", "parked"):
            messages.add_metric((name, state), getattr(status, state))
        if status.oldest_waiting_seconds is not None:
            oldest.add_metric((name,), status.oldest_waiting_seconds)
    databases = {(name, "database"): status is None for name, status in statuses.items()}
    for place, is_away in (databases | dict(away or {})).items():
        outages.add_metric(place, is_away)
    yield from (messages, oldest, outages)


class OutboxCollector(Collector):
    """Figures of one sender and its table, for a registry.

    A scrape waits a second for a database that hangs, at most; what it said last is shown for a
    minute more.

    Args:
        find_sender: the sender; None where it has not begun.
        name: the label `outbox`.
    """

    def __init__(
        self, desk: OutboxAdmin, find_sender: Callable[[], OutboxSender | None], name: str
    ) -> None:
        self._find_sender, self._name = find_sender, name
        self._poll = Poll(desk.label, desk.read_status)

    def describe(self) -> list[Family]:
        """Nothing: registering must not ask the database."""
        return []

    def collect(self) -> Iterator[Family]:
        """One family for each entry of the catalogue."""
        status, sender, name = self._poll.read(), self._find_sender(), self._name
        counts = SenderCounts() if sender is None else sender.counts
        away = {(name, "database"): status is None}
        if sender is not None:
            away[name, "database"] |= sender.database_outage.is_on
            away[name, "kafka"] = sender.kafka_outage.is_on
            away[name, "thread"] = sender.thread_outage.is_on
        yield from collect_outboxes({name: status}, away)
        attempts = Counter(ATTEMPTS)
        for outcome in ("delivered", "refused", "away"):
            attempts.add_metric((name, outcome), getattr(counts, outcome))
        yield attempts
        for metric, count in ((PARKED, counts.parked), (LATE, counts.late)):
            family = Counter(metric)
            family.add_metric((name,), count)
            yield family
