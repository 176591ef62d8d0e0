"""`backlogctl watch`: sample on an interval, so that losses get times and witnesses."""

from __future__ import annotations

import signal
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from backlog.errors import BacklogError
    from monitoring.sampler import StreamLike
    from monitoring.watcher import Observation


@verb
def watch_streams(
    session: Session,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="End after so many rounds.", min=1)
    ] = None,
) -> None:
    """Sample every stream on an interval until Ctrl-C; new gaps are told and recorded."""
    from backlog.clock import format_time, utc_now
    from monitoring.watcher import watch_streams as watch_all
    from replay.observation import choose_streams, tell_findings

    workspace = session.open_workspace()
    config = workspace.config
    count = len(choose_streams(config, []))
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    known = {gap.id for gap in workspace.ledger.gaps.list()}
    told: set[str] = set()
    seen_rounds = new = 0

    def tell(seen: Observation) -> None:
        nonlocal seen_rounds, new
        for gap in seen.gaps:
            if gap.id not in known:
                known.add(gap.id)
                new += 1
                at = format_time(utc_now())[:19]
                where = f"{gap.stream}[{gap.partition}]"
                session.say(f"{at}Z [red]{gap.id}[/] {where} {gap.cause}, at most {gap.count}")
        for text in tell_findings(seen, workspace.ledger.gaps.list(seen.sample.stream)):
            line = f"{seen.sample.stream} {text}"
            if line not in told:
                told.add(line)
                session.say(f"[yellow]! {line}[/]")
        finish_look()

    def fail(stream: StreamLike, error: BacklogError) -> None:
        session.say(f"[red]{stream.name}: {error}[/]")
        finish_look()

    def finish_look() -> None:
        nonlocal seen_rounds
        seen_rounds += 1
        if rounds is not None and seen_rounds >= rounds * count:
            stop.set()

    interval, horizon = config.watch.interval, config.watch.horizon
    session.say(f"watching {count} streams every {interval.total_seconds():g} s; Ctrl-C ends it")
    watch_all(config, workspace.ledger, interval, stop, tell, horizon=horizon, on_error=fail)
    session.emit({"looks": seen_rounds, "new_gaps": new}, lambda console: None)
