"""What audits found. Revision 0007."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backlog.ledger.migrations.building import refuse_downgrade

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "backlog_audits",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("audit", sa.String(16), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("missing", sa.BigInteger, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_index("backlog_audits_by_stream", "backlog_audits", ["stream", "audit", "id"])


downgrade = refuse_downgrade
