"""Reads an outbox of the configuration, and judges it."""

from __future__ import annotations

from collections.abc import Iterator

from backlog.clock import Deadline
from backlog.config import Config, Stream
from backlog.kafka.calls import connect
from monitoring.doctor.facts import read_topic
from monitoring.doctor.finding import Finding, Unread, read_part
from monitoring.doctor.outboxes import (
    FedStream,
    OutboxTable,
    OutboxTerms,
    Waiting,
    judge_streams,
    judge_table,
    judge_waiting,
)
from replay.around.deliveries import opened_outbox, within

_SECONDS = 30.0


def judge_outbox(config: Config, name: str, *, kafka_answers: bool) -> Iterator[Finding]:
    """Its table, what waits in it, and the streams that are rebuilt from it."""
    settings = config.outboxes[name]
    terms = OutboxTerms(name, settings.cluster, settings.partitioner, settings.late, settings.keep)
    table = read_part(
        f"the table of {terms.subject}",
        lambda: within(_SECONDS, terms.subject, lambda: _read_table(config, name)),
    )
    if isinstance(table, Unread):
        yield table.to_finding()
    else:
        yield from judge_table(terms, table)
        if table.is_there and not table.missing_columns:
            yield from _judge_waiting(config, terms, kafka_answers=kafka_answers)
    for stream in config.streams.values():
        if _is_fed(stream, name) and kafka_answers:
            yield from _judge_stream(config, terms, stream)


def _judge_waiting(config: Config, terms: OutboxTerms, *, kafka_answers: bool) -> Iterator[Finding]:
    waiting = read_part(
        f"what waits in {terms.subject}",
        lambda: within(_SECONDS, terms.subject, lambda: _read_waiting(config, terms.name)),
    )
    if isinstance(waiting, Unread):
        yield waiting.to_finding()
    else:
        yield from judge_waiting(terms, waiting, kafka_answers=kafka_answers)


def _judge_stream(config: Config, terms: OutboxTerms, stream: Stream) -> Iterator[Finding]:
    properties = config.cluster_of(stream).client_properties()
    topic = read_part(
        f"settings of topic {stream.topic}",
        lambda: read_topic(connect(properties), properties, stream.topic, Deadline(_SECONDS)),
    )
    if isinstance(topic, Unread):
        # The stream's own examination says it as well: each once.
        yield topic.to_finding()
    known = None if isinstance(topic, Unread) else topic
    fed = FedStream(stream.name, stream.cluster, stream.partitioner, known)
    yield from judge_streams(terms, (fed,))


def _is_fed(stream: Stream, outbox: str) -> bool:
    from backlogctl_delivery.outbox.database import messages

    source = stream.source
    if source is None or source.database != outbox:
        return False
    return source.table.rpartition(".")[2] == messages.name


def _read_table(config: Config, name: str) -> OutboxTable:
    from backlogctl_delivery.outbox.database import read_shape

    with opened_outbox(config, name) as database:
        shape = read_shape(database)
    return OutboxTable(
        shape.is_there, shape.columns, shape.indexes, shape.database, shape.can_skip_locked
    )


def _read_waiting(config: Config, name: str) -> Waiting:
    from backlogctl_delivery.outbox.admin import OutboxAdmin

    with opened_outbox(config, name) as database:
        status = OutboxAdmin(database).read_status()
    return Waiting(status.waiting, status.parked, status.oldest_waiting_seconds)
