"""`backlogctl reject`: a plan that nobody shall run."""

from __future__ import annotations

from typing import Annotated

import typer

from replay.cli.shared import Session, verb


@verb
def reject_recovery(
    session: Session,
    recovery: Annotated[str, typer.Argument(help="The recovery's id.")],
    reason: Annotated[str, typer.Option(help="Why; kept on record.")] = "",
    by: Annotated[str, typer.Option(help="Your name; your account is recorded beside it.")] = "",
) -> None:
    """Reject a plan; its gaps are open again."""
    from replay.recovery.approval import reject_plan
    from replay.telling.documents import describe_recovery

    workspace = session.open_workspace()
    planned = workspace.ledger.recoveries.get(recovery)
    found = reject_plan(workspace, planned, by=by, reason=reason)
    message = f"{recovery} rejected; {workspace.kind_of(found).say_cancelled(found)}"
    session.emit(describe_recovery(workspace, found), message)
