"""Archives, the gaps whose messages lie in one, and readings of the brokers' disks. Revision 0006.

Such a gap waits as `staged` for a recovery that puts it back, and waits there again where that
recovery is cancelled. What an offload discards may start where a gap that is over does.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backlog.ledger.migrations.building import recovery_key, refuse_downgrade

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
MOVES = {"staged": "planned waived", "injected": "staged"}
STARTS = "backlog_gaps_one_per_start"
LIVE = "end_offset IS NOT NULL AND state NOT IN ('waived', 'verified')"
GUARD = "backlog_gaps_archived"
REFUSAL = "backlog refuses: only a gap with an archive waits in it"
WRONG = (
    "OLD.archive IS NULL AND ("
    + " OR ".join(
        f"(OLD.state = '{before}' AND NEW.state = '{after}')"
        for before, afters in MOVES.items()
        for after in afters.split()
    )
    + ")"
)


def upgrade() -> None:
    """Makes the table, widens the gaps, and allows the moves of a gap with an archive."""
    op.create_table(
        "backlog_archives",
        recovery_key(),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("stream", "cluster", "topic", "topic_id", "location")
        ),
        sa.Column("manifest_sha256", sa.String(64), nullable=False),
        sa.Column("messages", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        # [[partition, start, end, messages, first time or null, last time or null], ...]
        sa.Column("ranges", sa.Text, nullable=False),
        sa.Column("made_at", TIME, nullable=False),
        sa.Column("purged_at", TIME),
        sa.Column("purged_by", sa.Text),
    )
    op.add_column("backlog_gaps", sa.Column("archive", sa.String(32)))
    op.create_table(
        "backlog_disks",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("broker", sa.Integer, nullable=False),
        sa.Column("usable_bytes", sa.BigInteger),
        sa.Column("total_bytes", sa.BigInteger),
        sa.Column("topic", sa.Text),
        sa.Column("topic_bytes", sa.BigInteger),
    )
    op.create_index("backlog_disks_by_time", "backlog_disks", ["cluster", "at"])
    table = sa.table(
        "backlog_transitions",
        sa.column("subject", sa.String),
        sa.column("from_state", sa.String),
        sa.column("to_state", sa.String),
    )
    op.bulk_insert(
        table,
        [
            {"subject": "gap", "from_state": before, "to_state": after}
            for before, afters in MOVES.items()
            for after in afters.split()
        ],
    )
    op.drop_index(STARTS, "backlog_gaps")
    op.create_index(
        STARTS,
        "backlog_gaps",
        ["stream", "group_id", "topic_id", "partition", "start_offset"],
        unique=True,
        sqlite_where=sa.text(LIVE),
        postgresql_where=sa.text(LIVE),
    )
    _guard_moves()


def _guard_moves() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(
            f"CREATE TRIGGER {GUARD} BEFORE UPDATE OF state ON backlog_gaps"
            f" FOR EACH ROW WHEN {WRONG} BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
        )
        return
    connection.exec_driver_sql(
        f"CREATE FUNCTION {GUARD}() RETURNS trigger LANGUAGE plpgsql"
        f" SET search_path FROM CURRENT AS $$ BEGIN IF {WRONG} THEN"
        f" RAISE EXCEPTION '{REFUSAL}' USING ERRCODE = 'P0001'; END IF; RETURN NEW; END $$"
    )
    connection.exec_driver_sql(
        f"CREATE TRIGGER {GUARD} BEFORE UPDATE OF state ON backlog_gaps"
        f" FOR EACH ROW EXECUTE FUNCTION {GUARD}()"
    )


downgrade = refuse_downgrade
