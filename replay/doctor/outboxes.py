"""Outboxes: the table, who sends, and what a rebuild from it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from backlogctl.clock import Deadline
from backlogctl.config import Config, OutboxSection, Stream
from backlogctl.formats import format_duration, format_plural
from backlogctl.kafka.clients import connect
from backlogctl.monitoring.doctor.checks import (
    CheckFinding,
    CheckLevel,
    CheckScope,
    UnreadablePart,
    read_part,
)
from backlogctl.monitoring.doctor.facts import Topic, read_topic
from backlogctl.replay.observe.deliveries import opened_outbox, within

if TYPE_CHECKING:
    from backlogctl_delivery.outbox.admin import OutboxStatus
    from backlogctl_delivery.outbox.database import Shape

_SECONDS = 30.0


def judge_outbox(config: Config, name: str, *, kafka_answers: bool) -> Iterator[CheckFinding]:
    """Its table, what waits in it, and the streams that are rebuilt from it."""
    settings, subject = config.outboxes[name], f"outbox {name}"
    table = read_part(
        f"the table of {subject}",
        lambda: within(_SECONDS, subject, lambda: _read_table(config, name)),
    )
    if isinstance(table, UnreadablePart):
        yield table.to_finding()
    else:
        yield from judge_table(name, table)
        if table.is_there and not table.columns:
            yield from _judge_waiting(config, name, kafka_answers=kafka_answers)
    for stream in config.streams.values():
        if _is_fed(stream, name) and kafka_answers:
            yield from _judge_stream(config, name, settings, stream)


def _judge_waiting(config: Config, name: str, *, kafka_answers: bool) -> Iterator[CheckFinding]:
    subject = f"outbox {name}"
    waiting = read_part(
        f"what waits in {subject}",
        lambda: within(_SECONDS, subject, lambda: _read_status(config, name)),
    )
    if isinstance(waiting, UnreadablePart):
        yield waiting.to_finding()
    else:
        late = config.outboxes[name].late.total_seconds()
        yield from judge_waiting(name, waiting, late, kafka_answers=kafka_answers)


def _judge_stream(
    config: Config, name: str, settings: OutboxSection, stream: Stream
) -> Iterator[CheckFinding]:
    properties = config.cluster_of(stream).client_properties()
    topic = read_part(
        f"settings of topic {stream.topic}",
        lambda: read_topic(connect(properties), properties, stream.topic, Deadline(_SECONDS)),
    )
    if isinstance(topic, UnreadablePart):
        # The stream's own examination says it as well: each once.
        yield topic.to_finding()
    yield from judge_stream(
        name, settings, stream, None if isinstance(topic, UnreadablePart) else topic
    )


def _is_fed(stream: Stream, outbox: str) -> bool:
    from backlogctl_delivery.outbox.database import messages

    source = stream.source
    if source is None or source.database != outbox:
        return False
    return source.table.rpartition(".")[2] == messages.name


def _read_table(config: Config, name: str) -> Shape:
    from backlogctl_delivery.outbox.database import read_shape

    with opened_outbox(config, name) as database:
        return read_shape(database)


def _read_status(config: Config, name: str) -> OutboxStatus:
    from backlogctl_delivery.outbox.admin import OutboxAdmin

    with opened_outbox(config, name) as database:
        return OutboxAdmin(database).read_status()


@CheckScope.DELIVERY.check(
    "outbox-locks",
    "SKIP LOCKED",
    "Senders pass by rows that another one holds; where the database cannot, one sender that "
    "hangs holds up all others.",
    "PostgreSQL, MariaDB from 10.6 and MySQL from 8.0.1 can.",
)
@CheckScope.DELIVERY.check(
    "outbox-table",
    "The table of an outbox",
    "Messages are committed into it and sent from it: where it is missing, or is of another "
    "version, nothing is sent.",
    "Compared with the columns and indexes of this version; indexes by their columns, whatever "
    "they are called.",
)
def judge_table(name: str, table: Shape) -> Iterator[CheckFinding]:
    """Whether it can be sent from, and by several at once."""
    subject = f"outbox {name}"
    create = (f"backlogctl outbox create --outbox {name}",)
    migrate = "run the application's own migrations, or"
    if not table.is_there:
        yield CheckFinding(
            *("outbox-table", CheckLevel.STOPS, subject),
            f"there is no table backlog_outbox in its database ({table.database})",
            *(migrate, create),
        )
    if table.columns:
        yield CheckFinding(
            *("outbox-table", CheckLevel.STOPS, subject),
            "its table is of another version: it has no "
            f"{'column' if len(table.columns) == 1 else 'columns'} " + ", ".join(table.columns),
            "run the application's own migrations; the columns are those of "
            "backlogctl_delivery/outbox/tables.py",
        )
    if table.indexes:
        yield CheckFinding(
            *("outbox-table", CheckLevel.WARNS, subject),
            "its senders and the page read the whole table: "
            f"{'an index is' if len(table.indexes) == 1 else 'indexes are'} missing",
            *("", table.indexes),
        )
    if not table.can_skip_locked:
        is_sqlite = table.database.startswith("SQLite")
        yield CheckFinding(
            *("outbox-locks", CheckLevel.WARNS, subject),
            f"it is in {table.database}, which "
            + ("has one writer at a time" if is_sqlite else "does not know SKIP LOCKED"),
            "PostgreSQL, MariaDB from 10.6 or MySQL from 8.0.1",
        )


@CheckScope.DELIVERY.check(
    "parked",
    "Parked messages",
    "A message that failed as often as it may is tried no more, until somebody takes it up; in "
    "an outbox it holds up its key.",
)
@CheckScope.DELIVERY.check(
    "late",
    "Messages that are late",
    "What was committed is told to nobody until they are sent.",
    "Older than `late`, though Kafka answers. Later messages of a parked one's key wait for "
    "it, and are told with it.",
)
def judge_waiting(
    name: str, status: OutboxStatus, late: float, *, kafka_answers: bool
) -> Iterator[CheckFinding]:
    """Whether it is sent.

    Args:
        late: seconds after which a message that is not sent is late.
        kafka_answers: else that is why nothing is sent, and is said by itself.
    """
    subject, listing = f"outbox {name}", f"backlogctl outbox list --outbox {name}"
    oldest, messages = status.oldest_waiting_seconds, status.waiting
    waiting = (
        f"{format_plural(messages, 'message')} "
        f"{'waits' if messages == 1 else 'wait'}, the oldest for {format_duration(oldest)}"
        if oldest is not None and oldest > late
        else ""
    )
    if status.parked:
        parked = format_plural(status.parked, "message")
        # Those that wait may all be later ones of its key.
        yield CheckFinding(
            *("parked", CheckLevel.STOPS, subject),
            f"{parked} {'is' if status.parked == 1 else 'are'} parked{waiting and f'; {waiting}'}",
            "mend why, then take them up again",
            (f"{listing} --state parked", f"backlogctl outbox retry --outbox {name} --all"),
        )
    elif waiting and kafka_answers:
        yield CheckFinding(
            *("late", CheckLevel.STOPS, subject),
            f"{waiting}, and Kafka answers: nobody sends, or it is refused",
            "look at the last errors; where there are none, keep a sender running",
            (listing, f"backlogctl outbox run --outbox {name}"),
        )


@CheckScope.DELIVERY.check(
    "outbox-stream",
    "A stream and its outbox",
    "A rebuild places each message where it was sent at first: it must know the same cluster "
    "and partitioner as the sender.",
)
@CheckScope.DELIVERY.check(
    "outbox-keep",
    "How long an outbox keeps what was sent",
    "A stream is rebuilt from these rows: those that are deleted before their message expires "
    "cannot bring it back.",
    "Where a stream's source is this outbox: `keep` against the retention of its topic.",
)
def judge_stream(
    outbox: str, settings: OutboxSection, stream: Stream, topic: Topic | None
) -> Iterator[CheckFinding]:
    """Whether a rebuild of the stream would have the rows, and would place them as they were sent.

    Args:
        topic: None where it could not be read.
    """
    wrong = [
        f"{key} {theirs}, and the outbox {ours}"
        for key, theirs, ours in (
            ("cluster", stream.cluster, settings.cluster),
            ("partitioner", stream.partitioner, settings.partitioner),
        )
        if theirs != ours
    ]
    if wrong:
        yield CheckFinding(
            *("outbox-stream", CheckLevel.STOPS, f"stream {stream.name}"),
            f"it is rebuilt from outbox {outbox} and has {'; '.join(wrong)}",
            f"say the same under `streams.{stream.name}` and `outboxes.{outbox}`",
        )
    keep = None if topic is None else topic.read_number("retention.ms")
    if settings.keep is None or topic is None or keep is None or keep < 0:
        return
    if settings.keep.total_seconds() * 1000 <= keep:
        yield CheckFinding(
            *("outbox-keep", CheckLevel.LOSES, f"outbox {outbox}"),
            f"what was sent is deleted after {format_duration(settings.keep.total_seconds())}, "
            f"and {topic.subject} of stream {stream.name} keeps it for "
            f"{format_duration(keep / 1000)}: when a message expires unread, its row is gone",
            f"make `outboxes.{outbox}.keep` longer than that, and than the time in which a loss is "
            "found and rebuilt",
        )
