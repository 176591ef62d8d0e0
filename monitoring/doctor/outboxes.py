"""Outboxes: the table, who sends, and what a rebuild from it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from backlog.numbers import format_duration, format_plural
from monitoring.doctor.facts import Topic
from monitoring.doctor.finding import Finding, Level


@dataclass(frozen=True, slots=True)
class OutboxTable:
    """The table as it is; `missing_indexes` are the statements that make them."""

    is_there: bool
    missing_columns: tuple[str, ...]
    missing_indexes: tuple[str, ...]
    database: str
    can_skip_locked: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is not sent, and since when the oldest that is not parked waits."""

    messages: int
    parked: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class FedStream:
    """A stream that is rebuilt from the outbox; `topic` None where it could not be read."""

    name: str
    cluster: str
    partitioner: str
    topic: Topic | None


@dataclass(frozen=True, slots=True)
class OutboxTerms:
    """What the configuration says of an outbox."""

    name: str
    cluster: str
    partitioner: str
    late: timedelta
    keep: timedelta | None

    @property
    def subject(self) -> str:
        return f"outbox {self.name}"


def judge_table(terms: OutboxTerms, table: OutboxTable) -> Iterator[Finding]:
    """Whether it can be sent from, and by several at once."""
    create = (f"backlogctl outbox create --outbox {terms.name}",)
    migrate = "run the application's own migrations, or"
    if not table.is_there:
        yield Finding(
            *("outbox-table", Level.STOPS, terms.subject),
            f"there is no table backlog_outbox in its database ({table.database})",
            *(migrate, create),
        )
    if table.missing_columns:
        yield Finding(
            *("outbox-table", Level.STOPS, terms.subject),
            "its table is of another version: it has no "
            f"{'column' if len(table.missing_columns) == 1 else 'columns'} "
            + ", ".join(table.missing_columns),
            "run the application's own migrations; the columns are those of "
            "backlogctl_delivery/outbox/database.py",
        )
    if table.missing_indexes:
        yield Finding(
            *("outbox-table", Level.WARNS, terms.subject),
            "its senders and the page read the whole table: "
            f"{'an index is' if len(table.missing_indexes) == 1 else 'indexes are'} missing",
            *("", table.missing_indexes),
        )
    if not table.can_skip_locked:
        is_sqlite = table.database.startswith("SQLite")
        yield Finding(
            *("outbox-locks", Level.WARNS, terms.subject),
            f"it is in {table.database}, which "
            + ("has one writer at a time" if is_sqlite else "does not know SKIP LOCKED"),
            "PostgreSQL, MariaDB from 10.6 or MySQL from 8.0.1",
        )


def judge_waiting(
    terms: OutboxTerms, waiting: Waiting, *, kafka_answers: bool
) -> Iterator[Finding]:
    """Whether it is sent.

    Args:
        kafka_answers: else that is why nothing is sent, and is said by itself.
    """
    listing = f"backlogctl outbox list --outbox {terms.name}"
    oldest, late = waiting.oldest_seconds, terms.late.total_seconds()
    told = (
        f"{format_plural(waiting.messages, 'message')} "
        f"{'waits' if waiting.messages == 1 else 'wait'}, the oldest for {format_duration(oldest)}"
        if oldest is not None and oldest > late
        else ""
    )
    if waiting.parked:
        parked = format_plural(waiting.parked, "message")
        # Those that wait may all be later ones of its key.
        yield Finding(
            *("parked", Level.STOPS, terms.subject),
            f"{parked} {'is' if waiting.parked == 1 else 'are'} parked{told and f'; {told}'}",
            "mend why, then take them up again",
            (f"{listing} --state parked", f"backlogctl outbox retry --outbox {terms.name} --all"),
        )
    elif told and kafka_answers:
        yield Finding(
            *("late", Level.STOPS, terms.subject),
            f"{told}, and Kafka answers: nobody sends, or it is refused",
            "look at the last errors; where there are none, keep a sender running",
            (listing, f"backlogctl outbox run --outbox {terms.name}"),
        )


def judge_streams(terms: OutboxTerms, streams: tuple[FedStream, ...]) -> Iterator[Finding]:
    """Whether a rebuild of each would have the rows, and would place them as they were sent."""
    for stream in streams:
        wrong = [
            f"{key} {theirs}, and the outbox {ours}"
            for key, theirs, ours in (
                ("cluster", stream.cluster, terms.cluster),
                ("partitioner", stream.partitioner, terms.partitioner),
            )
            if theirs != ours
        ]
        if wrong:
            yield Finding(
                *("outbox-stream", Level.STOPS, f"stream {stream.name}"),
                f"it is rebuilt from {terms.subject} and has {'; '.join(wrong)}",
                f"say the same under `streams.{stream.name}` and `outboxes.{terms.name}`",
            )
        keep = None if stream.topic is None else stream.topic.read_number("retention.ms")
        if terms.keep is None or keep is None or keep < 0:
            continue
        if terms.keep.total_seconds() * 1000 <= keep:
            yield Finding(
                *("outbox-keep", Level.LOSES, terms.subject),
                f"what was sent is deleted after {format_duration(terms.keep.total_seconds())}, "
                f"and topic {stream.topic.name if stream.topic else ''} of stream {stream.name} "
                f"keeps it for {format_duration(keep / 1000)}: when a message expires unread, its "
                "row is gone",
                f"make `outboxes.{terms.name}.keep` longer than that, and than the time in which "
                "a loss is found and rebuilt",
            )
