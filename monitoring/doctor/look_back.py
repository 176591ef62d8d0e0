"""Look-back: its tables, its topic, the services that it asks, and what is stuck."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta

from backlog.numbers import format_duration, format_plural
from monitoring.doctor.facts import Topic
from monitoring.doctor.finding import Finding, Level
from monitoring.doctor.replication import judge_partitions, judge_replication
from monitoring.doctor.retention import judge_retention

SUBJECT = "look-back"
# Today and the next days that the service keeps a partition for; one less within a look of its own.
DAYS_AHEAD = 2
_RUN = ("backlogctl lookback run",)


@dataclass(frozen=True, slots=True)
class LookBackTables:
    """The tables; of PostgreSQL its clock's day, and the days that have a partition."""

    are_there: bool
    is_sqlite: bool
    today: date
    days: tuple[date, ...] = ()


@dataclass(frozen=True, slots=True)
class Stuck:
    """How many are parked; and the worst of what waits: its state, how many, the oldest."""

    parked: int
    state: str = ""
    messages: int = 0
    oldest_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class AskedService:
    """A service that may be asked; `problem` is why it cannot be, "" where its name resolves."""

    name: str
    host: str
    problem: str


def judge_tables(tables: LookBackTables) -> Iterator[Finding]:
    """Whether the service has been here, and keeps partitions ahead."""
    if not tables.are_there:
        yield Finding(
            *("look-back-tables", Level.STOPS, SUBJECT),
            "its tables are missing: the service has never run",
            *("keep one running; it makes them", _RUN),
        )
    elif not tables.is_sqlite:
        wanted = [tables.today + timedelta(days=ahead) for ahead in range(DAYS_AHEAD + 1)]
        missing = [day for day in wanted if day not in tables.days]
        if missing:
            is_now = tables.today in missing
            yield Finding(
                *("look-back-tables", Level.STOPS if is_now else Level.WARNS, SUBJECT),
                "no partition of look_back_messages for "
                + ", ".join(day.isoformat() for day in missing)
                + (": nothing new can be stored" if is_now else ""),
                *("the service makes them three days ahead: does it run?", _RUN),
            )
    if tables.is_sqlite:
        yield Finding(
            *("look-back-database", Level.WARNS, SUBJECT),
            "its database is SQLite: one writer at a time, on one host",
            "PostgreSQL in `look_back.database`, before it is relied on",
        )


def judge_topic(
    topic: Topic | None, name: str, addresses: str, keep: timedelta, horizon: timedelta
) -> Iterator[Finding]:
    """The topic that applications prepare messages on.

    Args:
        topic: None where there is none.
        keep: for so long messages that have ended are known.
    """
    if topic is None:
        yield Finding(
            *("look-back-topic", Level.STOPS, f"topic {name}"),
            "there is no such topic: applications cannot prepare a message",
            "",
            (
                f"kafka-topics.sh --bootstrap-server {addresses} --create --topic {name} "
                "--partitions 12 --replication-factor 3 --config min.insync.replicas=2 "
                "--config retention.ms=604800000",
            ),
        )
        return
    policy = topic.settings.get("cleanup.policy", "")
    if "compact" in policy:
        yield Finding(
            *("look-back-topic", Level.LOSES, topic.subject),
            f"cleanup.policy is {policy}: a decision replaces the prepared message of its key",
            *("", (topic.make_alteration("cleanup.policy", "delete"),)),
        )
    if len(topic.partitions) == 1:
        yield Finding(
            *("look-back-topic", Level.WARNS, topic.subject),
            "it has 1 partition: of several instances one reads",
            "as many partitions as instances; add them while no transaction is open, since that "
            "moves keys",
        )
    kept = topic.read_number("retention.ms")
    if kept is not None and (kept < 0 or kept >= keep.total_seconds() * 1000):
        told = "forever" if kept < 0 else f"for {format_duration(kept / 1000)}"
        yield Finding(
            *("look-back-keep", Level.WARNS, topic.subject),
            f"it keeps its messages {told}, and look-back forgets what has ended after "
            f"{format_duration(keep.total_seconds())}",
            "make `look_back.keep` longer, or",
            (topic.make_alteration("retention.ms", int(keep.total_seconds() * 1000) // 2),),
        )
    # The same as of a stream: it is as much a loss.
    for one in judge_retention("", topic, None, None, horizon):
        ours = tuple(text for text in one.commands if not text.startswith("backlogctl "))
        yield replace(one, commands=ours)
    yield from judge_replication(topic)
    yield from judge_partitions(topic)


def judge_stuck(stuck: Stuck, late: timedelta, *, kafka_answers: bool) -> Iterator[Finding]:
    """Whether messages end."""
    if stuck.parked:
        is_ = "is" if stuck.parked == 1 else "are"
        yield Finding(
            *("parked", Level.STOPS, SUBJECT),
            f"{format_plural(stuck.parked, 'message')} {is_} parked",
            "mend why, then take them up again",
            ("backlogctl lookback list --state parked", "backlogctl lookback resume --all"),
        )
    oldest = stuck.oldest_seconds
    if oldest is not None and oldest > late.total_seconds() and kafka_answers:
        yield Finding(
            *("late", Level.STOPS, SUBJECT),
            f"{format_plural(stuck.messages, 'message')} {stuck.state}, the oldest for "
            f"{format_duration(oldest)}, and Kafka answers: the service does not run, or what it "
            "asks does not answer",
            *("", (f"backlogctl lookback list --state {stuck.state}", *_RUN)),
        )


def judge_services(services: tuple[AskedService, ...]) -> Iterator[Finding]:
    """Whether each may be asked: its name resolves, and to where it may."""
    if not services:
        yield Finding(
            *("look-back-service", Level.WARNS, SUBJECT),
            "no service is listed: an application that falls silent is asked by nobody, and its "
            "messages are parked",
            "list each application under `look_back.services`",
        )
    for one in services:
        if one.problem:
            yield Finding(
                *("look-back-service", Level.STOPS, f"service {one.name}"),
                f"it cannot be asked at {one.host}: {one.problem}",
                f"mend its name, or list where it may be under `look_back.services.{one.name}"
                ".networks`",
            )
