"""`backlogctl watch`: sample on an interval, so that losses get times and witnesses."""

from __future__ import annotations

import signal
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from monitoring.watcher import Observation


@verb
def watch_streams(
    session: Session,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="End after so many rounds.", min=1)
    ] = None,
) -> None:
    """Sample every stream on an interval until Ctrl-C; tell and record gaps; give holds back."""
    from backlog.clock import utc_now
    from backlog.config import mask_secrets
    from backlog.errors import BacklogError
    from backlog.numbers import format_count, format_plural
    from monitoring.watcher import watch_streams as watch_all
    from replay.holds import release_due
    from replay.observation import choose_streams, tell_findings

    workspace = session.open_workspace()
    config = workspace.config
    count = len(choose_streams(config, []))
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
        on_outage=tell_outage,
        rounds=rounds,
    )
    if seen.error is not None and not seen.looks:
        raise seen.error
    session.emit({"rounds": seen.rounds, "looks": seen.looks, "new_gaps": new}, "")
