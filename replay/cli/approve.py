"""`backlogctl approve`: let a plan run, by name."""

from __future__ import annotations

from typing import Annotated

import typer

from replay.cli.shared import Session, verb


@verb
def approve_recovery(
    session: Session,
    recovery: Annotated[str, typer.Argument(help="The recovery's id.")],
    by: Annotated[str, typer.Option(help="Your name; your account is recorded beside it.")],
) -> None:
    """Approve a plan as it is stored; the approval expires."""
    from rich.console import Console

    from backlog.errors import UsageError
    from backlog.numbers import format_duration
    from replay.recovery.approval import approve_plan, describe_expiry
    from replay.telling.documents import describe_recovery, list_next_commands
    from replay.telling.terminal import print_next, say_done

    if not by.strip():
        raise UsageError("a name is needed", subject="--by")
    workspace = session.open_workspace()
    planned = workspace.ledger.recoveries.get(recovery)
    found = approve_plan(workspace, planned, by=by.strip())

    def show(console: Console) -> None:
        left = describe_expiry(found)
        say_done(
            console,
            found.id,
            "approved",
            f" by {by.strip()} ({found.approved_identity}), for plan {found.plan_hash[:12]}, "
            f"to be started within {format_duration(left.total_seconds() if left else None)}",
        )
        print_next(console, *list_next_commands(workspace, found))

    session.emit(describe_recovery(workspace, found), show)
