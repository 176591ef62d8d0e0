"""`backlogctl outbox`: messages that an application committed and that are to be sent."""

from __future__ import annotations

import typer

from replay.cli.outbox.looking import list_entries, show_entry, show_status
from replay.cli.outbox.mending import create_table, park_entries, purge_entries, retry_entries
from replay.cli.outbox.running import run_sender

outbox = typer.Typer(help="Send what applications committed; see and mend what is not sent.")


@outbox.callback()
def _outbox() -> None:
    """Send what applications committed; see and mend what is not sent."""


outbox.command("create")(create_table)
outbox.command("run")(run_sender)
outbox.command("status")(show_status)
outbox.command("list")(list_entries)
outbox.command("show")(show_entry)
outbox.command("retry")(retry_entries)
outbox.command("park")(park_entries)
outbox.command("purge")(purge_entries)
