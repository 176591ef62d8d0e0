"""`backlogctl cancel`: stop a recovery for good; its gaps are open again."""

from __future__ import annotations

from typing import Annotated

import typer

from replay.cli.shared import Session, verb


@verb
def cancel_recovery(
    session: Session,
    recovery: Annotated[str, typer.Argument(help="The recovery's id.")],
    wait: Annotated[float, typer.Option(help="Seconds to wait for a live runner.")] = 120.0,
    rewind: Annotated[
        bool,
        typer.Option(
            "--rewind",
            help="Of an expansion: the group reads again what was relayed; needs no consumer that "
            "works. What was handled of it is handled once more.",
        ),
    ] = False,
    leave_consumers: Annotated[
        bool,
        typer.Option(
            "--leave-consumers",
            help="Of an expansion or an offload: consumers are neither started nor stopped; you do "
            "that by hand.",
        ),
    ] = False,
) -> None:
    """Cancel a recovery: a rebuild keeps what it has put back, an expansion is cut over now.

    Nothing is lost: messages in a temporary topic are read to their end before the layout is
    restored and the topic deleted. An offload goes back where its group was not moved yet, and is
    ended forward where it was: its archive is put back later.
    """
    from replay.recovery.cancelling import cancel_work, find_ways
    from replay.telling.documents import describe_recovery

    workspace = session.open_workspace()
    chosen = {"rewind": rewind, "leave-consumers": leave_consumers}
    ways = [way for way, wanted in chosen.items() if wanted]
    found = cancel_work(
        workspace, recovery, wait=wait, ways=ways, say=session.say, console=session.err
    )
    asked = find_ways(workspace, recovery)  # it may have been cancelled before, in another way
    message = f"{recovery} is {found.state}; {workspace.kind_of(found).say_cancelled(found, asked)}"
    document = {**describe_recovery(workspace, found), "message": message}
    session.emit(document, message)
