"""`backlogctl run`: carry out an approved plan; kill it at any point and run it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from replay.recovery.workspace import Workspace


@verb
def run_recovery(
    session: Session, recovery: Annotated[str, typer.Argument(help="The recovery's id.")]
) -> None:
    """Carry out an approved plan, canary first, then verify. Safe to run again."""
    carry_out(session, session.open_workspace(), recovery)


def carry_out(
    session: Session, workspace: Workspace, recovery_id: str, *, resumed: bool = False
) -> None:
    """Runs a recovery and prints what came of it."""
    from backlog.numbers import format_duration
    from replay.around.holds import release_due
    from replay.recovery.runner import Run
    from replay.telling.documents import describe_run
    from replay.telling.terminal import say_done

    run = Run(workspace, recovery_id, session.err, resumed=resumed)
    found = run.carry_out()
    for sentence in release_due(workspace):
        session.say(sentence, "yellow")
    document = describe_run(workspace, found, run.describe())
    kind = workspace.kind_of(found)
    told = f": {kind.say_run(kind.read_plan(found), document['counts'])}"
    if run.was_done:
        told += " (it was verified before; nothing was done now)"
    else:
        told += f"; this run took {format_duration(run.seconds)}"
    session.emit(document, lambda console: say_done(console, found.id, str(found.state), told))
