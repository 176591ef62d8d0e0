"""`backlogctl show`: one recovery: its plan, its state, how far it is, and its record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

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
    from replay.telling.documents import list_next_commands
    from replay.telling.terminal import draw_events, draw_standing, print_next

    if watch and session.json:
        raise UsageError("--watch draws, and --json prints one document", subject="--watch")
    workspace = session.open_workspace()
    found = workspace.ledger.recoveries.get(recovery)
    workspace.kind_of(found)
    if watch:
        found = _watch(session, workspace, found)
    document = _collect(workspace, found)

    def show(console: Console) -> None:
        if not watch:
            console.print(_draw_plan(workspace, found))
            if document["progress"]["steps"]:
                console.print(draw_progress(document["progress"]))
        console.print(draw_events(document["events"]))
        if not document["events_intact"]:
            console.print("the record was changed after it was written", style="bold red")
        if standing := document["standing"]:
            console.print(draw_standing(standing))
            print_next(console, *standing["next_commands"])
        else:
            print_next(console, *list_next_commands(workspace, found))

    session.emit(document, show)


def _collect(workspace: Workspace, found: Recovery) -> dict[str, Any]:
    from replay.telling.documents import describe_event, describe_recovery

    ledger = workspace.ledger
    document = describe_recovery(workspace, found)
    document["standing"] = _find_standing(workspace, found)
    document["progress"] = _measure(workspace, found)
    document["events"] = [describe_event(event) for event in ledger.events.list(found.id)]
    document["events_intact"] = ledger.events.verify_chain(found.id)
    return document


def _find_standing(workspace: Workspace, found: Recovery) -> dict[str, Any] | None:
    from backlog.errors import Refused
    from replay.cli.shared import mask_document
    from replay.telling.standing import find_standing

    try:
        standing = find_standing(workspace, found)
    except Refused:
        return None  # the plan's `problem` says why
    return None if standing is None else mask_document(standing)


def _measure(workspace: Workspace, found: Recovery) -> dict[str, Any]:
    from backlog.values import RecoveryState
    from replay.telling.progress import describe_progress

    ledger = workspace.ledger
    return describe_progress(
        ledger.steps.list(found.id),
        ledger.burndown.list(found.id),
        ledger.now(),
        chunks=ledger.chunks.list(found.id),
        live=found.state is RecoveryState.RUNNING,
    )


def _draw_plan(workspace: Workspace, found: Recovery) -> RenderableType:
    """The plan; why it cannot be shown where this program cannot read it."""
    from backlog.errors import Refused
    from replay.telling.documents import preview_plan
    from replay.telling.plans import draw_plan, draw_unread

    try:
        return draw_plan(found, preview_plan(workspace, found))
    except Refused as refused:
        return draw_unread(found, refused)


def _watch(session: Session, workspace: Workspace, found: Recovery) -> Recovery:
    """Draws until it is at an end, or failed, or Ctrl-C."""
    from rich.live import Live

    from backlog.values import FINAL, RecoveryState
    from replay.telling.layout import Folded

    with Live(console=session.out, auto_refresh=False) as live:
        try:
            while True:
                live.update(Folded(_draw(workspace, found)), refresh=True)
                if found.state in (*FINAL, RecoveryState.FAILED):
                    break
                time.sleep(_LOOK_SECONDS)
                found = workspace.ledger.recoveries.get(found.id)
        except KeyboardInterrupt:
            pass
    return found


def _draw(workspace: Workspace, found: Recovery) -> RenderableType:
    """What moves: the plan only as long as nothing does."""
    from rich.console import Group

    from replay.telling.burndown import draw_progress
    from replay.telling.documents import describe_recovery
    from replay.telling.plans import draw_head

    progress = _measure(workspace, found)
    if not progress["steps"]:
        return _draw_plan(workspace, found)
    verdict = describe_recovery(workspace, found)["verdict"]
    return Group(draw_head(found, verdict), draw_progress(progress))
