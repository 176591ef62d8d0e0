"""Temporary topics: the only record of which topics are ours to delete."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, select, update

from backlogctl.errors import Refused, UsageError
from backlogctl.ledger.schema import Manager, read_value, table_of


@dataclass(frozen=True, slots=True)
class TemporaryTopic:
    """A topic that a recovery makes; `topic_id` is None until it is known to be there."""

    recovery_id: str
    cluster: str
    name: str
    topic_id: str | None
    partitions: int
    created_at: datetime
    deleted_at: datetime | None


temporary_topics = table_of("backlog_temporary_topics", TemporaryTopic, key=("recovery_id",))


class TemporaryTopics(Manager):
    def announce(
        self, recovery_id: str, cluster: str, name: str, partitions: int
    ) -> TemporaryTopic:
        """Writes down which topic will be created, before it is; the same again changes nothing.

        Raises:
            Refused: the recovery has announced another topic.
        """
        with self._database.write() as connection:
            self._database.lock_name(connection, f"temporary:{recovery_id}")
            known = _find(connection, recovery_id)
            if known is None:
                connection.execute(
                    insert(temporary_topics).values(
                        recovery_id=recovery_id,
                        cluster=cluster,
                        name=name,
                        partitions=partitions,
                        created_at=self._database.now(connection),
                    )
                )
                return _read(connection, recovery_id)
        if (known.cluster, known.name, known.partitions) != (cluster, name, partitions):
            raise Refused(
                f"its temporary topic is {known.name} with {known.partitions} partitions on "
                f"{known.cluster}, not {name} with {partitions} on {cluster}",
                subject=f"recovery {recovery_id}",
            )
        return known

    def record_id(self, recovery_id: str, topic_id: str) -> TemporaryTopic:
        """Writes down the id of the topic that was created; once.

        Raises:
            Refused: another id is on record.
            UsageError: no topic was announced.
        """
        with self._database.write() as connection:
            self._database.lock_name(connection, f"temporary:{recovery_id}")
            known = _read(connection, recovery_id)
            if known.topic_id is None:
                _change(connection, recovery_id, topic_id=topic_id)
                return _read(connection, recovery_id)
        if known.topic_id != topic_id:
            raise Refused(
                f"the topic of this name has id {topic_id}, the one we made has {known.topic_id}",
                subject=f"topic {known.name}",
                hint="somebody deleted ours and made another: cancel the recovery",
            )
        return known

    def mark_deleted(self, recovery_id: str) -> TemporaryTopic:
        """Writes down that the topic is gone; once.

        Raises:
            UsageError: no topic was announced.
        """
        with self._database.write() as connection:
            self._database.lock_name(connection, f"temporary:{recovery_id}")
            if _read(connection, recovery_id).deleted_at is None:
                _change(connection, recovery_id, deleted_at=self._database.now(connection))
            return _read(connection, recovery_id)

    def get(self, recovery_id: str) -> TemporaryTopic | None:
        """The recovery's temporary topic; None where none was announced."""
        with self._database.read() as connection:
            return _find(connection, recovery_id)


def _find(connection: Connection, recovery_id: str) -> TemporaryTopic | None:
    query = select(temporary_topics).where(temporary_topics.c.recovery_id == recovery_id)
    return read_value(connection, query, TemporaryTopic)


def _read(connection: Connection, recovery_id: str) -> TemporaryTopic:
    topic = _find(connection, recovery_id)
    if topic is None:
        raise UsageError("no temporary topic was announced", subject=f"recovery {recovery_id}")
    return topic


def _change(connection: Connection, recovery_id: str, **values: object) -> None:
    connection.execute(
        update(temporary_topics)
        .where(temporary_topics.c.recovery_id == recovery_id)
        .values(**values)
    )
