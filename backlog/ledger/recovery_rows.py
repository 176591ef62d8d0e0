"""Rows of recoveries: read, turned into values, and what is refused by what they hold."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NoReturn

from sqlalchemy import ColumnElement, Connection, select
from sqlalchemy.engine import RowMapping

from backlog.clock import format_time
from backlog.errors import ApprovalNeeded, InvalidTransition, LeaseHeld, UsageError
from backlog.ledger.models import make_value, recoveries, runner
from backlog.ledger.owners import Owner
from backlog.values import Recovery, RecoveryState


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
