"""Which outbox a verb is about: named, by its URL, or the only one of the configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlogctl.errors import BacklogError, Refused, UsageError
from backlogctl.replay.cli.shared import Session, mask_document, read_duration, read_states, verb
from backlogctl.replay.cli.watch import serve_metrics
from backlogctl.values import to_document

if TYPE_CHECKING:
    from datetime import timedelta
    from threading import Event

    from prometheus_client import CollectorRegistry
    from rich.console import RenderableType

    from backlogctl.config import Config, OutboxSection
    from backlogctl_delivery.outbox.admin import OutboxAdmin, OutboxEntry
    from backlogctl_delivery.outbox.sender import OutboxSender

VARIABLE = "BACKLOG_OUTBOX_URL"
OutboxOption = Annotated[
    str | None,
    typer.Option(
        "--outbox", help="A name under `outboxes` of the configuration.", show_default=False
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help=f"The application's database; with a password better in {VARIABLE}. Without either "
        "the only outbox of the configuration.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """An outbox; of one that only its URL says `name` is "" and `settings` None."""

    name: str
    url: str
    settings: OutboxSection | None
    config: Config | None

    @contextmanager
    def open_desk(self) -> Iterator[OutboxAdmin]:
        """Its verbs; its connections are closed in the end.

        Raises:
            ConfigurationError: the URL is none that can hold an outbox.
        """
        from backlogctl_delivery.outbox.admin import OutboxAdmin
        from backlogctl_delivery.outbox.database import OutboxDatabase

        with closing(OutboxAdmin(OutboxDatabase(self.url))) as desk:
            yield desk


def choose_outbox(session: Session, name: str | None, url: str | None) -> Chosen:
    """The one that is meant.

    Raises:
        UsageError: none is, or more than one may be.
        ConfigurationError: the configuration is wrong.
    """
    found = choose_outboxes(session, name, url)
    if len(found) > 1:
        raise UsageError(
            "it must be told which outbox",
            subject="outbox",
            hint=f"--outbox {' or '.join(one.name for one in found)}",
        )
    return found[0]


def choose_outboxes(session: Session, name: str | None, url: str | None) -> tuple[Chosen, ...]:
    """Those that may be meant: `--url`, `--outbox`, the variable, else all of the configuration.

    What is typed goes before the variable: a copied `--outbox billing` is not about another one.
    """
    if name is not None:
        config = session.load_config()
        if name not in config.outboxes:
            raise _refuse_unknown(name, config.outboxes)
        return (_describe(config, name, url),)
    if url := url or os.environ.get(VARIABLE):
        return (Chosen("", url, None, None),)
    known: Config | None = session.load_config() if session.find_config_path() else None
    if known is None or not known.outboxes:
        raise UsageError(
            "it must be told which database",
            subject="outbox",
            hint=f"--url, {VARIABLE}, or `outboxes` in the configuration",
        )
    return tuple(_describe(known, one) for one in known.outboxes)


def _describe(config: Config, name: str, url: str | None = None) -> Chosen:
    return Chosen(name, url or config.sources[name].reveal_url(), config.outboxes[name], config)


def _refuse_unknown(name: str, known: Mapping[str, object]) -> UsageError:
    from backlogctl.config.base import describe_unknown

    return UsageError(describe_unknown("outbox", name, known), subject=f"--outbox {name}")


@verb
def show_status(session: Session, outbox: OutboxOption = None, url: UrlOption = None) -> None:
    """Count what is not sent. Without a name all outboxes of the configuration.

    Exit code: 0 nothing is parked, 1 something is, or one could not be read.
    """
    chosen = choose_outboxes(session, outbox, url)
    if len(chosen) == 1:
        document = _read_status(chosen[0])
        session.emit(document, _tell_status(chosen[0], document))
        needs_somebody = bool(document["parked"])
    else:
        found = [(one, _try_status(one)) for one in chosen]
        lines = [line for one, document in found for line in _tell_status(one, document)]
        session.emit({"outboxes": [document for _, document in found]}, lines)
        needs_somebody = any(one.get("parked") or "error" in one for _, one in found)
    if needs_somebody:
        raise typer.Exit(1)


@verb
def list_entries(
    session: Session,
    outbox: OutboxOption = None,
    url: UrlOption = None,
    state: Annotated[
        list[str] | None, typer.Option(help="pending, in_progress, sent, parked; else all unsent.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only to this topic.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=10_000, help="How many.")] = 50,
) -> None:
    """List messages, oldest first: sizes and ids, no payload."""
    from backlogctl_delivery.outbox.database import State

    states = read_states(State, state) or ()
    with choose_outbox(session, outbox, url).open_desk() as desk:
        found = desk.list_entries(states, topic, limit)
    document = {"messages": [to_document(entry) for entry in found]}
    session.emit(document, _draw(found) if found else "no such message")


@verb
def show_entry(
    session: Session,
    row: Annotated[int, typer.Argument(help="The row's id.")],
    outbox: OutboxOption = None,
    url: UrlOption = None,
) -> None:
    """Show one message: where it stands, and why it is not sent. No payload."""
    from backlogctl.replay.present.tables import render_fields

    with choose_outbox(session, outbox, url).open_desk() as desk:
        document = to_document(desk.get_entry(row))
    session.emit(document, render_fields(document))


def _read_status(chosen: Chosen) -> dict[str, Any]:
    names = ("pending", "in_progress", "parked", "failed", "ahead", "oldest_seconds")
    with chosen.open_desk() as desk:
        status = to_document(desk.read_status(), *names)
    return {"outbox": desk.label, "name": chosen.name or None, **status}


def _try_status(chosen: Chosen) -> dict[str, Any]:
    """One that cannot be read leaves the others to be read."""
    try:
        return _read_status(chosen)
    except BacklogError as error:
        return {"name": chosen.name, "error": mask_document(error.to_json())}


def _tell_status(chosen: Chosen, document: dict[str, Any]) -> Sequence[str]:
    from backlogctl.formats import format_duration

    name = chosen.name or document["outbox"]
    if "error" in document:
        return [f"{name}: unknown: {document['error']['message']}"]
    unsent = sum(document[state] for state in ("pending", "in_progress", "parked"))
    age = document["oldest_seconds"]
    option = f" --outbox {chosen.name}" if chosen.name else ""
    return [
        f"{name}: {unsent:,} not sent",
        f"{document['pending']:,} pending, {document['in_progress']:,} in progress, "
        f"{document['parked']:,} parked",
        *([] if age is None else [f"the oldest was added {format_duration(age)} ago"]),
        *(
            [
                f"tried before, and waiting: {document['failed']:,}; "
                f"`backlogctl outbox list{option}` says why"
            ]
            if document["failed"]
            else []
        ),
        *(
            [
                f"written by a clock ahead of the database's: {document['ahead']:,}; a sender "
                "takes them up"
            ]
            if document["ahead"]
            else []
        ),
        *([f"next: backlogctl outbox list{option} --state parked"] if document["parked"] else []),
    ]


def _draw(entries: list[OutboxEntry]) -> RenderableType:
    from backlogctl.clock import format_time
    from backlogctl.replay.present.layout import Table

    return Table(
        *("#id", "topic", "=state", "#attempts", "=added", "#bytes", "last error"),
        rows=[
            (
                str(entry.id),
                entry.topic,
                str(entry.state),
                f"{entry.attempts} of {entry.max_attempts}",
                format_time(entry.created_at)[:19] + "Z",
                "null" if entry.value_bytes is None else f"{entry.value_bytes:,}",
                entry.last_error or "",
            )
            for entry in entries
        ],
    )


RowIds = Annotated[list[int], typer.Argument(help="Rows, by the id that `outbox list` shows.")]
DEFAULT_KEEP = "30d"


@verb
def create_table(session: Session, outbox: OutboxOption = None, url: UrlOption = None) -> None:
    """Make the table where it is not there; an application's own Alembic may do so instead."""
    with choose_outbox(session, outbox, url).open_desk() as desk:
        desk.create()
    session.emit({"outbox": desk.label, "table": "there"}, f"{desk.label}: the table is there")


@verb
def retry_entries(
    session: Session,
    outbox: OutboxOption = None,
    url: UrlOption = None,
    rows: Annotated[list[int] | None, typer.Argument(help="Rows, by their ids.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that are parked.")] = False,
) -> None:
    """Take parked messages up again, from their first attempt."""
    if bool(rows) == every:
        raise UsageError("name rows, or --all", subject="outbox retry")
    with choose_outbox(session, outbox, url).open_desk() as desk:
        count = desk.retry(rows or (), all_parked=every)
    session.emit({"retried": count}, f"{count:,} due again")


@verb
def park_entries(
    session: Session, rows: RowIds, outbox: OutboxOption = None, url: UrlOption = None
) -> None:
    """Hold messages back, and with each the later ones of its key."""
    with choose_outbox(session, outbox, url).open_desk() as desk:
        count = desk.park(rows)
    session.emit({"parked": count}, f"{count:,} parked; `backlogctl outbox retry` sends them")


@verb
def purge_entries(
    session: Session,
    outbox: OutboxOption = None,
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
    chosen = choose_outbox(session, outbox, url)
    if discard is not None:
        if allow != ["lose"]:
            raise Refused(
                "its message would never be sent",
                subject=f"outbox message {discard}",
                hint="say --allow lose if that is meant",
            )
        with chosen.open_desk() as desk:
            desk.discard(discard)
        session.emit({"discarded": discard}, f"message {discard} is deleted; its key goes on")
        return
    age = read_duration(older_than, "--older-than")
    with chosen.open_desk() as desk:
        deleted = desk.purge(age, batch=batch, most=most)
    more = "; there may be more" if deleted == most else ""
    session.emit({"deleted": deleted}, f"{deleted:,} deleted{more}")


_PURGE_SECONDS = 60.0


@verb
def run_sender(
    session: Session,
    outbox: OutboxOption = None,
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
    partitioner: Annotated[
        str | None,
        typer.Option(
            help="How keys choose a partition, murmur2 or crc32; else as the configuration "
            "says, else murmur2."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="Serve /metrics there; port 0 takes a free one.", metavar="HOST:PORT"),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            help="How long a crashed sender's messages wait for another one; else as the "
            "configuration says, else 60s."
        ),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Delete what was sent so long ago, in batches; else keep it.")
    ] = None,
    until_sent: Annotated[
        bool,
        typer.Option(
            "--until-sent", help="End when all is sent, or parked. Exit code 1: some is not sent."
        ),
    ] = False,
) -> None:
    """Send what is due until Ctrl-C or SIGTERM; any number may run side by side.

    What no option says is as the configuration says under `outboxes`.
    """
    from backlogctl_delivery.outbox.sender import OutboxSender

    chosen = choose_outbox(session, outbox, url)
    terms = _choose_terms(chosen, partitioner, lease, keep)
    kafka = _choose_cluster(session, chosen, bootstrap, client_config, cluster)
    subject = "--listen"
    if listen is None and chosen.settings is not None:
        listen, subject = chosen.settings.listen, f"outboxes.{chosen.name}.listen"
    with chosen.open_desk() as desk:
        # A wrong URL, or a table of an older version, is told before anything is awaited.
        desk.check()
        client = {**kafka, "partitioner": terms.partitioner}
        sender = OutboxSender(chosen.url, client, terms.settings)
        serving = (
            nullcontext("")
            if listen is None
            else serve_metrics(_make_registry(chosen, desk, sender), listen, subject)
        )
        with serving as address:
            if address:
                session.say(f"metrics at http://{address}/metrics")
            session.say(f"{desk.label}: sending what is due")
            _send(desk, sender, terms.keep, until_sent=until_sent)
        session.emit(
            {"delivered": sender.counts.delivered, "parked": sender.counts.parked},
            f"{sender.counts.delivered:,} delivered, {sender.counts.parked:,} parked",
        )
        left = desk.read_status() if until_sent else None
    if left is not None and left.unsent:
        option = f" --outbox {chosen.name}" if chosen.name else ""
        parked = " --state parked" if left.parked else ""
        session.say(f"{left.unsent:,} not sent; next: backlogctl outbox list{option}{parked}")
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Terms:
    """How it sends: by the options, else by the configuration."""

    partitioner: str
    settings: Any
    keep: timedelta | None


def _choose_terms(
    chosen: Chosen, partitioner: str | None, lease: str | None, keep: str | None
) -> _Terms:
    from backlogctl_delivery.kafka import PARTITIONERS
    from backlogctl_delivery.outbox.sender import Settings

    told = chosen.settings
    named = partitioner or (told.partitioner if told else "murmur2")
    if named not in PARTITIONERS:
        raise UsageError(
            f"no such partitioner: {named}",
            subject="--partitioner",
            hint=f"one of {', '.join(PARTITIONERS)}",
        )
    length = told.lease if told else Settings().lease
    if lease is not None:
        length = read_duration(lease, "--lease")
    kept = told.keep if told else None
    if keep is not None:
        kept = read_duration(keep, "--keep")
    within = min(Settings().delivery_timeout, length / 3)
    return _Terms(PARTITIONERS[named], Settings(lease=length, delivery_timeout=within), kept)


def _choose_cluster(
    session: Session,
    chosen: Chosen,
    bootstrap: str | None,
    client_config: Path | None,
    cluster: str | None,
) -> dict[str, str]:
    """Client properties: of the options, else of the outbox's cluster."""
    by_option = bootstrap is not None or client_config is not None
    if by_option and cluster is not None:
        raise _refuse_brokers()
    if by_option:
        return _read_properties(bootstrap, client_config)
    if cluster is None and chosen.settings is not None:
        cluster = chosen.settings.cluster
    if cluster is None:
        raise _refuse_brokers()
    config: Config = chosen.config or session.load_config()
    if cluster not in config.clusters:
        known = ", ".join(config.clusters)
        raise UsageError(f"no such cluster: {cluster}", hint=f"one of {known}")
    return config.clusters[cluster].client_properties()


def _refuse_brokers() -> UsageError:
    return UsageError(
        "it must be told which brokers, once",
        subject="outbox run",
        hint="give --bootstrap, --client-config or --cluster, or --outbox of the configuration",
    )


def _read_properties(bootstrap: str | None, client_config: Path | None) -> dict[str, str]:
    from backlogctl.config.template import read_client_properties

    if client_config is None:
        return {"bootstrap.servers": bootstrap or ""}
    found = read_client_properties(client_config, bootstrap)
    values = {f"${{env:{name}}}": value for name, value in found.values.items()}
    return {name: values.get(value, value) for name, value in found.properties.items()}


def _make_registry(chosen: Chosen, desk: OutboxAdmin, sender: OutboxSender) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry

    from backlogctl_delivery.outbox.metrics import OutboxCollector

    registry = CollectorRegistry()
    registry.register(OutboxCollector(desk, lambda: sender, chosen.name or desk.name))
    return registry


def _send(
    desk: OutboxAdmin, sender: OutboxSender, keep: timedelta | None, *, until_sent: bool
) -> None:
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


def _purge_now_and_then(desk: OutboxAdmin, keep: timedelta, ended: Event) -> None:
    from contextlib import suppress

    while not ended.is_set():
        # The sender tells where the database is away.
        with suppress(BacklogError):
            desk.purge(keep, batch=1_000, most=100_000)
        ended.wait(_PURGE_SECONDS)


def _end_when_sent(desk: OutboxAdmin, sender: OutboxSender, ended: Event) -> None:
    from contextlib import suppress

    while not ended.wait(0.5):
        with suppress(BacklogError):
            if not desk.count_awaited():
                ended.set()
                sender.close()


outbox = typer.Typer(help="Send what applications committed; see and mend what is not sent.")
outbox.command("create")(create_table)
outbox.command("run")(run_sender)
outbox.command("status")(show_status)
outbox.command("list")(list_entries)
outbox.command("show")(show_entry)
outbox.command("retry")(retry_entries)
outbox.command("park")(park_entries)
outbox.command("purge")(purge_entries)
