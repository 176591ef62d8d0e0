"""Holds: whether the broker has what was raised, when somebody last looked. Revision 0005."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backlog.ledger.migrations.building import refuse_downgrade

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of holds from before nobody knows, until the next look."""
    op.add_column("backlog_holds", sa.Column("in_force", sa.Boolean))


downgrade = refuse_downgrade
