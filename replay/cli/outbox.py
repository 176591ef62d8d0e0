"""`backlogctl outbox`: messages that an application committed and that are to be sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from datetime import timedelta
    from threading import Event

    from rich.console import Console, RenderableType

    from delivery.outbox.desk import Desk, OutboxEntry
    from delivery.outbox.sender import OutboxSender

outbox = typer.Typer(help="Send what applications committed; see and mend what is not sent.")

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="BACKLOG_OUTBOX_URL",
        help="The application's database; with a password better in the variable.",
        show_default=False,
    ),
]
RowIds = Annotated[list[int], typer.Argument(help="Rows, by the id that `outbox list` shows.")]
DEFAULT_KEEP = "7d"


@outbox.callback()
def _outbox() -> None:
    """Send what applications committed; see and mend what is not sent."""


@outbox.command("create")
@verb
def create(session: Session, url: UrlOption = None) -> None:
    """Make the table where it is not there; an application's own Alembic may do so instead."""
    desk = _open_desk(url)
    desk.create()
    session.emit({"outbox": desk.label, "table": "there"}, f"{desk.label}: the table is there")


@outbox.command("run")
@verb
def run(
    session: Session,
    url: UrlOption = None,
    bootstrap: Annotated[
        str | None, typer.Option(help="The brokers, host:port, by commas.", show_default=False)
    ] = None,
    client_config: Annotated[
        Path | None,
        typer.Option(
            help="A file of librdkafka's properties, `name=value` a line.", metavar="FILE"
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="A name under `clusters` of the configuration.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve /metrics there.", min=0, max=65535)
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    lease: Annotated[
        str, typer.Option(help="How long a crashed sender's messages wait for another one.")
    ] = "60s",
    keep: Annotated[
        str | None, typer.Option(help="Delete what was sent so long ago, in batches; else keep it.")
    ] = None,
    until_sent: Annotated[
        bool, typer.Option("--until-sent", help="End when all is sent, or parked: exit code 1.")
    ] = False,
) -> None:
    """Send what is due until Ctrl-C or SIGTERM; any number may run side by side."""
    from backlog.errors import UsageError
    from delivery.outbox.sender import OutboxSender, Settings

    kept = None if keep is None else _read_duration(keep, "--keep")
    length = _read_duration(lease, "--lease")
    given = [bootstrap is not None or client_config is not None, cluster is not None]
    if sum(given) != 1:
        raise UsageError(
            "it must be told which brokers, once",
            subject="outbox run",
            hint="give --bootstrap, --client-config or --cluster",
        )
    kafka = _read_properties(session, bootstrap, client_config, cluster)
    settings = Settings(lease=length, delivery_timeout=min(Settings().delivery_timeout, length / 3))
    desk = _open_desk(url)
    desk.read_status()  # a wrong URL, or a missing table, is told before anything is awaited
    sender = OutboxSender(_need(url), kafka, settings)
    if metrics_port is not None:
        at = _serve_metrics(desk, sender, metrics_host, metrics_port)
        session.say(f"metrics at http://{metrics_host}:{at}/metrics")
    session.say(f"{desk.label}: sending what is due")
    _send(desk, sender, kept, until_sent=until_sent)
    session.emit(
        {"delivered": sender.counts.delivered, "parked": sender.counts.parked},
        f"{sender.counts.delivered:,} delivered, {sender.counts.parked:,} parked",
    )
    left = desk.read_status() if until_sent else None
    desk.close()
    if left is not None and left.parked:
        session.say("next: backlogctl outbox list --state parked")
        raise typer.Exit(1)


@outbox.command("status")
@verb
def show_status(session: Session, url: UrlOption = None) -> None:
    """Count what is not sent. Exit code: 0 nothing is parked, 1 something is."""
    from backlog.numbers import format_duration

    desk = _open_desk(url)
    status = desk.read_status()
    document = {
        "outbox": desk.label,
        "pending": status.pending,
        "in_progress": status.in_progress,
        "parked": status.parked,
        "failed": status.failed,
        "oldest_seconds": status.oldest_seconds,
    }
    age = status.oldest_seconds
    lines = [
        f"{desk.label}: {status.unsent:,} not sent",
        f"{status.pending:,} pending, {status.in_progress:,} in progress, {status.parked:,} parked",
        *([] if age is None else [f"the oldest was added {format_duration(age)} ago"]),
        *(
            [f"tried before, and waiting: {status.failed:,}; `backlogctl outbox list` says why"]
            if status.failed
            else []
        ),
        *(["next: backlogctl outbox list --state parked"] if status.parked else []),
    ]
    session.emit(document, lines)
    if status.parked:
        raise typer.Exit(1)


@outbox.command("list")
@verb
def list_entries(
    session: Session,
    url: UrlOption = None,
    state: Annotated[
        list[str] | None, typer.Option(help="pending, in_progress, sent, parked; else all unsent.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only to this topic.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=10_000, help="How many.")] = 50,
) -> None:
    """List messages, oldest first: sizes and ids, no payload."""
    from delivery.outbox.tables import State
    from replay.cli.shared import print_text, read_states

    found = _open_desk(url).list_entries(read_states(State, state) or (), topic, count)

    def show(console: Console) -> None:
        if found:
            console.print(_draw(found))
        else:
            print_text(console, "no such message")

    session.emit({"messages": [_describe(entry) for entry in found]}, show)


@outbox.command("show")
@verb
def show(
    session: Session,
    row: Annotated[int, typer.Argument(help="The row's id.")],
    url: UrlOption = None,
) -> None:
    """Show one message: where it stands, and why it is not sent. No payload."""
    from backlog.visible import escape_name

    document = _describe(_open_desk(url).get_entry(row))
    shown = {**document, "headers": ", ".join(document["headers"]) or None}
    lines = [
        f"{name.replace('_', ' ')}: {escape_name(str(value))}"
        for name, value in shown.items()
        if value is not None
    ]
    session.emit(document, lines)


@outbox.command("retry")
@verb
def retry(
    session: Session,
    url: UrlOption = None,
    rows: Annotated[list[int] | None, typer.Argument(help="Rows, by their ids.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that are parked.")] = False,
) -> None:
    """Take parked messages up again, from their first attempt."""
    from backlog.errors import UsageError

    if bool(rows) == every:
        raise UsageError("name rows, or --all", subject="outbox retry")
    count = _open_desk(url).retry(rows or (), all_parked=every)
    session.emit({"retried": count}, f"{count:,} due again")


@outbox.command("park")
@verb
def park(session: Session, rows: RowIds, url: UrlOption = None) -> None:
    """Hold messages back, and with each the later ones of its key."""
    count = _open_desk(url).park(rows)
    session.emit({"parked": count}, f"{count:,} parked; `backlogctl outbox retry` sends them")


@outbox.command("purge")
@verb
def purge(
    session: Session,
    url: UrlOption = None,
    older_than: Annotated[str, typer.Option(help="Sent so long ago.")] = DEFAULT_KEEP,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Rows in one transaction.")] = 1_000,
    most: Annotated[int, typer.Option(min=1, help="Rows in all.")] = 1_000_000,
    discard: Annotated[
        int | None, typer.Option(help="This parked row instead; needs --allow lose.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="`lose`: the discarded message is never sent.")
    ] = None,
) -> None:
    """Delete what was sent long ago, in batches; what is not sent stays."""
    from backlog.errors import Refused

    desk = _open_desk(url)
    if discard is not None:
        if allow != ["lose"]:
            raise Refused(
                "its message would never be sent",
                subject=f"outbox message {discard}",
                hint="say --allow lose if that is meant",
            )
        desk.discard(discard)
        session.emit({"discarded": discard}, f"message {discard} is deleted; its key goes on")
        return
    deleted = desk.purge(_read_duration(older_than, "--older-than"), batch=batch, most=most)
    more = "; there may be more" if deleted == most else ""
    session.emit({"deleted": deleted}, f"{deleted:,} deleted{more}")


def _need(url: str | None) -> str:
    from backlog.errors import UsageError

    if not url:
        raise UsageError(
            "it must be told which database", subject="outbox", hint="--url, or BACKLOG_OUTBOX_URL"
        )
    return url


def _open_desk(url: str | None) -> Desk:
    from delivery.outbox.databases import Database
    from delivery.outbox.desk import Desk

    return Desk(Database(_need(url)))


def _read_duration(text: str, option: str) -> timedelta:
    from backlog.clock import parse_duration
    from backlog.errors import UsageError

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(str(error), subject=option) from None


def _read_properties(
    session: Session, bootstrap: str | None, client_config: Path | None, cluster: str | None
) -> dict[str, str]:
    from backlog.config.client_file import read_client_file
    from backlog.errors import UsageError

    if cluster is not None:
        clusters = session.load_config().clusters
        if cluster not in clusters:
            raise UsageError(f"no such cluster: {cluster}", hint=f"one of {', '.join(clusters)}")
        return clusters[cluster].client_properties()
    if client_config is None:
        return {"bootstrap.servers": bootstrap or ""}
    found = read_client_file(client_config, bootstrap)
    values = {f"${{env:{name}}}": value for name, value in found.values.items()}
    return {name: values.get(value, value) for name, value in found.properties.items()}


def _serve_metrics(desk: Desk, sender: OutboxSender, host: str, port: int) -> int:
    from prometheus_client import CollectorRegistry, start_http_server

    from delivery.outbox.metrics import OutboxCollector

    registry = CollectorRegistry()
    registry.register(OutboxCollector(desk, sender))
    server, _ = start_http_server(port, host, registry)
    return int(server.server_port)


def _send(desk: Desk, sender: OutboxSender, keep: timedelta | None, *, until_sent: bool) -> None:
    """Until somebody asks for an end; what is in flight is told before."""
    import signal
    import threading

    ended = threading.Event()

    def stop(*_: Any) -> None:
        ended.set()
        sender.close()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    if keep is not None:
        threading.Thread(target=_purge_now_and_then, args=(desk, keep, ended), daemon=True).start()
    if until_sent:
        threading.Thread(target=_end_when_sent, args=(desk, sender, ended), daemon=True).start()
    try:
        sender.run()
    finally:
        ended.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def _purge_now_and_then(desk: Desk, keep: timedelta, ended: Event) -> None:
    from contextlib import suppress

    from backlog.errors import BacklogError

    while not ended.wait(60):
        # The sender tells where the database is away.
        with suppress(BacklogError):
            desk.purge(keep, batch=1_000, most=100_000)


def _end_when_sent(desk: Desk, sender: OutboxSender, ended: Event) -> None:
    from contextlib import suppress

    from backlog.errors import BacklogError

    while not ended.wait(0.5):
        with suppress(BacklogError):
            if not desk.count_awaited():
                ended.set()
                sender.close()


def _describe(entry: OutboxEntry) -> dict[str, Any]:
    from dataclasses import asdict
    from datetime import datetime

    from backlog.clock import format_time

    return {
        name: format_time(value) if isinstance(value, datetime) else value
        for name, value in asdict(entry).items()
    }


def _draw(entries: list[OutboxEntry]) -> RenderableType:
    from backlog.clock import format_time
    from replay.telling.terminal import make_table

    table = make_table("#id", "topic", "=state", "#attempts", "=added", "#bytes", "last error")
    for entry in entries:
        table.add(
            str(entry.id),
            entry.topic,
            str(entry.state),
            f"{entry.attempts} of {entry.max_attempts}",
            format_time(entry.created_at)[:19] + "Z",
            "null" if entry.value_bytes is None else f"{entry.value_bytes:,}",
            entry.last_error or "",
        )
    return table
