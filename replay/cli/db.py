"""`backlogctl db upgrade`: the ledger's tables."""

from __future__ import annotations

import typer

from replay.cli.shared import Session, verb

db = typer.Typer(help="The ledger's database.", no_args_is_help=True)


@db.callback()
def _db() -> None:
    """The ledger's database."""


@db.command("upgrade")
@verb
def upgrade_database(session: Session) -> None:
    """Make or upgrade the ledger's tables (a SQLite ledger does so itself)."""
    from backlog.ledger import upgrade

    config = session.load_config()
    upgrade(config.ledger_url())
    session.emit({"ledger": "up to date"}, "the ledger is up to date")
