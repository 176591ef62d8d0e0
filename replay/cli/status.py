"""`backlogctl status`: how far behind, what is lost, and how long is left."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlogctl.replay.cli.shared import Session, mask_document, verb

if TYPE_CHECKING:
    from backlogctl.config import Stream
    from backlogctl.errors import BacklogError, LedgerError
    from backlogctl.replay.engine.kind import Workspace

Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", help="Without a file: brokers, HOST:PORT.")
]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", help="For a group that is no stream: a cluster of the file."),
]
Group = Annotated[
    str | None, typer.Option("--group", help="The group, with --bootstrap or --cluster.")
]
Topic = Annotated[
    list[str] | None,
    typer.Option("--topic", help="With --group: a topic; else all it commits on."),
]


@verb
def show_status(
    session: Session,
    streams: Annotated[list[str] | None, typer.Argument(help="All without a name.")] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Exit 0 where nobody is needed, else 1: for scripts and schedulers."
        ),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every interval.")] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    group: Group = None,
    topic: Topic = None,
) -> None:
    """Show how far behind each group is, what it lost, and how long is left."""
    from rich.live import Live

    from backlogctl.errors import LedgerError, UsageError
    from backlogctl.replay.observe.retention import release_due
    from backlogctl.replay.observe.stream import choose_streams
    from backlogctl.replay.opening import open_workspace as open_passing
    from backlogctl.replay.present.layout import Folded
    from backlogctl.replay.present.terminal import render_status

    if watch and session.json:
        raise UsageError("--watch has no end, and --json prints one document", subject="--watch")
    adopting = suggest_adoption(bootstrap, cluster, group)
    listing = suggest_listing(bootstrap, cluster, group)
    workspace: Workspace | None = None

    @cache
    def open_without_ledger() -> Workspace:
        return open_passing(session.load_config(), passing=True)

    def look() -> dict[str, Any]:
        """With the ledger where it answers, else without."""
        nonlocal workspace
        try:
            if workspace is None:
                workspace = open_for_looking(session, bootstrap, cluster, group, topic)
                for sentence in release_due(workspace):
                    session.say(sentence, "yellow")
            chosen = choose_streams(workspace.config, streams or [])
            return collect_status(workspace, chosen, adopting, listing)
        except LedgerError as error:
            if adopting is not None:
                raise  # that ledger is a passing one already
            workspace, passing = None, open_without_ledger()
            chosen = choose_streams(passing.config, streams or [])
            return collect_status(passing, chosen, ledger_error=error)

    if not watch:
        document = look()
        session.emit(document, lambda: render_status(document))
        if check and any(needs_somebody(entry) for entry in document["streams"]):
            raise typer.Exit(1)
        _fail_if_unseen(document)
        return
    with Live(console=session.out, auto_refresh=False) as live:
        try:
            while True:
                live.update(Folded(render_status(look())), refresh=True)
                config = (workspace or open_without_ledger()).config
                time.sleep(config.watch.interval.total_seconds())
        except KeyboardInterrupt:
            return


def collect_status(
    workspace: Workspace,
    streams: list[Stream],
    adopting: Sequence[str] | None = None,
    looking: str = "",
    *,
    ledger_error: LedgerError | None = None,
) -> dict[str, Any]:
    """The document of `status`; a stream that cannot be seen has an `error`, the others show.

    Args:
        adopting, looking: of `suggest_adoption` and `suggest_listing`, for groups that no stream is
            about.
        ledger_error: why the workspace's ledger is a passing one.

    Raises:
        LedgerError: the ledger failed meanwhile.
    """
    from backlogctl.errors import BacklogError
    from backlogctl.monitoring.offsets.bulk_look import AT_WORK
    from backlogctl.replay.consumers.members import describe_trouble
    from backlogctl.replay.engine.next_commands import list_stream_commands
    from backlogctl.replay.engine.plan import ACTIVE
    from backlogctl.replay.observe.stream import sample_streams
    from backlogctl.replay.present.status import list_open_standings

    entries: list[dict[str, Any]] = []
    active = workspace.ledger.recoveries.list(states=ACTIVE)
    at_work = {recovery.stream for recovery in active if recovery.state in AT_WORK}
    for stream, found in sample_streams(workspace, streams, ledger_error=ledger_error):
        standings = []
        if stream.name in at_work:
            standings = [mask_document(one) for one in list_open_standings(workspace, stream.name)]
        if isinstance(found, BacklogError):
            if len(streams) == 1:
                found.standing = next(iter(standings), None)
                raise found
            entry = _describe_unseen(stream, found)
        else:
            entry = found[1]
            if ledger_error is None and adopting is None:
                entry["next_commands"] = list_stream_commands(
                    *(workspace, stream, entry["next_commands"], active),
                    asked={one["recovery"]: one["next_commands"] for one in standings},
                )
            if len(streams) == 1:
                entry |= describe_trouble(workspace, stream, entry)
        if adopting is not None and (commands := entry.get("next_commands")):
            theirs = [one for one in commands if not one.startswith("backlogctl ")]
            ours = [looking, *adopting] if entry.get("held") else adopting
            entry["next_commands"] = [*theirs, *ours]
        entries.append({**entry, "standings": standings})
    document: dict[str, Any] = {"streams": entries}
    if ledger_error is not None:
        document["ledger_error"] = mask_document(ledger_error.to_json())
    return document


def open_for_looking(
    session: Session,
    bootstrap: str | None,
    cluster: str | None,
    group: str | None,
    topics: list[str] | None,
) -> Workspace:
    """The configuration's workspace, or one in memory for a group that no stream is about."""
    from backlogctl.config import Config
    from backlogctl.errors import UsageError
    from backlogctl.kafka.clients import reach_cluster
    from backlogctl.replay.observe.stream import list_group_topics
    from backlogctl.replay.opening import open_workspace

    if bootstrap is None and cluster is None:
        if group or topics:
            raise UsageError(
                "--group and --topic go with --bootstrap or --cluster", subject="--group"
            )
        return session.open_workspace()
    if bootstrap is not None and (session.config_path is not None or cluster is not None):
        other = "--config" if cluster is None else "--cluster"
        raise UsageError(f"--bootstrap and {other} exclude each other", subject="--bootstrap")
    if not group:
        option = "--cluster" if bootstrap is None else "--bootstrap"
        raise UsageError(f"{option} needs --group", subject="--group")
    if bootstrap is not None:
        config, name = Config.for_bootstrap(bootstrap, group, ()), "default"
    else:
        assert cluster is not None
        config, name = session.load_config().for_group(cluster, group, ()), cluster
    properties = config.clusters[name].client_properties()
    if not topics:
        reach_cluster(properties, f"cluster {properties['bootstrap.servers']}")
    found = topics or list_group_topics(properties, group)
    if not found:
        raise UsageError(
            "the group has committed on no topic",
            subject=f"group {group}",
            hint="check its name, or name the topic with --topic",
        )
    return open_workspace(config.for_group(name, group, found), passing=True)


def suggest_adoption(
    bootstrap: str | None, cluster: str | None, group: str | None
) -> tuple[str, ...] | None:
    """What to type where no stream is about a group, since every other command needs one; None
    where the configuration's streams are looked at."""
    from backlogctl_delivery.visible import join_words

    if bootstrap is not None:
        return (
            join_words(("backlogctl", "init", "--bootstrap", bootstrap, "--group", str(group))),
        )
    return None if cluster is None else ()


def suggest_listing(bootstrap: str | None, cluster: str | None, group: str | None) -> str:
    """What lists the open transactions of such a group's topics."""
    from backlogctl_delivery.visible import join_words

    place = ("--bootstrap", bootstrap) if bootstrap is not None else ("--cluster", str(cluster))
    return join_words(("backlogctl", "transactions", "list", *place, "--group", str(group)))


# With these a group does its work: it keeps up, or has been watched for too short a time.
_QUIET = ("ok", "lagging")


def needs_somebody(entry: Mapping[str, Any]) -> bool:
    """Whether `status --check` says so: a verdict, a stream that cannot be seen, or a recovery
    that waits for a person."""
    return entry["verdict"] not in _QUIET or "error" in entry or bool(entry["standings"])


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
    if "ledger_error" in document or any("error" in one for one in document["streams"]):
        raise typer.Exit(1)
