"""`backlogctl status`: how far behind, what is lost, and how long is left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.shared import Session, mask_document, verb

if TYPE_CHECKING:
    from backlog.config import Stream
    from backlog.errors import BacklogError
    from replay.workspace import Workspace

Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", help="Without a file: brokers, HOST:PORT.")
]
Group = Annotated[str | None, typer.Option("--group", help="Without a file: the group.")]
Topic = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Without a file: a topic; else all the group commits on."),
]


@verb
def show_status(
    session: Session,
    streams: Annotated[list[str] | None, typer.Argument(help="All without a name.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every interval.")] = False,
    bootstrap: Bootstrap = None,
    group: Group = None,
    topic: Topic = None,
) -> None:
    """Show how far behind each group is, what it lost, and how long is left."""
    from rich.live import Live

    from backlog.errors import UsageError
    from replay.holds import release_due
    from replay.observation import choose_streams
    from replay.rendering import draw_status

    if watch and session.json:
        raise UsageError("--watch has no end, and --json prints one document", subject="--watch")
    workspace = open_for_looking(session, bootstrap, group, topic)
    chosen = choose_streams(workspace.config, streams or [])
    for sentence in release_due(workspace):
        session.say(sentence, "yellow")
    if not watch:
        document = collect_status(workspace, chosen)
        session.emit(document, lambda console: console.print(draw_status(document)))
        _fail_if_unseen(document)
        return
    interval = workspace.config.watch.interval.total_seconds()
    with Live(console=session.out, auto_refresh=False) as live:
        try:
            while True:
                live.update(draw_status(collect_status(workspace, chosen)), refresh=True)
                time.sleep(interval)
        except KeyboardInterrupt:
            return


def collect_status(workspace: Workspace, streams: list[Stream]) -> dict[str, Any]:
    """The document of `status`; a stream that cannot be seen has an `error`, the others show."""
    from backlog.errors import BacklogError
    from replay.expand_views import tell_expansions
    from replay.observation import look_at_stream

    entries: list[dict[str, Any]] = []
    for stream in streams:
        try:
            entry = look_at_stream(workspace, stream)[1]
            entry["warnings"] += tell_expansions(workspace, stream)
            entries.append(entry)
        except BacklogError as error:
            if len(streams) == 1:
                raise
            entries.append(_describe_unseen(stream, error))
    return {"streams": entries}


def open_for_looking(
    session: Session, bootstrap: str | None, group: str | None, topics: list[str] | None
) -> Workspace:
    """The configuration's workspace, or one in memory from `--bootstrap` and `--group`."""
    from backlog.config import Config
    from backlog.errors import UsageError
    from replay.observation import list_group_topics
    from replay.workspace import Workspace

    if bootstrap is None:
        if group or topics:
            raise UsageError("--group and --topic go with --bootstrap", subject="--bootstrap")
        return session.open_workspace()
    if session.config_path is not None:
        raise UsageError("--bootstrap and --config exclude each other", subject="--bootstrap")
    if not group:
        raise UsageError("--bootstrap needs --group", subject="--group")
    found = topics or list_group_topics({"bootstrap.servers": bootstrap}, group)
    if not found:
        raise UsageError(
            "the group has committed on no topic",
            subject=f"group {group}",
            hint="check its name, or name the topic with --topic",
        )
    return Workspace.open_passing(Config.for_bootstrap(bootstrap, group, found))


def _describe_unseen(stream: Stream, error: BacklogError) -> dict[str, Any]:
    return {
        "stream": stream.name,
        "group": stream.group,
        "verdict": "unknown",
        "partitions": [],
        "lag": None,
        "lost": None,
        "seconds_to_drain": None,
        "seconds_to_loss": None,
        "error": mask_document(error.to_json()),
    }


def _fail_if_unseen(document: dict[str, Any]) -> None:
    if any("error" in entry for entry in document["streams"]):
        raise typer.Exit(1)
