"""A recovery's record: append-only, hash-chained lines of who did what and when."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from backlog.clock import format_time
from backlog.ledger.database import Manager
from backlog.ledger.models import events, read_values, recoveries
from backlog.ledger.owners import Owner
from backlog.ledger.recovery_rows import get_recovery_row, refuse_lost_lease
from backlog.values import Event
from backlogctl_delivery.database import encode_json

GENESIS = "0" * 64
_HEAD = (recoveries.c.events_length, recoveries.c.events_head)


class Events(Manager):
    def append(
        self,
        recovery_id: str,
        actor: str,
        action: str,
        detail: Mapping[str, Any] | None = None,
        *,
        owner: Owner | None = None,
    ) -> Event:
        """Adds a line at the end of the recovery's record.

        Args:
            owner: whose lease it must be still, decided in the same transaction.

        Raises:
            LeaseHeld: the lease is no longer the owner's; nothing was added.
            UsageError: there is no such recovery.
        """
        with self._database.write() as connection:
            now = self._database.now(connection)
            # It locks the recovery's row; who has no lease has added nothing.
            line = append_event(connection, recovery_id, now, actor, action, detail or {})
            if owner is not None:
                refuse_lost_lease(get_recovery_row(connection, recovery_id), owner)
            return line

    def list(self, recovery_id: str) -> tuple[Event, ...]:
        """The record, oldest line first."""
        with self._database.read() as connection:
            return _read_events(connection, recovery_id)

    def verify_chain(self, recovery_id: str) -> bool:
        """Whether no line was altered, removed, added or moved since it was written."""
        return self.find_break(recovery_id) is None

    def find_break(self, recovery_id: str) -> str | None:
        """What is wrong with the record, one sentence; None for a whole one.

        A cut tail is found by the length and last hash that the recovery's own row keeps.

        Raises:
            UsageError: there is no such recovery.
        """
        with self._database.read() as connection:
            head = get_recovery_row(connection, recovery_id, *_HEAD, lock=True)
            lines = _read_events(connection, recovery_id)
        previous = GENESIS
        for expected, line in enumerate(lines, start=1):
            if line.sequence != expected:
                return f"event {expected} is missing"
            if line.previous_hash != previous:
                return f"event {expected} does not follow the one before it"
            if line.hash != hash_event(line):
                return f"event {expected} was altered"
            previous = line.hash
        if len(lines) != head["events_length"]:
            return f"{head['events_length']} events were written, {len(lines)} are there"
        if previous != head["events_head"]:
            return "the last event is not the one that was written last"
        return None


def hash_event(event: Event) -> str:
    """sha256 over the canonical JSON of a line and the hash of the line before it."""
    line = {
        "recovery": event.recovery_id,
        "sequence": event.sequence,
        "at": format_time(event.at),
        "actor": event.actor,
        "action": event.action,
        "detail": event.detail,
        "previous": event.previous_hash,
    }
    return hashlib.sha256(encode_json(line).encode()).hexdigest()


def append_event(
    connection: Connection,
    recovery_id: str,
    at: datetime,
    actor: str,
    action: str,
    detail: Mapping[str, Any],
) -> Event:
    """Adds a line inside a transaction; the recovery's row is locked, so lines do not fork."""
    head = get_recovery_row(connection, recovery_id, *_HEAD, lock=True)
    sequence = int(head["events_length"]) + 1
    line = Event(recovery_id, sequence, at, actor, action, dict(detail), head["events_head"], "")
    line = replace(line, hash=hash_event(line))
    connection.execute(insert(events).values(**asdict(line)))
    connection.execute(
        update(recoveries)
        .where(recoveries.c.id == recovery_id)
        .values(events_head=line.hash, events_length=sequence)
    )
    return line


def _read_events(connection: Connection, recovery_id: str) -> tuple[Event, ...]:
    query = select(events).where(events.c.recovery_id == recovery_id).order_by(events.c.sequence)
    return read_values(connection, query, Event)
