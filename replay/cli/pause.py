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
    from replay.cancellation import request_pause
    from replay.views import describe_recovery

    found, message = request_pause(session.open_workspace(), recovery)
    document = {**describe_recovery(found), "message": message}
    session.emit(document, message)
