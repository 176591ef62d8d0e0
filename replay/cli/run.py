"""`backlogctl run`: carry out an approved plan; kill it at any point and run it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from replay.runner import Run
    from replay.workspace import Workspace


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
    from rich.console import Console

    from backlog.numbers import format_duration, format_plural
    from replay.holds import release_due
    from replay.kinds import EXPAND
    from replay.rendering import say_done
    from replay.runner import Run
    from replay.views import describe_run

    run = Run(workspace, recovery_id, session.err, resumed=resumed)
    found = run.carry_out()
    for sentence in release_due(workspace):
        session.say(sentence, "yellow")
    document = describe_run(found, run.describe())

    def show(console: Console) -> None:
        if found.kind == EXPAND:
            say_done(console, found.id, str(found.state), _tell_drained(document, run))
            return
        counts = document["counts"]
        count = counts["injected"] + counts["skipped"]
        told = f": {format_plural(count, 'message')} {'is' if count == 1 else 'are'} in topic "
        told += found.topic
        if run.was_done:
            told += " (it was verified before; nothing was done now)"
        else:
            told += f", each once, in {format_duration(run.seconds)}"
        say_done(console, found.id, str(found.state), told)
        if left_out := counts["quarantined"]:
            console.print(f"{format_plural(left_out, 'row')} in quarantine", style="yellow")

    session.emit(document, show)


def _tell_drained(document: Mapping[str, Any], run: Run) -> str:
    """What an expansion did, behind its name and state."""
    from backlog.numbers import format_count, format_duration, format_plural

    if run.was_done:
        return " (it was verified before; nothing was done now)"
    counts = document["counts"]
    told = f": {format_plural(counts['relayed'], 'message')} drained in all"
    if rate := counts["drained_per_second"]:
        told += f" at {format_count(round(rate))}/s"
    return f"{told}, the layout is as it was; this run took {format_duration(run.seconds)}"
