"""The first ledger: tables, allowed transitions, triggers.

Revision 0001. The types are written out here and not imported, so that this stays what it was.
A later migration that rebuilds a table on SQLite (batch mode) must make its triggers again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backlog.ledger.migrations.building import make_active_indexes, recovery_key, refuse_downgrade

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ACTIVE = "state IN ('approved', 'running', 'paused')"
RANGED = "end_offset IS NOT NULL"

TRANSITIONS = {
    "recovery": {
        "planned": "approved rejected",
        "approved": "running cancelled rejected",
        "running": "paused verified failed cancelled",
        "paused": "running cancelled failed",
        "failed": "running cancelled",
    },
    "gap": {
        "open": "planned waived",
        "planned": "staged open waived",
        "staged": "injected open",
        "injected": "verified open",
    },
    "chunk": {"staged": "injected"},
}
FIXED = {
    "backlog_recoveries": "id, kind, stream, cluster, topic, group_id, plan, plan_hash, created_at",
    "backlog_gaps": (
        "id, stream, cluster, topic, group_id, topic_id, partition, start_offset, cause,"
        " detected_at"
    ),
    "backlog_chunks": "recovery_id, slot, number, count, bytes, sha256, path, ids_path, canary",
}
STATEFUL = {
    "backlog_recoveries": ("recovery", "planned"),
    "backlog_gaps": ("gap", "open"),
    "backlog_chunks": ("chunk", "staged"),
}


def upgrade() -> None:
    _make_history_tables()
    _make_recovery_tables()
    rows = [
        {"subject": subject, "from_state": before, "to_state": after}
        for subject, moves in TRANSITIONS.items()
        for before, afters in moves.items()
        for after in afters.split()
    ]
    table = sa.table(
        "backlog_transitions",
        sa.column("subject", sa.String),
        sa.column("from_state", sa.String),
        sa.column("to_state", sa.String),
    )
    op.bulk_insert(table, rows)
    sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in _sqlite_triggers() if sqlite else _postgres_triggers():
        op.get_bind().exec_driver_sql(statement)


downgrade = refuse_downgrade


def _make_history_tables() -> None:
    op.create_table(
        "backlog_counters",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "backlog_transitions",
        sa.Column("subject", sa.String(16), primary_key=True),
        sa.Column("from_state", sa.String(16), primary_key=True),
        sa.Column("to_state", sa.String(16), primary_key=True),
    )
    op.create_table(
        "backlog_samples",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("stream", "cluster", "topic", "group_id", "topic_id")
        ),
        sa.Column("taken_at", TIME, nullable=False),
        sa.Column("partitions", sa.Text, nullable=False),
    )
    op.create_index("backlog_samples_by_time", "backlog_samples", ["stream", "taken_at"])
    op.create_table(
        "backlog_commit_marks",
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("group_id", sa.Text, primary_key=True),
        sa.Column("topic_id", sa.Text, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("max_committed", sa.BigInteger, nullable=False),
        sa.Column("last_committed", sa.BigInteger, nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
    )


def _make_recovery_tables() -> None:
    op.create_table(
        "backlog_recoveries",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("stream", "cluster", "topic", "group_id")
        ),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("plan_hash", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        *(
            sa.Column(name, sa.Text)
            for name in ("approved_by", "approved_identity", "approved_hash")
        ),
        sa.Column("approval_expires_at", TIME),
        sa.Column("requested", sa.String(16)),
        sa.Column("injected", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("skipped", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("events_head", sa.String(64), nullable=False),
        sa.Column("events_length", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("lease_host", sa.Text),
        sa.Column("lease_pid", sa.BigInteger),
        sa.Column("lease_started", sa.Text),
        sa.Column("lease_token", sa.Text),
        *(
            sa.Column(name, TIME)
            for name in ("lease_acquired_at", "lease_renewed_at", "lease_until")
        ),
        sa.CheckConstraint("requested IN ('pause', 'cancel')", name="backlog_recoveries_requested"),
        sa.CheckConstraint(
            "state IN ('planned', 'rejected') OR (approved_by IS NOT NULL"
            " AND approved_hash IS NOT NULL AND approved_hash = plan_hash"
            " AND approval_expires_at IS NOT NULL)",
            name="backlog_recoveries_approval",
        ),
    )
    op.create_index("backlog_recoveries_by_stream", "backlog_recoveries", ["stream", "state"])
    make_active_indexes(ACTIVE)
    _make_gap_tables()
    op.create_table(
        "backlog_chunks",
        recovery_key(),
        sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("ids_path", sa.Text, nullable=False),
        sa.Column("canary", sa.Boolean, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("first_offset", sa.BigInteger),
        sa.Column("last_offset", sa.BigInteger),
        sa.Column("injected_at", TIME),
        sa.CheckConstraint("state IN ('staged', 'injected')", name="backlog_chunks_state"),
    )
    op.create_table(
        "backlog_events",
        recovery_key(),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("previous_hash", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )


def _make_gap_tables() -> None:
    op.create_table(
        "backlog_gaps",
        sa.Column("id", sa.String(32), primary_key=True),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("stream", "cluster", "topic", "group_id", "topic_id")
        ),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("start_offset", sa.BigInteger),
        sa.Column("end_offset", sa.BigInteger),
        sa.Column("cause", sa.String(32), nullable=False),
        sa.Column("certainty", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("first_time", TIME),
        sa.Column("last_time", TIME),
        sa.Column("detected_at", TIME, nullable=False),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
        sa.Column("recovery_id", sa.String(32), sa.ForeignKey("backlog_recoveries.id")),
        sa.Column("changed_at", TIME, nullable=False),
        sa.Column("changed_by", sa.Text, nullable=False, server_default=""),
        sa.CheckConstraint(
            "end_offset IS NULL OR (start_offset IS NOT NULL AND end_offset > start_offset)",
            name="backlog_gaps_range",
        ),
        sa.CheckConstraint(
            "state <> 'waived' OR length(trim(reason)) > 0", name="backlog_gaps_waived_reason"
        ),
        sa.CheckConstraint(
            "state IN ('open', 'waived') OR recovery_id IS NOT NULL", name="backlog_gaps_recovery"
        ),
    )
    op.create_index("backlog_gaps_by_state", "backlog_gaps", ["stream", "state"])
    op.create_index(
        "backlog_gaps_one_per_start",
        "backlog_gaps",
        ["stream", "group_id", "topic_id", "partition", "start_offset"],
        unique=True,
        sqlite_where=sa.text(RANGED),
        postgresql_where=sa.text(RANGED),
    )
    op.create_table(
        "backlog_recovery_gaps",
        recovery_key(),
        sa.Column("gap_id", sa.String(32), sa.ForeignKey("backlog_gaps.id"), primary_key=True),
    )


ALLOWED = (
    "SELECT 1 FROM backlog_transitions AS t WHERE t.subject = '{subject}'"
    " AND t.from_state = OLD.state AND t.to_state = NEW.state"
)
# A gap goes back only when the recovery that had it will never run again.
STILL_CLAIMED = (
    "SELECT 1 FROM backlog_recoveries AS r WHERE r.id = OLD.recovery_id"
    " AND r.state NOT IN ('rejected', 'cancelled')"
)
REFUSAL = "backlog refuses: "


def _sqlite_triggers() -> list[str]:
    made = []

    def refuse(name: str, moment: str, table: str, when: str, message: str) -> None:
        condition = f"WHEN {when} " if when else ""
        made.append(
            f"CREATE TRIGGER {name} BEFORE {moment} ON {table} FOR EACH ROW {condition}"
            f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}{message}'); END"
        )

    for table, (subject, first) in STATEFUL.items():
        refuse(
            f"{table}_transition",
            "UPDATE OF state",
            table,
            f"OLD.state <> NEW.state AND NOT EXISTS ({ALLOWED.format(subject=subject)})",
            f"this change of state of a {subject} is not allowed",
        )
        refuse(
            f"{table}_first_state",
            "INSERT",
            table,
            f"NEW.state <> '{first}'",
            f"a new {subject} must be {first}",
        )
        refuse(
            f"{table}_fixed",
            f"UPDATE OF {FIXED[table]}",
            table,
            " OR ".join(f"OLD.{name} IS NOT NEW.{name}" for name in FIXED[table].split(", ")),
            f"the columns that say what a {subject} is never change",
        )
        refuse(f"{table}_kept", "DELETE", table, "", f"a {subject} is never deleted")
    refuse(
        "backlog_gaps_frozen",
        "UPDATE OF end_offset",
        "backlog_gaps",
        "OLD.end_offset IS NOT NEW.end_offset AND"
        " (OLD.state <> 'open' OR NEW.end_offset IS NULL OR NEW.end_offset < OLD.end_offset)",
        "the end of a gap only grows, and only while it is open",
    )
    refuse(
        "backlog_gaps_claimed",
        "UPDATE OF state",
        "backlog_gaps",
        f"NEW.state = 'open' AND OLD.state <> 'open' AND EXISTS ({STILL_CLAIMED})",
        "the gap belongs to a recovery that is not rejected or cancelled",
    )
    for moment in ("UPDATE", "DELETE"):
        refuse(
            f"backlog_events_no_{moment.lower()}",
            moment,
            "backlog_events",
            "",
            "events are append-only",
        )
    return made


def _postgres_triggers() -> list[str]:
    made = []

    def refuse(name: str, moment: str, table: str, when: str, message: str) -> None:
        # FROM CURRENT: the function finds the ledger's tables whatever the caller's search_path.
        made.append(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql"
            f" SET search_path FROM CURRENT AS $$ BEGIN IF {when or 'true'} THEN"
            f" RAISE EXCEPTION '{REFUSAL}{message}' USING ERRCODE = 'P0001';"
            " END IF; IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$"
        )
        level = "STATEMENT" if moment == "TRUNCATE" else "ROW"
        made.append(
            f"CREATE TRIGGER {name} BEFORE {moment} ON {table}"
            f" FOR EACH {level} EXECUTE FUNCTION {name}()"
        )

    for table, (subject, first) in STATEFUL.items():
        refuse(
            f"{table}_transition",
            "UPDATE OF state",
            table,
            f"OLD.state <> NEW.state AND NOT EXISTS ({ALLOWED.format(subject=subject)})",
            f"this change of state of a {subject} is not allowed",
        )
        refuse(
            f"{table}_first_state",
            "INSERT",
            table,
            f"NEW.state <> '{first}'",
            f"a new {subject} must be {first}",
        )
        refuse(
            f"{table}_fixed",
            "UPDATE",
            table,
            " OR ".join(
                f"OLD.{name} IS DISTINCT FROM NEW.{name}" for name in FIXED[table].split(", ")
            ),
            f"the columns that say what a {subject} is never change",
        )
        for moment in ("DELETE", "TRUNCATE"):
            refuse(
                f"{table}_no_{moment.lower()}", moment, table, "", f"a {subject} is never deleted"
            )
    refuse(
        "backlog_gaps_frozen",
        "UPDATE",
        "backlog_gaps",
        "OLD.end_offset IS DISTINCT FROM NEW.end_offset AND"
        " (OLD.state <> 'open' OR NEW.end_offset IS NULL OR NEW.end_offset < OLD.end_offset)",
        "the end of a gap only grows, and only while it is open",
    )
    refuse(
        "backlog_gaps_claimed",
        "UPDATE OF state",
        "backlog_gaps",
        f"NEW.state = 'open' AND OLD.state <> 'open' AND EXISTS ({STILL_CLAIMED})",
        "the gap belongs to a recovery that is not rejected or cancelled",
    )
    for moment in ("UPDATE", "DELETE", "TRUNCATE"):
        refuse(
            f"backlog_events_no_{moment.lower()}",
            moment,
            "backlog_events",
            "",
            "events are append-only",
        )
    return made
