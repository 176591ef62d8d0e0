"""Reads look-back: its tables, its topic and the names of its services; and judges it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from backlog.clock import Deadline
from backlog.config import Config, LookBack
from backlog.errors import Refused
from backlog.kafka.calls import connect
from backlog.kafka.clients import find_addresses
from backlog.kafka.errors import TopicMissing
from backlogctl_delivery.lookback.settings import ServiceSettings
from monitoring.doctor.facts import read_topic
from monitoring.doctor.finding import Finding, Unread, read_part
from monitoring.doctor.look_back import (
    SUBJECT,
    AskedService,
    LookBackTables,
    Stuck,
    judge_services,
    judge_stuck,
    judge_tables,
    judge_topic,
)
from replay.around.deliveries import opened_look_back, within

_SECONDS = 30.0
_RESOLVE_SECONDS = 5.0


def judge_look_back(
    config: Config, settings: LookBack, *, kafka_answers: bool
) -> Iterator[Finding]:
    """Its tables, what waits in them, its services, and where Kafka answers its topic."""
    if kafka_answers:
        yield from _judge_topic(config, settings)
    tables = read_part(
        "the tables of look-back", lambda: within(_SECONDS, SUBJECT, lambda: _read(config))
    )
    if isinstance(tables, Unread):
        yield tables.to_finding()
    else:
        found, stuck = tables
        yield from judge_tables(found)
        if stuck is not None:
            yield from judge_stuck(stuck, settings.late, kafka_answers=kafka_answers)
    services = settings.to_settings().services
    yield from judge_services(tuple(_look_up(*one) for one in sorted(services.items())))


def _judge_topic(config: Config, settings: LookBack) -> Iterator[Finding]:
    properties = config.clusters[settings.cluster].client_properties()
    topic = read_part(
        f"settings of topic {settings.topic}",
        lambda: read_topic(connect(properties), properties, settings.topic, Deadline(_SECONDS)),
    )
    if isinstance(topic, Unread) and not isinstance(topic.error, TopicMissing):
        yield topic.to_finding()
        return
    yield from judge_topic(
        None if isinstance(topic, Unread) else topic,
        *(settings.topic, find_addresses(properties), settings.keep),
        config.watch.horizon,
    )


def _read(config: Config) -> tuple[LookBackTables, Stuck | None]:
    from backlogctl_delivery.lookback.admin import count_messages
    from backlogctl_delivery.lookback.messages import State
    from backlogctl_delivery.lookback.tables import has_tables, list_partitions

    with opened_look_back(config) as database:
        with database.read() as connection:
            today = database.now(connection).date()
            is_sqlite, are_there = database.is_sqlite, has_tables(connection)
            days = () if is_sqlite or not are_there else tuple(list_partitions(connection))
        tables = LookBackTables(are_there, is_sqlite, today, days)
        if not are_there:
            return tables, None
        counts = count_messages(database)
    parked = sum(one.messages for one in counts if one.state is State.PARKED)
    waiting = [one for one in counts if one.state is not State.PARKED and one.messages]
    worst = max(waiting, key=lambda one: one.oldest_seconds or 0.0, default=None)
    if worst is None:
        return tables, Stuck(parked)
    return tables, Stuck(parked, str(worst.state), worst.messages, worst.oldest_seconds)


def _look_up(name: str, service: ServiceSettings) -> AskedService:
    """Its name only: nobody is asked."""
    from backlogctl_delivery.lookback.checkers import Resolver

    host, port = service.address
    resolver = Resolver(host, port, service.networks, threads=1)

    async def resolve() -> None:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            await resolver.resolve()

    try:
        asyncio.run(resolve())
        problem = ""
    except TimeoutError:
        problem = f"its name was not resolved in {_RESOLVE_SECONDS:g} s"
    except Refused as error:
        problem = error.message
    except OSError:
        problem = "its name does not resolve here"
    finally:
        resolver.close()
    return AskedService(name, host, problem)
