"""`backlogctl recoveries`: every piece of work on record."""

from __future__ import annotations

from typing import Annotated

import typer

from replay.cli.shared import Session, read_states, verb


@verb
def list_recoveries(
    session: Session,
    stream: Annotated[str | None, typer.Option(help="Only this stream's.")] = None,
    state: Annotated[list[str] | None, typer.Option(help="Only in this state.")] = None,
) -> None:
    """List recoveries, newest first."""
    from backlog.values import RecoveryState
    from replay.telling.documents import describe_recovery
    from replay.telling.terminal import draw_recoveries

    states = read_states(RecoveryState, state)
    workspace = session.open_workspace()
    if stream is not None:
        workspace.config.stream(stream)
    found = workspace.ledger.recoveries.list(stream=stream, states=states)
    newest = sorted(found, key=lambda recovery: recovery.created_at, reverse=True)
    document = {"recoveries": [describe_recovery(workspace, recovery) for recovery in newest]}
    session.emit(document, lambda console: console.print(draw_recoveries(document)))
