"""`backlogctl recoveries`: every piece of work on record."""

from __future__ import annotations

from typing import Annotated

import typer

from replay.cli.shared import Session, verb


@verb
def list_recoveries(
    session: Session,
    stream: Annotated[str | None, typer.Option(help="Only this stream's.")] = None,
    state: Annotated[list[str] | None, typer.Option(help="Only in this state.")] = None,
) -> None:
    """List recoveries, newest first."""
    from backlog.errors import UsageError
    from backlog.values import RecoveryState
    from replay.rendering import draw_recoveries
    from replay.views import describe_recovery

    known = [member.value for member in RecoveryState]
    for word in state or []:
        if word not in known:
            raise UsageError(f"no such state: {word}", hint=f"one of {', '.join(known)}")
    workspace = session.open_workspace()
    if stream is not None:
        workspace.config.stream(stream)
    states = [RecoveryState(word) for word in state] if state else None
    found = workspace.ledger.recoveries.list(stream=stream, states=states)
    newest = sorted(found, key=lambda recovery: recovery.created_at, reverse=True)
    document = {"recoveries": [describe_recovery(recovery) for recovery in newest]}
    session.emit(document, lambda console: console.print(draw_recoveries(document)))
