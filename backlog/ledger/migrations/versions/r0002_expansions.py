"""Expansions: steps, temporary topics, holds of the retention, the burn-down.

Revision 0002. A failed recovery of a kind other than `rebuild` counts as active from here on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backlog.ledger.migrations.building import make_active_indexes, recovery_key, refuse_downgrade

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ACTIVE = "state IN ('approved', 'running', 'paused') OR (state = 'failed' AND kind <> 'rebuild')"
OPEN = "released_at IS NULL"


def upgrade() -> None:
    """Widens the two unique indexes and makes the new tables."""
    make_active_indexes(ACTIVE, again=True)
    _make_step_tables()
    _make_holds()


downgrade = refuse_downgrade


def _make_step_tables() -> None:
    op.create_table(
        "backlog_steps",
        recovery_key(),
        sa.Column("step", sa.String(64), primary_key=True),
        sa.Column("first_started_at", TIME, nullable=False),
        sa.Column("last_started_at", TIME, nullable=False),
        sa.Column("completed_at", TIME),
        sa.Column("rolled_back_at", TIME),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
    op.create_table(
        "backlog_temporary_topics",
        recovery_key(),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("topic_id", sa.Text),
        sa.Column("partitions", sa.Integer, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("deleted_at", TIME),
    )
    op.create_table(
        "backlog_burndown",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        sa.Column(
            "recovery_id", sa.String(32), sa.ForeignKey("backlog_recoveries.id"), nullable=False
        ),
        sa.Column("at", TIME, nullable=False),
        sa.Column("step", sa.String(64), nullable=False),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("source_lag", "temporary_lag", "relayed", "handled")
        ),
        sa.Column("consumers", sa.Integer),
    )
    op.create_index("backlog_burndown_by_time", "backlog_burndown", ["recovery_id", "at"])


def _make_holds() -> None:
    op.create_table(
        "backlog_holds",
        sa.Column("id", sa.String(32), primary_key=True),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in (
                *("cluster", "topic", "topic_id", "stream", "holder"),
                *("old", "raised", "earlier"),
            )
        ),
        sa.Column("until", TIME),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("released_at", TIME),
        sa.Column("actor", sa.Text, nullable=False),
    )
    op.create_index(
        "backlog_holds_one_per_holder",
        "backlog_holds",
        ["cluster", "topic", "topic_id", "holder"],
        unique=True,
        sqlite_where=sa.text(OPEN),
        postgresql_where=sa.text(OPEN),
    )
