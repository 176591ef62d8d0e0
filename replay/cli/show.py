"""`backlogctl show`: one recovery: its plan, its state, how far it is, and its record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from backlog.values import Recovery
    from replay.workspace import Workspace

_LOOK_SECONDS = 1.0


@verb
def show_recovery(
    session: Session,
    recovery: Annotated[str, typer.Argument(help="The recovery's id.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again each second, until it is at an end.")
    ] = False,
) -> None:
    """Show a recovery: its plan, its state and its record; while it runs, how far it is."""
    from rich.console import Console

    from backlog.errors import UsageError
    from replay.expand_rendering import draw_recovery
    from replay.rendering import draw_events, print_next
    from replay.views import list_next_commands

    if watch and session.json:
        raise UsageError("--watch draws, and --json prints one document", subject="--watch")
    workspace = session.open_workspace()
    found = workspace.ledger.recoveries.get(recovery)
    if watch:
        found = _watch(session, workspace, found)
    document = _collect(workspace, found)

    def show(console: Console) -> None:
        if not watch:
            console.print(draw_recovery(document))
            if _has_begun(document):
                console.print(_draw_progress(document))
        console.print(draw_events(document["events"]))
        if not document["events_intact"]:
            console.print("the record was changed after it was written", style="bold red")
        print_next(console, *list_next_commands(found))

    session.emit(document, show)


def _collect(workspace: Workspace, found: Recovery) -> dict[str, Any]:
    from backlog.values import RecoveryState
    from replay.expand_views import describe_progress
    from replay.kinds import EXPAND
    from replay.views import describe_event, describe_recovery

    ledger = workspace.ledger
    document = describe_recovery(found)
    if found.kind == EXPAND:
        document["progress"] = describe_progress(
            ledger.steps.list(found.id),
            ledger.burndown.list(found.id),
            ledger.now(),
            live=found.state is RecoveryState.RUNNING,
        )
    document["events"] = [describe_event(event) for event in ledger.events.list(found.id)]
    document["events_intact"] = ledger.events.verify_chain(found.id)
    return document


def _watch(session: Session, workspace: Workspace, found: Recovery) -> Recovery:
    """Draws until it is at an end, or Ctrl-C."""
    from rich.live import Live

    from replay.expand_views import is_at_end

    with Live(console=session.out, auto_refresh=False) as live:
        try:
            while True:
                live.update(_draw(_collect(workspace, found)), refresh=True)
                if is_at_end(found):
                    break
                time.sleep(_LOOK_SECONDS)
                found = workspace.ledger.recoveries.get(found.id)
        except KeyboardInterrupt:
            pass
    return found


def _draw(document: dict[str, Any]) -> RenderableType:
    """What moves: the plan only as long as nothing does."""
    from rich.console import Group

    from replay.expand_rendering import draw_head, draw_recovery

    if not _has_begun(document):
        return draw_recovery(document)
    return Group(draw_head(document), _draw_progress(document))


def _has_begun(document: dict[str, Any]) -> bool:
    return bool(document.get("progress", {}).get("steps"))


def _draw_progress(document: dict[str, Any]) -> RenderableType:
    from replay.expand_rendering import draw_burndown

    return draw_burndown(document["progress"])
