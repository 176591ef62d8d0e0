"""`backlogctl consumers`: start, stop and see a stream's own consumers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlogctl.replay.cli.shared import Session, mask_document, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

consumers = typer.Typer(help="Start, stop and see a stream's own consumers.", no_args_is_help=True)

StreamName = Annotated[str, typer.Argument(help="The stream.")]


@consumers.command("start")
@verb
def start(session: Session, stream: StreamName) -> None:
    """Make its `replicas` run, as the configuration says."""
    from backlogctl.replay.consumers.members import start_consumers

    workspace = session.open_workspace()
    document = start_consumers(workspace, workspace.config.stream(stream), session.say)
    _emit(session, document)


@consumers.command("stop")
@verb
def stop(session: Session, stream: StreamName) -> None:
    """End them, and name who is still in the group."""
    from backlogctl.formats import format_plural
    from backlogctl.replay.consumers.members import stop_consumers

    workspace = session.open_workspace()
    document = stop_consumers(workspace, workspace.config.stream(stream), session.say)
    _emit(session, document)
    if members := document["members"]:
        named = ", ".join(f"{member['client_id']} at {member['host']}" for member in members)
        session.say(
            f"the group still has {format_plural(len(members), 'member')}: {named}; "
            f"the launcher did not start them, or they were killed and their session has not ended",
            "yellow",
        )


@consumers.command("status")
@verb
def status(session: Session, stream: StreamName) -> None:
    """Say how many run, and who is in the group."""
    from backlogctl.replay.consumers.members import describe_consumers

    workspace = session.open_workspace()
    _emit(session, describe_consumers(workspace, workspace.config.stream(stream), session.say))


def _emit(session: Session, document: dict[str, Any]) -> None:
    from backlogctl.config import mask_secrets
    from backlogctl.replay.present.terminal import render_standings

    document["problem"] = mask_secrets(document["problem"])
    document["standings"] = [mask_document(standing) for standing in document["standings"]]
    session.emit(document, _draw(document), render_standings(document["standings"]))
    if document["problem"]:
        session.say(f"the group could not be looked at: {document['problem']}", "yellow")


def _draw(document: dict[str, Any]) -> RenderableType:
    from rich.console import Group

    from backlogctl.formats import format_count
    from backlogctl.replay.present.layout import Table

    summary = Table("stream", "launcher", "#running", "#wanted", "group", "state", "#members")
    known = document["group_state"] is not None
    summary.add(
        document["stream"],
        document["launcher"],
        format_count(document["running"]),
        format_count(document["replicas"]),
        document["group"],
        document["group_state"] or "unknown",
        _count_members(document) if known else "unknown",
    )
    rows = [
        (
            str(row["index"]),
            "—" if row["pid"] is None else str(row["pid"]),
            format_count(row["restarts"]),
            "—" if row["exit_code"] is None else str(row["exit_code"]),
            _shorten(row["log"]),
        )
        for row in document["consumers"]
    ]
    table = Table("#consumer", "#pid", "#restarts", "#last exit", "log", rows=rows)
    return Group(summary, table) if rows else summary


def _count_members(document: dict[str, Any]) -> str:
    """The guard is no consumer: it keeps others from committing."""
    told = format(len(document["members"]), ",")
    return f"{told} and our guard" if document["guards"] else told


def _shorten(path: str) -> str:
    """As one would type it here: relative where it lies below the current directory."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
