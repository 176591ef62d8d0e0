"""What several migrations do in the same way."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backlog.errors import Refused


def refuse_downgrade() -> None:
    """Never: the events are append-only.

    Raises:
        Refused: always.
    """
    raise Refused(
        "a ledger is never taken back: its events are append-only",
        subject="ledger",
        hint="restore a backup into a database of its own",
    )


def recovery_key() -> sa.Column[str]:
    """A table's key, or its first part: the recovery."""
    return sa.Column(
        "recovery_id", sa.String(32), sa.ForeignKey("backlog_recoveries.id"), primary_key=True
    )


def make_active_indexes(where: str, *, again: bool = False) -> None:
    """One active recovery of a topic, and of a group; `again` where there are such indexes."""
    for name, column in (("topic", "topic"), ("group", "group_id")):
        if again:
            op.drop_index(f"backlog_one_active_per_{name}", "backlog_recoveries")
        op.create_index(
            f"backlog_one_active_per_{name}",
            "backlog_recoveries",
            ["cluster", column],
            unique=True,
            sqlite_where=sa.text(where),
            postgresql_where=sa.text(where),
        )
