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
    from replay.approval import reject_plan
    from replay.kinds import REBUILD
    from replay.views import describe_recovery

    workspace = session.open_workspace()
    planned = workspace.ledger.recoveries.get(recovery)
    found = reject_plan(workspace.ledger, planned, by=by, reason=reason)
    rest = "; its gaps are open again" if found.kind == REBUILD else ""
    session.emit(describe_recovery(found), f"{recovery} rejected{rest}")
