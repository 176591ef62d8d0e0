"""`backlogctl show`: one recovery: its plan, its state, how far it is, and its record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from backlog.values import Recovery
    from replay.recovery.workspace import Workspace

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
    from replay.telling.burndown import draw_progress
    from replay.telling.document import read_document
    from replay.telling.plans import draw_document_plan
    from replay.telling.terminal import draw_events, draw_standing, print_next

    if watch and session.json:
        raise UsageError("--watch draws, and --json prints one document", subject="--watch")
    workspace = session.open_workspace()
    current = workspace.ledger.recoveries.get(recovery)
    workspace.kind_of(current)
    if watch:
        current = _watch(session, workspace, current)
    document = read_document(workspace, current, previews=not (watch or session.json))

    def show(console: Console) -> None:
        if not watch:
            console.print(draw_document_plan(document))
            if document.progress["steps"]:
                console.print(draw_progress(document.progress))
        console.print(draw_events(document.events))
        if document.broken:
            console.print("the record was changed after it was written", style="bold red")
        if document.standing:
            console.print(draw_standing(document.standing))
        print_next(console, *document.next_commands)

    session.emit(document.to_json(), show)


def _watch(session: Session, workspace: Workspace, recovery: Recovery) -> Recovery:
    """Draws until it is at an end, or failed, or Ctrl-C."""
    from rich.live import Live

    from backlog.values import FINAL, RecoveryState
    from replay.telling.layout import Folded

    with Live(console=session.out, auto_refresh=False) as live:
        try:
            while True:
                live.update(Folded(_draw(workspace, recovery)), refresh=True)
                if recovery.state in (*FINAL, RecoveryState.FAILED):
                    break
                time.sleep(_LOOK_SECONDS)
                recovery = workspace.ledger.recoveries.get(recovery.id)
        except KeyboardInterrupt:
            pass
    return recovery


def _draw(workspace: Workspace, recovery: Recovery) -> RenderableType:
    """What moves: the plan only as long as nothing does."""
    from rich.console import Group

    from replay.telling.burndown import draw_progress
    from replay.telling.document import read_document, read_progress
    from replay.telling.documents import describe_recovery
    from replay.telling.plans import draw_document_plan, draw_head

    progress = read_progress(workspace, recovery)
    if not progress["steps"]:
        return draw_document_plan(read_document(workspace, recovery, asks=False, previews=True))
    verdict = describe_recovery(workspace, recovery)["verdict"]
    return Group(draw_head(recovery, verdict), draw_progress(progress))
