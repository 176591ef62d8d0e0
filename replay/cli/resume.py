"""`backlogctl resume`: take a pause back and go on."""

from __future__ import annotations

from typing import Annotated

import typer

from replay.cli.run import carry_out
from replay.cli.shared import Session, verb


@verb
def resume_recovery(
    session: Session, recovery: Annotated[str, typer.Argument(help="The recovery's id.")]
) -> None:
    """Take a pause back, and go on with the recovery."""
    from replay.recovery.cancelling import withdraw_pause
    from replay.telling.documents import describe_recovery

    workspace = session.open_workspace()
    found, holder = withdraw_pause(workspace, recovery)
    if holder is None:
        carry_out(session, workspace, recovery, resumed=True)
        return
    message = f"the pause of {recovery} is taken back; runner {holder} goes on"
    document = {**describe_recovery(workspace, found), "message": message}
    session.emit(document, message)
