"""The first ledger: tables, allowed transitions, triggers that refuse the rest. Revision 0001.

Until the first release this makes what the models say. A later revision that rebuilds a table on
SQLite (batch mode) must make its triggers again.
"""

from __future__ import annotations

from collections.abc import Iterator

from alembic import op

from backlogctl.errors import Refused
from backlogctl.ledger.schema import REFUSAL, metadata, transitions

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

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
        "staged": "injected open planned waived",
        "injected": "verified open staged",
    },
    "chunk": {"staged": "injected"},
}
# Of each table with states: the subject, its first state, and the columns that never change.
STATEFUL = {
    "backlog_recoveries": (
        "recovery",
        "planned",
        "id kind stream cluster topic group_id plan plan_hash created_at stops_consumers"
        " holds_when_failed",
    ),
    "backlog_gaps": (
        "gap",
        "open",
        "id stream cluster topic group_id topic_id partition start_offset cause detected_at",
    ),
    "backlog_chunks": (
        "chunk",
        "staged",
        "recovery_id slot number count bytes sha256 path ids_path canary",
    ),
}
TRANSITION = (
    "SELECT 1 FROM backlog_transitions AS t WHERE t.subject = '{}'"
    " AND t.from_state = OLD.state AND t.to_state = NEW.state"
)
# A gap goes back only when the recovery that had it will never run again.
STILL_CLAIMED = (
    "SELECT 1 FROM backlog_recoveries AS r WHERE r.id = OLD.recovery_id"
    " AND r.state NOT IN ('rejected', 'cancelled')"
)
# Moves of a gap whose messages are in an archive.
ARCHIVED = (("staged", "planned"), ("staged", "waived"), ("injected", "staged"))


def upgrade() -> None:
    connection = op.get_bind()
    metadata.create_all(connection)
    op.bulk_insert(
        transitions,
        [
            {"subject": subject, "from_state": before, "to_state": after}
            for subject, moves in TRANSITIONS.items()
            for before, afters in moves.items()
            for after in afters.split()
        ],
    )
    make = _make_sqlite if connection.dialect.name == "sqlite" else _make_postgresql
    for name, moment, table, when, message in _list_guards():
        for statement in make(f"{table}_{name}", moment, table, when, f"{REFUSAL}{message}"):
            connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Never: the events are append-only.

    Raises:
        Refused: always.
    """
    raise Refused(
        "a ledger is never taken back: its events are append-only",
        subject="ledger",
        hint="restore a backup into a database of its own",
    )


def _list_guards() -> Iterator[tuple[str, str, str, str, str]]:
    """Name, moment, table, condition and message of each trigger."""
    for table, (subject, first, fixed) in STATEFUL.items():
        illegal = f"OLD.state <> NEW.state AND NOT EXISTS ({TRANSITION.format(subject)})"
        changed = " OR ".join(f"OLD.{name} IS DISTINCT FROM NEW.{name}" for name in fixed.split())
        message = f"this change of state of a {subject} is not allowed"
        yield "transition", "UPDATE", table, illegal, message
        yield (
            "first_state",
            "INSERT",
            table,
            f"NEW.state <> '{first}'",
            f"a new {subject} must be {first}",
        )
        message = f"the columns that say what a {subject} is never change"
        yield "fixed", "UPDATE", table, changed, message
        yield "no_delete", "DELETE", table, "true", f"a {subject} is never deleted"
    moves = " OR ".join(f"(OLD.state = '{a}' AND NEW.state = '{b}')" for a, b in ARCHIVED)
    for name, condition, message in (
        (
            "frozen",
            "OLD.end_offset IS DISTINCT FROM NEW.end_offset AND"
            " (OLD.state <> 'open' OR NEW.end_offset IS NULL OR NEW.end_offset < OLD.end_offset)",
            "the end of a gap only grows, and only while it is open",
        ),
        (
            "claimed",
            f"NEW.state = 'open' AND OLD.state <> 'open' AND EXISTS ({STILL_CLAIMED})",
            "the gap belongs to a recovery that is not rejected or cancelled",
        ),
        (
            "archived",
            f"OLD.archive IS NULL AND ({moves})",
            "only a gap with an archive waits in it",
        ),
    ):
        yield name, "UPDATE", "backlog_gaps", condition, message
    for moment in ("UPDATE", "DELETE"):
        yield f"no_{moment.lower()}", moment, "backlog_events", "true", "events are append-only"


def _make_sqlite(name: str, moment: str, table: str, when: str, message: str) -> Iterator[str]:
    yield (
        f"CREATE TRIGGER {name} BEFORE {moment} ON {table} FOR EACH ROW WHEN {when}"
        f" BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )


def _make_postgresql(name: str, moment: str, table: str, when: str, message: str) -> Iterator[str]:
    # FROM CURRENT: the function finds the ledger's tables whatever the caller's search_path.
    yield (
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql"
        f" SET search_path FROM CURRENT AS $$ BEGIN IF {when} THEN"
        f" RAISE EXCEPTION '{message}' USING ERRCODE = 'P0001'; END IF; RETURN NEW; END $$"
    )
    yield (
        f"CREATE TRIGGER {name} BEFORE {moment} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()"
    )
    if moment == "DELETE":
        yield (
            f"CREATE TRIGGER {name}_all BEFORE TRUNCATE ON {table}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {name}()"
        )
