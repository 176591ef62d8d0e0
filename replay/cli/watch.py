"""`backlogctl watch`: sample on an interval, so that losses get times and witnesses."""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from backlog.errors import BacklogError
    from monitoring.notifications.notifier import Notifier
    from monitoring.observing import Observation
    from monitoring.sampler import StreamLike
    from monitoring.status import GroupStatus
    from replay.console.exporting import Exporter

LOG = logging.getLogger("backlog.replay.watch")
# Findings name offsets that move, so there is no end of different sentences.
MOST_TEXTS = 1000
AGAIN_SECONDS = 600.0
_NUMBER = re.compile(r"\d[\d,.]*")


class RecentTexts:
    """The texts said lately, so that none is repeated.

    One that is another only by the numbers behind its first colon, a suspicion that grows with
    each look, is said again after ten minutes.
    """

    def __init__(
        self, most: int = MOST_TEXTS, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._clock = most, clock
        self._said: dict[str, tuple[str, float]] = {}

    def is_new(self, text: str) -> bool:
        """Whether it was not said lately; notes it, and forgets the one repeated longest ago."""
        head, colon, rest = text.partition(": ")
        kind, now = f"{head}{colon}{_NUMBER.sub('#', rest)}", self._clock()
        before, at = self._said.pop(kind, (None, now))
        is_new = before is None or (before != text and now - at >= AGAIN_SECONDS)
        self._said[kind] = (text, now) if is_new or before is None else (before, at)
        if len(self._said) > self._most:
            del self._said[next(iter(self._said))]
        return is_new


@verb
def watch_streams(
    session: Session,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", help="End after so many rounds; no hook is told.", min=1),
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
    test_hooks: Annotated[
        bool,
        typer.Option(
            "--test-hooks",
            help="Only send a test message to each of `watch.hooks`; exit 1 where one fails.",
        ),
    ] = False,
) -> None:
    """Sample every stream, and all groups of its cluster, on an interval until Ctrl-C.

    Reports and records gaps, gives holds back, and serves /metrics, /healthz, /readyz and a page.
    Tells `watch.hooks` when a verdict changes.
    With --rounds it serves only if --listen is given.
    """
    from contextlib import ExitStack

    from backlog.clock import utc_now
    from backlog.config import mask_secrets
    from backlog.errors import BacklogError, UsageError
    from backlog.numbers import format_count, format_plural
    from monitoring.watcher import watch_streams as watch_all
    from replay.around.holds import release_due
    from replay.around.observation import describe_findings

    if listen is not None and no_serve:
        raise UsageError("--listen and --no-serve exclude each other", subject="--listen")
    if test_hooks:
        _test_hooks(session)
        return
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
    recent = RecentTexts()
    new = 0

    def say(text: str, style: str = "") -> None:
        session.say(f"{utc_now():%Y-%m-%d %H:%M:%S}Z {mask_secrets(text)}", style)

    def say_once(text: str) -> None:
        if recent.is_new(text):
            say(text, "yellow")

    def end_round() -> None:
        try:
            sentences = release_due(workspace)
        except BacklogError as error:
            sentences = [str(error)]
        except Exception as error:
            LOG.exception("holds that are due")
            sentences = [f"holds that are due: a fault of the program: {type(error).__name__}"]
        for text in sentences:
            say_once(text)
        if exporter is not None:
            exporter.board.note_round()

    def say_new(seen: Observation) -> None:
        nonlocal new
        for gap in seen.gaps:
            if gap.id not in known:
                known.add(gap.id)
                new += 1
                lost = "unknown" if gap.count is None else f"at most {format_count(gap.count)}"
                say(f"{gap.id} {gap.stream}[{gap.partition}] {gap.cause}, {lost}", "red")
        try:
            gaps = workspace.ledger.gaps.list(seen.sample.stream)
        except BacklogError as error:
            say_once(str(error))  # the next look says what this one could not
            return
        for text in describe_findings(seen, gaps):
            say_once(f"! {seen.sample.stream} {text}")

    def show_status(status: GroupStatus) -> None:
        for one in lookers:
            one.note(status)

    def show_failure(stream: StreamLike, error: BacklogError) -> None:
        for one in lookers:
            one.note_failure(stream, error)

    def say_outage(what: str, error: BacklogError | None) -> None:
        if error is None:
            say(f"{what}: answers again", "green")
        else:
            say(f"{what}: {error}", "red")

    interval = config.watch.interval
    lookers: list[Exporter | Notifier] = []
    exporter: Exporter | None = None
    notifier: Notifier | None = None
    with ExitStack() as stack:
        if config.watch.hooks and not rounds:
            from replay.console.notifying import open_notifier

            notifier = stack.enter_context(open_notifier(workspace, say_outage))
        if listen is not None or not (no_serve or rounds):
            from replay.console.exporting import open_exporter

            address = listen or config.watch.listen
            subject = "--listen" if listen else "watch.listen"
            exporter = stack.enter_context(
                open_exporter(workspace, address, subject, say_outage, notifier)
            )
            session.say(f"serving {exporter.url}/ and {exporter.url}/metrics")
            if exporter.is_open and config.watch.token_file is None:
                session.say(
                    "! whoever reaches this address can read it: there is no token "
                    "(`watch.token_file`)",
                    "yellow",
                )
        watched = [format_plural(count, "stream")]
        if exporter is not None and config.outboxes:
            outboxes = len(config.outboxes)
            watched.append(f"{outboxes:,} {'outbox' if outboxes == 1 else 'outboxes'}")
        if exporter is not None and config.look_back is not None:
            watched.append("look-back")
        session.say(
            f"watching {', '.join(watched)} every {interval.total_seconds():g} s; Ctrl-C ends it"
        )
        if notifier is not None:
            session.say(f"telling changes to {', '.join(config.watch.hooks)}")
        lookers += [one for one in (exporter, notifier) if one is not None]
        seen = watch_all(
            config,
            workspace.ledger,
            interval,
            stop,
            say_new,
            horizon=config.watch.horizon,
            window=config.watch.window,
            # Where nobody asks, the status says all the same whose retention is near.
            on_status=show_status if lookers or not rounds else None,
            on_error=show_failure,
            on_outage=say_outage,
            on_round=end_round,
            rounds=rounds,
        )
    if seen.error is not None and not seen.looks:
        raise seen.error
    session.emit({"rounds": seen.rounds, "looks": seen.looks, "new_gaps": new}, "")


def _test_hooks(session: Session) -> None:
    from backlog.errors import UsageError
    from monitoring.notifications.notifier import check_hooks

    hooks = session.load_config().watch.hooks
    if not hooks:
        raise UsageError(
            "the configuration has no hooks", subject="watch.hooks", hint="docs/notifications.md"
        )
    tested = check_hooks(hooks)
    lines = (
        f"{one.hook} ({one.kind}): {one.outcome}{f': {one.reason}' if one.reason else ''}"
        for one in tested
    )
    session.emit({"hooks": [one.to_json() for one in tested]}, list(lines))
    if any(one.reason for one in tested):
        raise typer.Exit(1)
