"""Sequences of messages that never reached their topic. Revision 0008."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backlog.ledger.migrations.building import refuse_downgrade

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Widens the gaps."""
    op.add_column("backlog_gaps", sa.Column("producer", sa.Text))
    for name in ("epoch", "first_sequence", "last_sequence"):
        op.add_column("backlog_gaps", sa.Column(name, sa.BigInteger))


downgrade = refuse_downgrade
