"""`backlogctl watch`: sample on an interval, so that losses get times and witnesses."""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from backlogctl.errors import ConfigurationError
from backlogctl.replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from backlogctl.errors import BacklogError
    from backlogctl.monitoring.notifications.notifier import Notifier
    from backlogctl.monitoring.offsets.observation import Observation
    from backlogctl.monitoring.offsets.sampler import StreamLike
    from backlogctl.monitoring.verdict.status import GroupStatus
    from backlogctl.replay.engine.kind import Workspace
    from backlogctl.replay.web.exporter import Exporter

LOG = logging.getLogger(__name__)
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

    from backlogctl.errors import UsageError
    from backlogctl.monitoring.watch.loop import watch_streams as watch_all

    if listen is not None and no_serve:
        raise UsageError("--listen and --no-serve exclude each other", subject="--listen")
    if test_hooks:
        _test_hooks(session)
        return
    workspace = session.open_workspace()
    config = workspace.config
    if not config.clusters:
        raise UsageError(
            "the configuration has no clusters", subject="clusters", hint="add one under `clusters`"
        )
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    report = WatchReport(session, workspace)
    with ExitStack() as stack:
        if config.watch.hooks and not rounds:
            from backlogctl.replay.web.exporter import open_notifier

            report.notifier = stack.enter_context(open_notifier(workspace, report.add_outage))
        if listen is not None or not (no_serve or rounds):
            from backlogctl.replay.web.exporter import open_exporter

            address = listen or config.watch.listen
            subject = "--listen" if listen else "watch.listen"
            report.exporter = stack.enter_context(
                open_exporter(workspace, address, subject, report.add_outage, report.notifier)
            )
        report.begin()
        result = watch_all(
            config,
            workspace.ledger,
            config.watch.interval,
            stop,
            report.add_observation,
            horizon=config.watch.horizon,
            window=config.watch.window,
            # Where nobody asks, the status says all the same whose retention is near.
            on_status=report.add_status if report.listeners or not rounds else None,
            on_error=report.add_failure,
            on_outage=report.add_outage,
            on_round=report.end_round,
            rounds=rounds,
        )
    if result.error is not None and not result.looks:
        raise result.error
    document = {"rounds": result.rounds, "looks": result.looks, "new_gaps": report.new_gaps}
    session.emit(document)


class WatchReport:
    """Prints what the loop observes, and hands it to the exporter and the notifier."""

    def __init__(self, session: Session, workspace: Workspace) -> None:
        self._session, self._workspace = session, workspace
        self._known = {gap.id for gap in workspace.ledger.gaps.list()}
        self._recent = RecentTexts()
        self.new_gaps = 0
        self.exporter: Exporter | None = None
        self.notifier: Notifier | None = None

    @property
    def listeners(self) -> Sequence[Exporter | Notifier]:
        return [one for one in (self.exporter, self.notifier) if one is not None]

    def begin(self) -> None:
        """Prints what is watched and served."""
        from backlogctl.formats import format_plural

        session, config, exporter = self._session, self._workspace.config, self.exporter
        watched = [format_plural(len(config.streams), "stream")]
        if exporter is not None:
            session.say(f"serving {exporter.url}/ and {exporter.url}/metrics")
            if exporter.is_open and config.watch.token_file is None:
                session.say(
                    "! whoever reaches this address can read it: there is no token "
                    "(`watch.token_file`)",
                    "yellow",
                )
            if exporter.scaler:
                session.say(f"answering KEDA at {exporter.scaler}")
            if outboxes := len(config.outboxes):
                watched.append(f"{outboxes:,} {'outbox' if outboxes == 1 else 'outboxes'}")
            if config.look_back is not None:
                watched.append("look-back")
        seconds = config.watch.interval.total_seconds()
        session.say(f"watching {', '.join(watched)} every {seconds:g} s; Ctrl-C ends it")
        if self.notifier is not None:
            session.say(f"telling changes to {', '.join(config.watch.hooks)}")

    def add_observation(self, observation: Observation) -> None:
        """Prints new gaps and suspicions."""
        from backlogctl.errors import BacklogError
        from backlogctl.formats import format_count
        from backlogctl.replay.observe.stream import describe_findings

        for gap in observation.gaps:
            if gap.id not in self._known:
                self._known.add(gap.id)
                self.new_gaps += 1
                lost = "unknown" if gap.count is None else f"at most {format_count(gap.count)}"
                self._say(f"{gap.id} {gap.stream}[{gap.partition}] {gap.cause}, {lost}", "red")
        try:
            gaps = self._workspace.ledger.gaps.list(observation.sample.stream)
        except BacklogError as error:
            self._say_once(str(error))  # the next look says what this one could not
            return
        for text in describe_findings(observation, gaps):
            self._say_once(f"! {observation.sample.stream} {text}")

    def add_status(self, status: GroupStatus) -> None:
        """Hands a stream's status on."""
        for one in self.listeners:
            one.note(status)

    def add_failure(self, stream: StreamLike, error: BacklogError) -> None:
        """Hands a failed look on."""
        for one in self.listeners:
            one.note_failure(stream, error)

    def add_outage(self, what: str, error: BacklogError | None) -> None:
        """Prints an outage, or its end."""
        if error is None:
            self._say(f"{what}: answers again", "green")
        else:
            self._say(f"{what}: {error}", "red")

    def end_round(self) -> None:
        """Gives back holds that are due."""
        from backlogctl.errors import BacklogError
        from backlogctl.replay.observe.retention import release_due

        try:
            sentences = release_due(self._workspace)
        except BacklogError as error:
            sentences = [str(error)]
        except Exception as error:
            LOG.exception("holds that are due")
            kind = type(error).__name__
            sentences = [f"holds that are due: internal error ({kind}); see the log and report it"]
        for text in sentences:
            self._say_once(text)
        if self.exporter is not None:
            self.exporter.board.note_round()

    def _say(self, text: str, style: str = "") -> None:
        from backlogctl.clock import utc_now
        from backlogctl.config import mask_secrets

        self._session.say(f"{utc_now():%Y-%m-%d %H:%M:%S}Z {mask_secrets(text)}", style)

    def _say_once(self, text: str) -> None:
        if self._recent.is_new(text):
            self._say(text, "yellow")


def _test_hooks(session: Session) -> None:
    from backlogctl.errors import UsageError
    from backlogctl.monitoring.notifications.notifier import check_hooks

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
    session.emit({"hooks": [one.to_json() for one in tested]}, lines)
    if any(one.reason for one in tested):
        raise typer.Exit(1)


# /metrics of a service that a verb runs, on an address of its own.


@contextmanager
def serve_metrics(registry: CollectorRegistry, address: str, subject: str) -> Iterator[str]:
    """Serves until the block ends; gives the address with its port.

    Args:
        subject: the option or key that the address is of, for the error.

    Raises:
        ConfigurationError: it cannot be listened on.
    """
    from prometheus_client import start_http_server

    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"it cannot be listened on: {error}",
            subject=f"{subject} {address}",
            hint="HOST:PORT; port 0 takes a free one",
        ) from None
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
