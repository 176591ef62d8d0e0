"""Look-back: its tables, its topic, the services that it asks, and what is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING

from backlogctl.clock import Deadline
from backlogctl.config import Config, LookBack
from backlogctl.errors import Refused
from backlogctl.formats import format_duration, format_plural
from backlogctl.kafka.clients import connect
from backlogctl.kafka.errors import TopicMissing
from backlogctl.monitoring.doctor.checks import (
    CheckFinding,
    CheckLevel,
    CheckScope,
    UnreadablePart,
    read_part,
)
from backlogctl.monitoring.doctor.facts import Topic, read_topic
from backlogctl.monitoring.doctor.topic import judge_partitions, judge_replication, judge_retention
from backlogctl.monitoring.verdict.commands import advise_on_compaction, name_access
from backlogctl.replay.observe.deliveries import opened_look_back, within

if TYPE_CHECKING:
    from backlogctl_delivery.lookback.admin import Count
    from backlogctl_delivery.lookback.settings import ServiceSettings

SUBJECT = "look-back"
# Today and the next days that the service keeps a partition for; one less within a look of its own.
DAYS_AHEAD = 2


@dataclass(frozen=True, slots=True)
class LookBackTables:
    """The tables, and how many messages are in them; of PostgreSQL its clock's day, and the days
    that have a partition."""

    are_there: bool
    is_sqlite: bool
    today: date
    days: tuple[date, ...] = ()
    counts: tuple[Count, ...] = ()


_RUN = ("backlogctl lookback run",)
_SECONDS = 30.0
_RESOLVE_SECONDS = 5.0


def judge_look_back(
    config: Config, settings: LookBack, *, kafka_answers: bool
) -> Iterator[CheckFinding]:
    """Its tables, what waits in them, its services, and where Kafka answers its topic."""
    if kafka_answers:
        yield from _judge_topic(config, settings)
    tables = read_part(
        "the tables of look-back", lambda: within(_SECONDS, SUBJECT, lambda: _read(config))
    )
    if isinstance(tables, UnreadablePart):
        yield tables.to_finding()
    else:
        yield from judge_tables(tables)
        yield from judge_stuck(tables, settings.late, kafka_answers=kafka_answers)
    services = settings.to_settings().services
    if not services:
        yield CheckFinding(
            *("look-back-service", CheckLevel.WARNS, SUBJECT),
            "no service is listed: an application that falls silent is asked by nobody, and its "
            "messages are parked",
            "list each application under `look_back.services`",
        )
    for name, service in sorted(services.items()):
        yield from judge_service(name, service)


def _judge_topic(config: Config, settings: LookBack) -> Iterator[CheckFinding]:
    properties = config.clusters[settings.cluster].client_properties()
    topic = read_part(
        f"settings of topic {settings.topic}",
        lambda: read_topic(connect(properties), properties, settings.topic, Deadline(_SECONDS)),
    )
    if isinstance(topic, UnreadablePart) and not isinstance(topic.error, TopicMissing):
        yield topic.to_finding()
        return
    yield from judge_topic(
        None if isinstance(topic, UnreadablePart) else topic,
        *(settings.topic, name_access(properties), settings.keep),
        config.watch.horizon,
    )


def _read(config: Config) -> LookBackTables:
    from backlogctl_delivery.lookback.admin import count_messages
    from backlogctl_delivery.lookback.tables import has_tables, list_partitions

    with opened_look_back(config) as database:
        with database.read() as connection:
            today = database.now(connection).date()
            is_sqlite, are_there = database.is_sqlite, has_tables(connection)
            days = () if is_sqlite or not are_there else tuple(list_partitions(connection))
        counts = tuple(count_messages(database)) if are_there else ()
    return LookBackTables(are_there, is_sqlite, today, days, counts)


def _resolve(service: ServiceSettings) -> str:
    """Why its name does not resolve to where it may; "" where it does. Nobody is asked."""
    from backlogctl_delivery.lookback.checkers import Resolver

    host, port = service.address
    resolver = Resolver(host, port, service.networks, threads=1)

    async def resolve() -> None:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            await resolver.resolve()

    try:
        asyncio.run(resolve())
    except TimeoutError:
        return f"its name was not resolved in {_RESOLVE_SECONDS:g} s"
    except Refused as error:
        return error.message
    except OSError:
        return "its name does not resolve here"
    finally:
        resolver.close()
    return ""


@CheckScope.DELIVERY.check(
    "look-back-database",
    "The database of look-back",
    "SQLite is for trying out: instances on other hosts cannot share it.",
)
@CheckScope.DELIVERY.check(
    "look-back-tables",
    "The tables of look-back",
    "What is prepared is stored by day; without a partition for today nothing can be stored.",
    "`lookback run` makes tables, and partitions three days ahead.",
)
def judge_tables(tables: LookBackTables) -> Iterator[CheckFinding]:
    """Whether the service has been here, and keeps partitions ahead."""
    if not tables.are_there:
        yield CheckFinding(
            *("look-back-tables", CheckLevel.STOPS, SUBJECT),
            "its tables are missing: the service has never run",
            *("keep one running; it makes them", _RUN),
        )
    elif not tables.is_sqlite:
        wanted = [tables.today + timedelta(days=ahead) for ahead in range(DAYS_AHEAD + 1)]
        missing = [day for day in wanted if day not in tables.days]
        if missing:
            is_now = tables.today in missing
            yield CheckFinding(
                *("look-back-tables", CheckLevel.STOPS if is_now else CheckLevel.WARNS, SUBJECT),
                "no partition of look_back_messages for "
                + ", ".join(day.isoformat() for day in missing)
                + (": nothing new can be stored" if is_now else ""),
                *("the service makes them three days ahead: does it run?", _RUN),
            )
    if tables.is_sqlite:
        yield CheckFinding(
            *("look-back-database", CheckLevel.WARNS, SUBJECT),
            "its database is SQLite: one writer at a time, on one host",
            "PostgreSQL in `look_back.database`, before it is relied on",
        )


@CheckScope.DELIVERY.check(
    "look-back-keep",
    "How long look-back knows what has ended",
    "A message that is read again after it was forgotten is a new one, and is sent again.",
    "Offsets are read again after a reset, or when the group's commits have expired.",
)
@CheckScope.DELIVERY.check(
    "look-back-topic",
    "The topic of look-back",
    "Applications prepare their messages on it, keyed by business id: what is lost there, was "
    "never prepared.",
    "Retention, copies and `min.insync.replicas` are judged as those of a stream's topic.",
)
def judge_topic(
    topic: Topic | None, name: str, access: str, keep: timedelta, horizon: timedelta
) -> Iterator[CheckFinding]:
    """The topic that applications prepare messages on.

    Args:
        topic: None where there is none.
        keep: for so long messages that have ended are known.
    """
    if topic is None:
        yield CheckFinding(
            *("look-back-topic", CheckLevel.STOPS, f"topic {name}"),
            "there is no such topic: applications cannot prepare a message",
            "",
            (
                f"kafka-topics.sh {access} --create --topic {name} "
                "--partitions 12 --replication-factor 3 --config min.insync.replicas=2 "
                "--config retention.ms=604800000",
            ),
        )
        return
    policy = topic.settings.get("cleanup.policy", "")
    if "compact" in policy:
        yield CheckFinding(
            *("look-back-topic", CheckLevel.LOSES, topic.subject),
            f"cleanup.policy is {policy}: a decision replaces the prepared message of its key",
            "then set retention.ms below `look_back.keep`, once nothing undecided is older",
            advise_on_compaction(topic, policy).commands,
        )
    if len(topic.partitions) == 1:
        yield CheckFinding(
            *("look-back-topic", CheckLevel.WARNS, topic.subject),
            "it has 1 partition: of several instances one reads",
            "as many partitions as instances; add them while no transaction is open, since that "
            "moves keys",
        )
    kept = topic.read_number("retention.ms")
    if kept is not None and (kept < 0 or kept >= keep.total_seconds() * 1000):
        yield CheckFinding(
            *("look-back-keep", CheckLevel.WARNS, topic.subject),
            f"it keeps its messages {topic.kept}, and look-back forgets what has ended after "
            f"{format_duration(keep.total_seconds())}",
            "make `look_back.keep` longer; or lower retention.ms once nothing undecided is older: "
            "before, it would delete what waits for a decision",
        )
    # The same as of a stream: it is as much a loss.
    for one in judge_retention("", topic, horizon):
        ours = tuple(text for text in one.commands if not text.startswith("backlogctl "))
        yield replace(one, commands=ours)
    yield from judge_replication(topic)
    yield from judge_partitions(topic)


def judge_stuck(
    tables: LookBackTables, late: timedelta, *, kafka_answers: bool
) -> Iterator[CheckFinding]:
    """Whether messages end."""
    from backlogctl_delivery.lookback.messages import State

    if parked := sum(one.messages for one in tables.counts if one.state is State.PARKED):
        yield CheckFinding(
            *("parked", CheckLevel.STOPS, SUBJECT),
            f"{format_plural(parked, 'message')} {'is' if parked == 1 else 'are'} parked",
            "mend why, then take them up again",
            ("backlogctl lookback list --state parked", "backlogctl lookback resume --all"),
        )
    waiting = [one for one in tables.counts if one.state is not State.PARKED and one.messages]
    worst = max(waiting, key=lambda one: one.oldest_seconds or 0.0, default=None)
    if worst is None or not kafka_answers:
        return
    if worst.oldest_seconds is not None and worst.oldest_seconds > late.total_seconds():
        yield CheckFinding(
            *("late", CheckLevel.STOPS, SUBJECT),
            f"{format_plural(worst.messages, 'message')} {worst.state}, the oldest for "
            f"{format_duration(worst.oldest_seconds)}, and Kafka answers: the service does not "
            "run, or what it asks does not answer",
            *("", (f"backlogctl lookback list --state {worst.state}", *_RUN)),
        )


@CheckScope.DELIVERY.check(
    "look-back-service",
    "Services that look-back asks",
    "Of an application that falls silent only its service knows what became of a transaction.",
    "Its name is resolved and compared with the addresses that may be asked; nobody is asked.",
)
def judge_service(name: str, service: ServiceSettings) -> Iterator[CheckFinding]:
    """Whether it may be asked: its name resolves, and to where it may."""
    if problem := _resolve(service):
        yield CheckFinding(
            *("look-back-service", CheckLevel.STOPS, f"service {name}"),
            f"it cannot be asked at {service.address[0]}: {problem}",
            f"mend its name, or list where it may be under `look_back.services.{name}.networks`",
        )
