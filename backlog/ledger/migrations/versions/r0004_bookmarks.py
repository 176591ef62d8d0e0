"""Bookmarks: which message a committed offset pointed at. Revision 0004."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backlog.ledger.migrations.building import refuse_downgrade

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "backlog_bookmarks",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("stream", "group_id", "topic_id")),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("committed", sa.BigInteger, nullable=False),
        sa.Column("at_offset", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String(32), nullable=False),
        sa.Column("noted_at", TIME, nullable=False),
    )
    op.create_index(
        "backlog_bookmarks_one_per_commit",
        "backlog_bookmarks",
        ["stream", "group_id", "topic_id", "partition", "committed"],
        unique=True,
    )


downgrade = refuse_downgrade
