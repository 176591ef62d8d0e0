"""`outbox run`: sends what is due, until somebody asks for an end."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlog.errors import BacklogError, UsageError
from replay.cli.outbox.choosing import (
    Chosen,
    OutboxOption,
    UrlOption,
    choose_outbox,
    read_duration,
)
from replay.cli.serving import serve_metrics
from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from threading import Event

    from prometheus_client import CollectorRegistry

    from backlog.config import Config
    from backlogctl_delivery.outbox.admin import OutboxAdmin
    from backlogctl_delivery.outbox.sender import OutboxSender

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
    desk = chosen.open_desk()
    desk.check()  # a wrong URL, or a table of an older version, is told before anything is awaited
    sender = OutboxSender(chosen.url, {**kafka, "partitioner": terms.partitioner}, terms.settings)
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
    desk.close()
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
    from backlog.config.client_file import read_client_properties

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
