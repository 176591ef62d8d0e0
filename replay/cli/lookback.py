"""`backlogctl lookback`: transactional messages, and who is asked when an application is silent."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlogctl.errors import BacklogError, ConfigurationError, Refused, UsageError
from backlogctl.replay.cli.shared import Session, read_states, verb
from backlogctl.replay.cli.watch import serve_metrics

if TYPE_CHECKING:
    from backlogctl.config import Config, LookBack
    from backlogctl_delivery.lookback.tables import LookBackDatabase

lookback = typer.Typer(help="Forward prepared messages once their transactions have committed.")

MessageId = Annotated[str, typer.Argument(help="The message's id: its `backlog-event-id`.")]
_ALL_AT_ONCE = 500


@lookback.command("run")
@verb
def run_service(
    session: Session,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Serve /metrics here instead of `look_back.listen`.", metavar="HOST:PORT"
        ),
    ] = None,
) -> None:
    """Read, ask and forward until Ctrl-C or SIGTERM. Any number of instances side by side.

    Makes its tables where there are none.
    """
    from backlogctl.clock import utc_now
    from backlogctl.config import mask_secrets
    from backlogctl_delivery.lookback.service import Service

    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    def say(part: str, error: BacklogError | None) -> None:
        text = "works again" if error is None else mask_secrets(str(error))
        style = "green" if error is None else "red"
        session.say(f"{utc_now():%Y-%m-%d %H:%M:%S}Z {part}: {text}", style)

    with _open(session) as (config, settings, database):
        properties = config.clusters[settings.cluster].client_properties()
        service = Service(database, settings.to_settings(), properties, say)
        with serve_metrics(
            service.metrics.registry, listen or settings.listen, "look_back.listen"
        ) as address:
            session.say(f"serving http://{address}/metrics")
            session.say(f"reading {settings.topic}; Ctrl-C ends it")
            service.run(stop)
    session.emit({"ended": True}, "ended")


@lookback.command("status")
@verb
def show_status(session: Session) -> None:
    """Show how many messages wait, how long, and what is parked."""
    from backlogctl.replay.present.tables import render_rows
    from backlogctl.replay.present.terminal import render_next
    from backlogctl_delivery.lookback.admin import count_incidents, count_messages

    with _open(session) as (_, _, database):
        counts = count_messages(database)
        incidents = count_incidents(database)
    document: dict[str, Any] = {
        "states": [
            {"state": one.state, "messages": one.messages, "oldest_seconds": one.oldest_seconds}
            for one in counts
        ],
        "incidents": incidents,
    }
    parked = any(one.messages for one in counts if one.state == "parked")
    session.emit(
        document,
        render_rows(document["states"], ("=state", "#messages", "#oldest_seconds")),
        f"{incidents} incidents: records that did not fit",
        render_next("backlogctl lookback list --state parked") if parked else (),
    )


@lookback.command("list")
@verb
def list_all(
    session: Session,
    state: Annotated[
        list[str] | None, typer.Option(help="Only in this state; without it all that wait.")
    ] = None,
    service: Annotated[str | None, typer.Option(help="Only of this service.")] = None,
    incidents: Annotated[
        bool, typer.Option("--incidents", help="Records that did not fit, newest first.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 100,
) -> None:
    """List messages, oldest first, or what did not fit. What messages hold is not shown."""
    from backlogctl.replay.present.tables import render_rows
    from backlogctl_delivery.lookback.admin import OPEN, list_incidents, list_messages
    from backlogctl_delivery.lookback.messages import State

    with _open(session) as (_, _, database):
        if incidents:
            found = list_incidents(database, limit)
            columns = ["=at", "=kind", "biz_type", "biz_id", "reason", "=message_id"]
        else:
            states = read_states(State, state) or OPEN
            found = list_messages(database, states, limit, service)
            columns = ["=id", "biz_type", "biz_id", "service", "=state", "#checks", "last_outcome"]
    name = "incidents" if incidents else "messages"
    document = {name: [dict(row) for row in found]}
    session.emit(document, render_rows(document[name], columns))


@lookback.command("show")
@verb
def show_one(session: Session, message: MessageId) -> None:
    """Show all that is known of a message but what it holds."""
    from backlogctl.replay.present.tables import render_fields
    from backlogctl_delivery.lookback.admin import show_message

    with _open(session) as (_, _, database):
        document = show_message(database, message)
    told = [f"{one['at']} {one['kind']}: {one['reason']}" for one in document["incidents"]]
    session.emit(document, render_fields({**document, "incidents": told}))


@lookback.command("park")
@verb
def park(session: Session, message: MessageId) -> None:
    """Park a message: nobody is asked about it until it is resumed."""
    import getpass

    from backlogctl_delivery.lookback.admin import park_message

    with _open(session) as (_, _, database):
        park_message(database, message, getpass.getuser())
    session.emit({"id": message, "state": "parked"}, f"message {message} is parked")


@lookback.command("resume")
@verb
def resume(
    session: Session,
    messages: Annotated[
        list[str] | None, typer.Argument(help="Ids of parked messages.", metavar="[MESSAGE]...")
    ] = None,
    take_all: Annotated[bool, typer.Option("--all", help="All that are parked.")] = False,
) -> None:
    """Take parked messages up again, with all their tries."""
    from backlogctl_delivery.lookback.admin import resume_messages

    if bool(messages) == take_all:
        raise UsageError("give ids, or --all", subject="lookback resume")
    resumed: list[str] = []
    with _open(session) as (_, settings, database):
        wanted = None if take_all else list(messages or ())
        while part := resume_messages(database, settings.to_settings(), wanted, _ALL_AT_ONCE):
            resumed += part
    if missing := set(messages or ()) - set(resumed):
        raise Refused(
            f"not parked: {', '.join(sorted(missing))}",
            subject="lookback resume",
            hint=f"{len(resumed)} others were resumed; see `backlogctl lookback show ID`",
        )
    session.emit({"resumed": resumed}, f"{len(resumed)} resumed")


@contextmanager
def _open(session: Session) -> Iterator[tuple[Config, LookBack, LookBackDatabase]]:
    from backlogctl_delivery.lookback.tables import LookBackDatabase

    config = session.load_config()
    if config.look_back is None:
        raise ConfigurationError(
            "the configuration has no such section",
            subject="look_back",
            hint="docs/look-back.md shows one",
        )
    database = LookBackDatabase(config.look_back.reveal_url())
    try:
        yield config, config.look_back, database
    finally:
        database.close()
