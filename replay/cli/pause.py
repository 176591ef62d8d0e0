"""`backlogctl pause`: stop between two waves, and stay so until `resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from replay.cli.shared import Session, verb


@verb
def pause_recovery(
    session: Session, recovery: Annotated[str, typer.Argument(help="The recovery's id.")]
) -> None:
    """Stop a recovery where nothing is half done; it waits for `resume`."""
    from replay.recovery.cancelling import request_pause
    from replay.telling.documents import describe_recovery

    workspace = session.open_workspace()
    found, message = request_pause(workspace, recovery)
    document = {**describe_recovery(workspace, found), "message": message}
    session.emit(document, message)
