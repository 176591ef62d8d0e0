"""`backlogctl watch`: sample on an interval, so that losses get times and witnesses."""

from __future__ import annotations

import signal
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from monitoring.observing import Observation
    from replay.exporting import Exporter


@verb
def watch_streams(
    session: Session,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="End after so many rounds.", min=1)
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            help="Serve /metrics and the page here instead of `watch.listen`; port 0: a free one.",
            metavar="HOST:PORT",
        ),
    ] = None,
    no_serve: Annotated[bool, typer.Option("--no-serve", help="Serve nothing.")] = False,
) -> None:
    """Sample every stream, and all groups of its cluster, on an interval until Ctrl-C.

    Tells and records gaps, gives holds back, and serves /metrics, /healthz, /readyz and a page.
    With --rounds it serves only if --listen is given.
    """
    from contextlib import ExitStack

    from backlog.clock import utc_now
    from backlog.config import mask_secrets
    from backlog.errors import BacklogError, UsageError
    from backlog.numbers import format_count, format_plural
    from monitoring.watcher import watch_streams as watch_all
    from replay.holds import release_due
    from replay.observation import tell_findings

    if listen is not None and no_serve:
        raise UsageError("--listen and --no-serve exclude each other", subject="--listen")
    workspace = session.open_workspace()
    config = workspace.config
    count = len(config.streams)
    if not config.clusters:
        raise UsageError(
            "the configuration has no clusters", subject="clusters", hint="add one under `clusters`"
        )
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    known = {gap.id for gap in workspace.ledger.gaps.list()}
    told: set[str] = set()
    new = 0
    look_at = utc_now()  # when due holds are looked for again

    def say(text: str, style: str = "") -> None:
        session.say(f"{utc_now():%Y-%m-%d %H:%M:%S}Z {mask_secrets(text)}", style)

    def give_back() -> None:
        nonlocal look_at
        if utc_now() < look_at:
            return
        look_at = utc_now() + config.watch.interval
        try:
            sentences = release_due(workspace)
        except BacklogError as error:
            sentences = [str(error)]
        for text in sentences:
            if text not in told:
                told.add(text)
                say(text, "yellow")

    def tell(seen: Observation) -> None:
        nonlocal new
        give_back()
        for gap in seen.gaps:
            if gap.id not in known:
                known.add(gap.id)
                new += 1
                lost = "unknown" if gap.count is None else f"at most {format_count(gap.count)}"
                say(f"{gap.id} {gap.stream}[{gap.partition}] {gap.cause}, {lost}", "red")
        for text in tell_findings(seen, workspace.ledger.gaps.list(seen.sample.stream)):
            line = f"! {seen.sample.stream} {text}"
            if line not in told:
                told.add(line)
                say(line, "yellow")

    def tell_outage(what: str, error: BacklogError | None) -> None:
        if error is None:
            say(f"{what}: answers again", "green")
        else:
            say(f"{what}: {error}", "red")

    interval = config.watch.interval
    with ExitStack() as stack:
        exporter: Exporter | None = None
        if listen is not None or not (no_serve or rounds):
            from replay.exporting import open_exporter

            address = listen or config.watch.listen
            subject = "--listen" if listen else "watch.listen"
            exporter = stack.enter_context(open_exporter(workspace, address, subject, tell_outage))
            session.say(f"serving {exporter.url}/ and {exporter.url}/metrics")
        session.say(
            f"watching {format_plural(count, 'stream')} every {interval.total_seconds():g} s; "
            "Ctrl-C ends it"
        )
        seen = watch_all(
            config,
            workspace.ledger,
            interval,
            stop,
            tell,
            horizon=config.watch.horizon,
            window=config.watch.window,
            on_status=None if exporter is None else exporter.board.put_stream,
            on_error=None if exporter is None else exporter.note,
            on_outage=tell_outage,
            rounds=rounds,
        )
    if seen.error is not None and not seen.looks:
        raise seen.error
    session.emit({"rounds": seen.rounds, "looks": seen.looks, "new_gaps": new}, "")
