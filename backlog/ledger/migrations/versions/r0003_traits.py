"""Traits of recoveries as columns, and the steps of those whose steps were only events.

Revision 0003. From here on no index names a kind: a failed recovery counts as active where it left
something changed, and a kind that is not known here is treated as if it did.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from alembic import op

from backlog.ledger.migrations.building import make_active_indexes, refuse_downgrade

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
ACTIVE = "state IN ('approved', 'running', 'paused') OR (state = 'failed' AND holds_when_failed)"
TRAITS = ("stops_consumers", "holds_when_failed")
GUARD = "backlog_recoveries_traits_fixed"
REFUSAL = "backlog refuses: the columns that say what a recovery is never change"
BATCH = 500

EVENTS = sa.table(
    "backlog_events",
    sa.column("recovery_id", sa.String),
    sa.column("sequence", sa.BigInteger),
    sa.column("at", TIME),
    sa.column("action", sa.Text),
    sa.column("detail", sa.Text),
)
STEPS = sa.table(
    "backlog_steps",
    sa.column("recovery_id", sa.String),
    sa.column("step", sa.String),
    sa.column("first_started_at", TIME),
    sa.column("last_started_at", TIME),
    sa.column("completed_at", TIME),
    sa.column("attempts", sa.Integer),
    sa.column("detail", sa.Text),
)


def upgrade() -> None:
    """Adds and fills the columns, guards them, remakes the unique indexes, writes the steps."""
    for name in TRAITS:
        op.add_column(
            "backlog_recoveries",
            sa.Column(name, sa.Boolean, nullable=False, server_default=sa.true()),
        )
    recoveries = sa.table(
        "backlog_recoveries",
        sa.column("kind", sa.String),
        *(sa.column(name, sa.Boolean) for name in TRAITS),
    )
    changes = dict.fromkeys(TRAITS, False)
    op.execute(sa.update(recoveries).where(recoveries.c.kind == "rebuild").values(**changes))
    _guard_traits()
    make_active_indexes(ACTIVE, again=True)
    _write_steps()
    op.drop_column("backlog_steps", "rolled_back_at")  # no step was ever rolled back


downgrade = refuse_downgrade


def _guard_traits() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        changed = " OR ".join(f"OLD.{name} IS NOT NEW.{name}" for name in TRAITS)
        connection.exec_driver_sql(
            f"CREATE TRIGGER {GUARD} BEFORE UPDATE OF {', '.join(TRAITS)} ON backlog_recoveries"
            f" FOR EACH ROW WHEN {changed} BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
        )
        return
    changed = " OR ".join(f"OLD.{name} IS DISTINCT FROM NEW.{name}" for name in TRAITS)
    connection.exec_driver_sql(
        f"CREATE FUNCTION {GUARD}() RETURNS trigger LANGUAGE plpgsql"
        f" SET search_path FROM CURRENT AS $$ BEGIN IF {changed} THEN"
        f" RAISE EXCEPTION '{REFUSAL}' USING ERRCODE = 'P0001'; END IF; RETURN NEW; END $$"
    )
    connection.exec_driver_sql(
        f"CREATE TRIGGER {GUARD} BEFORE UPDATE ON backlog_recoveries"
        f" FOR EACH ROW EXECUTE FUNCTION {GUARD}()"
    )


def _write_steps() -> None:
    """One row for each step that the events of a recovery without rows tell of."""
    connection = op.get_bind()
    query = (
        sa.select(EVENTS)
        .where(
            sa.or_(EVENTS.c.action.like("% started"), EVENTS.c.action.like("% completed")),
            EVENTS.c.recovery_id.not_in(sa.select(STEPS.c.recovery_id)),
        )
        .order_by(EVENTS.c.recovery_id, EVENTS.c.sequence)
    )
    rows = read_steps(connection.execute(query))
    for begin in range(0, len(rows), BATCH):
        connection.execute(sa.insert(STEPS), rows[begin : begin + BATCH])


def read_steps(events: Iterable[Any]) -> list[dict[str, Any]]:
    """Rows of steps from events `NAME started` and `NAME completed`, oldest first.

    A step that was completed stays so when it is started again; a completion without a start says
    nothing. `detail` is that of the first completion.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for event in events:
        name, _, word = event.action.rpartition(" ")
        key = (event.recovery_id, name)
        known = found.get(key)
        if word == "started" and known is None:
            found[key] = {
                "recovery_id": event.recovery_id,
                "step": name,
                "first_started_at": event.at,
                "last_started_at": event.at,
                "completed_at": None,
                "attempts": 1,
                "detail": "{}",
            }
        elif word == "started" and known is not None:
            known["last_started_at"] = event.at
            known["attempts"] += 1
        elif word == "completed" and known is not None and known["completed_at"] is None:
            known["completed_at"] = event.at
            known["detail"] = event.detail
    return list(found.values())
