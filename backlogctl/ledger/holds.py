"""Holds: raised retentions, and what each topic had before, so that it can be given back.

All open holds of a topic share `old` and `raised`: the topic has one value, and each holder a
reason to keep it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert, select, update
from sqlalchemy.engine import RowMapping

from backlogctl.errors import Refused, UsageError
from backlogctl.ledger.schema import (
    Manager,
    make_unique,
    make_value,
    read_value,
    read_values,
    table_of,
    take_id,
)

OPERATOR = "operator"
UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Hold:
    """A raised retention of a topic.

    `holder` is "operator" or a recovery's id. `old` has None where the topic itself did not set
    the value. `earlier` are the values that the topic may still have of a raise before `raised`.
    Without `until` only its holder gives it back. `in_force` says whether the broker had what was
    raised when somebody last looked; None: nobody has.
    """

    id: str
    cluster: str
    topic: str
    topic_id: str
    stream: str
    holder: str
    old: Mapping[str, str | None]
    raised: Mapping[str, str]
    earlier: Mapping[str, tuple[str, ...]]
    until: datetime | None
    created_at: datetime
    released_at: datetime | None
    actor: str
    in_force: bool | None = None

    @property
    def state(self) -> str:
        """What people are told of it."""
        if self.released_at is not None:
            return "released"
        words = {True: "in force", False: "not in force", None: "unknown"}
        return words[self.in_force]


holds = table_of(
    "backlog_holds",
    Hold,
    make_unique(
        *("backlog_holds_one_per_holder", "cluster", "topic", "topic_id", "holder"),
        where="released_at IS NULL",
    ),
    key=("id",),
)


class Holds(Manager):
    def begin(
        self,
        *,
        stream: str,
        cluster: str,
        topic: str,
        topic_id: str,
        holder: str,
        old: Mapping[str, str | None],
        raised: Mapping[str, str],
        until: datetime | None,
        actor: str,
        seen: Iterable[str] | None = None,
    ) -> Hold:
        """Remembers what a topic has and will be raised to; called before Kafka is changed.

        Where the topic is held already, `old` is that of the open holds, and no value gets lower.
        An open hold of the same holder is kept: its `until` is moved.

        Args:
            seen: ids of the topic's open holds when `old` was read; None does not compare.

        Raises:
            Refused: a hold came or went since (retryable: read again).
        """
        with self._database.write() as connection:
            self._database.lock_name(connection, f"hold:{cluster}:{topic}")
            now = self._database.now(connection)
            others = _read_open(connection, cluster, topic, topic_id)
            if seen is not None and {hold.id for hold in others} != set(seen):
                raise Refused(
                    "a hold of it began or ended while its settings were read",
                    subject=f"topic {topic}",
                    hint="try again",
                    retryable=True,
                )
            merged = _merge(others, old, raised)
            mine = next((hold for hold in others if hold.holder == holder), None)
            if mine is None:
                hold_id = take_id(connection, "h", now)
                connection.execute(
                    insert(holds).values(
                        id=hold_id,
                        cluster=cluster,
                        topic=topic,
                        topic_id=topic_id,
                        stream=stream,
                        holder=holder,
                        until=until,
                        created_at=now,
                        actor=actor,
                        **merged,
                    )
                )
            else:
                hold_id = mine.id
                connection.execute(update(holds).where(holds.c.id == hold_id).values(until=until))
            connection.execute(
                update(holds).where(_is_open(cluster, topic, topic_id)).values(**merged)
            )
            return _read(connection, hold_id)

    def get(self, hold_id: str) -> Hold:
        """One hold.

        Raises:
            UsageError: there is no such hold.
        """
        with self._database.read() as connection:
            return _read(connection, hold_id)

    def list(
        self, open_only: bool = True, stream: str | None = None, holder: str | None = None
    ) -> tuple[Hold, ...]:
        """Holds, oldest first."""
        query = select(holds).order_by(holds.c.created_at, holds.c.id)
        if open_only:
            query = query.where(holds.c.released_at.is_(None))
        if stream is not None:
            query = query.where(holds.c.stream == stream)
        if holder is not None:
            query = query.where(holds.c.holder == holder)
        return self._list(query, _to_hold)

    def list_of_topic(self, cluster: str, topic: str, topic_id: str) -> tuple[Hold, ...]:
        """The open holds of one topic, whoever holds it, oldest first."""
        with self._database.read() as connection:
            return _read_open(connection, cluster, topic, topic_id)

    def due(self, now: datetime) -> tuple[Hold, ...]:
        """Open holds whose time is over, oldest first."""
        return tuple(hold for hold in self.list() if hold.until is not None and hold.until <= now)

    def release(self, hold_id: str) -> Hold:
        """Marks a hold released, once; called after Kafka was given back.

        Raises:
            UsageError: there is no such hold.
        """
        with self._database.write() as connection:
            hold = _read(connection, hold_id)
            self._database.lock_name(connection, f"hold:{hold.cluster}:{hold.topic}")
            connection.execute(
                update(holds)
                .where(holds.c.id == hold_id, holds.c.released_at.is_(None))
                .values(released_at=self._database.now(connection))
            )
            return _read(connection, hold_id)

    def note_in_force(self, hold_id: str, in_force: bool) -> None:
        """What the broker was seen to have."""
        with self._database.write() as connection:
            connection.execute(update(holds).where(holds.c.id == hold_id).values(in_force=in_force))

    def release_shared(self, hold_id: str) -> bool:
        """Marks a hold released where others hold the topic too, in one transaction.

        Of two that end at once, so, the second finds itself alone and gives Kafka back.

        Returns:
            Whether it is released now; False: it is the topic's last one.
        """
        with self._database.write() as connection:
            hold = _read(connection, hold_id)
            self._database.lock_name(connection, f"hold:{hold.cluster}:{hold.topic}")
            alone = len(_read_open(connection, hold.cluster, hold.topic, hold.topic_id)) < 2
            if alone and _read(connection, hold_id).released_at is None:
                return False
            connection.execute(
                update(holds)
                .where(holds.c.id == hold_id, holds.c.released_at.is_(None))
                .values(released_at=self._database.now(connection))
            )
            return True


def keeps_longer(value: str, other: str) -> bool:
    """Whether a retention keeps more than another; -1 keeps everything."""
    mine, theirs = int(value), int(other)
    return theirs != UNLIMITED and (mine == UNLIMITED or mine > theirs)


def _merge(
    others: Iterable[Hold], old: Mapping[str, str | None], raised: Mapping[str, str]
) -> dict[str, Any]:
    merged_old, merged_raised = dict(old), dict(raised)
    earlier: dict[str, list[str]] = {}
    for hold in others:
        merged_old.update(hold.old)
        for name, values in hold.earlier.items():
            earlier.setdefault(name, []).extend(values)
        for name, value in hold.raised.items():
            mine = merged_raised.setdefault(name, value)
            if keeps_longer(value, mine):
                merged_raised[name] = value
            elif mine != value:
                earlier.setdefault(name, []).append(value)
    unique = {name: sorted(set(values)) for name, values in earlier.items()}
    return {"old": merged_old, "raised": merged_raised, "earlier": unique}


def _is_open(cluster: str, topic: str, topic_id: str) -> ColumnElement[bool]:
    return (
        (holds.c.cluster == cluster)
        & (holds.c.topic == topic)
        & (holds.c.topic_id == topic_id)
        & holds.c.released_at.is_(None)
    )


def _read_open(connection: Connection, cluster: str, topic: str, topic_id: str) -> tuple[Hold, ...]:
    query = select(holds).where(_is_open(cluster, topic, topic_id))
    return read_values(connection, query.order_by(holds.c.created_at, holds.c.id), _to_hold)


def _read(connection: Connection, hold_id: str) -> Hold:
    hold = read_value(connection, select(holds).where(holds.c.id == hold_id), _to_hold)
    if hold is None:
        raise UsageError("there is no such hold", subject=f"hold {hold_id}")
    return hold


def _to_hold(row: RowMapping) -> Hold:
    earlier = {name: tuple(values) for name, values in row["earlier"].items()}
    return make_value(row, Hold, earlier=earlier)
