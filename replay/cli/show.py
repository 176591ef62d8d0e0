"""`backlogctl show`: one recovery: its plan, its state and its record."""

from __future__ import annotations

from typing import Annotated

import typer

from replay.cli.shared import Session, verb


@verb
def show_recovery(
    session: Session, recovery: Annotated[str, typer.Argument(help="The recovery's id.")]
) -> None:
    """Show a recovery: its plan, its state and its record."""
    from rich.console import Console

    from replay.rendering import draw_events, draw_plan, print_next
    from replay.views import describe_event, describe_recovery, list_next_commands

    ledger = session.open_workspace().ledger
    found = ledger.recoveries.get(recovery)
    events = [describe_event(event) for event in ledger.events.list(recovery)]
    intact = ledger.events.verify_chain(recovery)
    document = {**describe_recovery(found), "events": events, "events_intact": intact}

    def show(console: Console) -> None:
        console.print(draw_plan(document))
        console.print(draw_events(events))
        if not intact:
            console.print("the record was changed after it was written", style="bold red")
        print_next(console, *list_next_commands(found))

    session.emit(document, show)
