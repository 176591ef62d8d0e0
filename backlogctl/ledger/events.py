"""A recovery's record: append-only, hash-chained lines of who did what and when."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from sqlalchemy import ColumnElement, Connection, insert, select, update
from sqlalchemy.engine import RowMapping

from backlogctl.clock import format_time
from backlogctl.errors import ApprovalNeeded, InvalidTransition, LeaseHeld, UsageError
from backlogctl.ledger.schema import Manager, events, make_value, read_values, recoveries, runner
from backlogctl.values import LedgerEvent, Recovery, RecoveryState
from backlogctl_delivery.database import encode_json

# Who holds a lease: a process that can be told from a later one with the same pid.

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Owner:
    """A holder of a lease.

    `started` is `<boot id>/<pid namespace>/<start ticks>` from /proc, or `unknown` where there is
    no /proc. `token` tells two holders in one process apart.
    """

    host: str
    pid: int
    started: str
    token: str = ""

    @classmethod
    def current(cls) -> Owner:
        """This process, as a new holder."""
        pid = os.getpid()
        place, ticks = _read_place(), _read_ticks(pid)
        started = f"{place}/{ticks}" if place and ticks else UNKNOWN
        return cls(socket.gethostname(), pid, started, uuid.uuid4().hex)

    def is_dead(self) -> bool:
        """Whether the process is certainly gone; False where this cannot be known from here.

        Only asked of processes of this boot and pid namespace: two containers may have the same
        host name, and a pid means nothing in another one.
        """
        place, _, ticks = self.started.rpartition("/")
        if self.host != socket.gethostname() or not place or place != _read_place():
            return False
        return _read_ticks(self.pid) != ticks

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


def _read_place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _read_ticks(pid: int) -> str:
    """The start time of a living process in clock ticks since boot; empty for a dead one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The second field is the command in brackets, and may itself hold brackets and blanks.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


# Rows of recoveries: read, turned into values, and what is refused by what they hold.


def get_recovery_row(
    connection: Connection, recovery_id: str, *columns: ColumnElement[Any], lock: bool = False
) -> RowMapping:
    """The row of a recovery, or these columns of it: plans are large.

    Raises:
        UsageError: there is no such recovery.
    """
    query = select(*(columns or (recoveries, runner))).where(recoveries.c.id == recovery_id)
    row = connection.execute(query.with_for_update() if lock else query).mappings().first()
    if row is None:
        raise UsageError(
            "there is no such recovery",
            subject=f"recovery {recovery_id}",
            hint="`backlogctl recoveries` lists them",
        )
    return row


def get_recovery(connection: Connection, recovery_id: str) -> Recovery:
    """A recovery.

    Raises:
        UsageError: there is no such recovery.
    """
    return make_value(get_recovery_row(connection, recovery_id), Recovery)


def refuse_transition(row: RowMapping, to: RecoveryState) -> NoReturn:
    """Raises InvalidTransition: this change of state is not allowed."""
    by = f" (approved by {row['approved_by']})" if row["state"] == "approved" else ""
    raise InvalidTransition(
        f"it is {row['state']}{by} and cannot become {to}",
        subject=f"recovery {row['id']}",
        hint=f"`backlogctl show {row['id']}` shows what happened",
    )


def refuse_expired(row: RowMapping, now: datetime) -> None:
    """Raises ApprovalNeeded where the approval expired before the first run."""
    if row["approval_expires_at"] <= now:
        raise ApprovalNeeded(
            f"its approval by {row['approved_by']} expired at"
            f" {format_time(row['approval_expires_at'])}",
            subject=f"recovery {row['id']}",
            hint=f"`backlogctl approve {row['id']} --by NAME`",
        )


def refuse_lost_lease(row: RowMapping, owner: Owner) -> None:
    """Raises LeaseHeld where the lease is no longer the owner's; an expired one still is."""
    held = (row["lease_host"], row["lease_pid"], row["lease_started"], row["lease_token"])
    if held == (owner.host, owner.pid, owner.started, owner.token):
        return
    if row["lease_host"] is None:
        message = "its lease was given up or lost, so its state is not changed from here"
    else:
        message = f"{row['lease_host']}:{row['lease_pid']} took it over; its state is theirs now"
    raise LeaseHeld(
        message,
        subject=f"recovery {row['id']}",
        hint=f"`backlogctl show {row['id']}` shows who works on it",
    )


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
    ) -> LedgerEvent:
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

    def list(self, recovery_id: str) -> tuple[LedgerEvent, ...]:
        """The record, oldest line first."""
        with self._database.read() as connection:
            return _read_events(connection, recovery_id)

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


def hash_event(event: LedgerEvent) -> str:
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
) -> LedgerEvent:
    """Adds a line inside a transaction; the recovery's row is locked, so lines do not fork."""
    head = get_recovery_row(connection, recovery_id, *_HEAD, lock=True)
    sequence = int(head["events_length"]) + 1
    line = LedgerEvent(
        recovery_id, sequence, at, actor, action, dict(detail), head["events_head"], ""
    )
    line = replace(line, hash=hash_event(line))
    connection.execute(insert(events).values(**asdict(line)))
    connection.execute(
        update(recoveries)
        .where(recoveries.c.id == recovery_id)
        .values(events_head=line.hash, events_length=sequence)
    )
    return line


def _read_events(connection: Connection, recovery_id: str) -> tuple[LedgerEvent, ...]:
    query = select(events).where(events.c.recovery_id == recovery_id).order_by(events.c.sequence)
    return read_values(connection, query, LedgerEvent)
