"""Notifications of `backlogctl watch`: the next command and the page are those of the page."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from starlette.types import ASGIApp

from backlogctl.clock import utc_now
from backlogctl.config import Config, mask_secrets
from backlogctl.errors import BacklogError
from backlogctl.kafka.bulk import BulkReader
from backlogctl.monitoring.groups.dating import Tails, make_tail_reader
from backlogctl.monitoring.groups.sampler import GroupSampler
from backlogctl.monitoring.groups.survey import Survey, SurveyScope
from backlogctl.monitoring.metrics.scrape import Exported, Scrape
from backlogctl.monitoring.notifications.changes import StreamObservation
from backlogctl.monitoring.notifications.messages import MessageContext
from backlogctl.monitoring.notifications.notifier import Notifier
from backlogctl.monitoring.offsets.bulk_look import measure_clock_skew
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.monitoring.verdict.status import GroupStatus
from backlogctl.monitoring.watch.board import Board
from backlogctl.monitoring.watch.loop import OnOutage
from backlogctl.monitoring.watch.scaler import Scaler
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import ACTIVE
from backlogctl.replay.observe.stream import find_page
from backlogctl.replay.web.access import HostGuard, TokenGuard, find_hosts
from backlogctl.replay.web.app import HealthCheck, make_web_app
from backlogctl.replay.web.checkups import Checkups
from backlogctl.replay.web.deliveries import DeliveryWatch, collect_deliveries
from backlogctl.replay.web.page.app import make_page
from backlogctl.replay.web.page.overview import choose_commands, list_commands
from backlogctl.replay.web.sequences import SequenceWatch
from backlogctl.replay.web.server import Server, bind_address
from backlogctl.values import Recovery


def open_notifier(workspace: Workspace, on_outage: OnOutage) -> Notifier:
    """The hooks of the configuration; they are told while its `with` block runs.

    Args:
        on_outage: called when a hook fails, and again when it works.
    """
    skew = measure_clock_skew(workspace.ledger)
    return Notifier(
        workspace.config.watch.hooks,
        on_outage,
        partial(_find_context, workspace),
        clock=lambda: utc_now() + skew,
    )


def _find_context(workspace: Workspace, look: StreamObservation) -> MessageContext:
    commands = () if look.status is None else look.status.next_commands
    active: Sequence[Recovery] = ()
    try:
        active = workspace.ledger.recoveries.list(states=ACTIVE)
        stream = workspace.config.stream(look.stream)
        commands = list_commands(workspace, stream, look.status, active)
    except BacklogError:
        pass  # recoveries are unknown then; the verdict's own commands are not
    is_worked_on = any(one.stream == look.stream for one in active)
    return MessageContext(
        choose_commands(commands, is_worked_on=is_worked_on),
        find_page(workspace.config, look.stream),
    )


# What `backlogctl watch` serves beside its sampling: the board, /metrics, health, the page.


@dataclass(frozen=True)
class Exporter:
    """The parts that live while `watch` serves."""

    board: Board
    url: str
    is_open: bool = False  # listens beyond this machine
    scaler: str = ""  # where KEDA is answered; "" where it is not

    def note(self, status: GroupStatus) -> None:
        """A stream was looked at."""
        self.board.put_stream(status)

    def note_failure(self, stream: StreamLike, error: BacklogError) -> None:
        """A stream could not be looked at."""
        self.board.note_failure(stream.cluster, stream.name, mask_secrets(str(error)))


@contextmanager
def open_exporter(
    workspace: Workspace,
    address: str,
    subject: str,
    on_outage: OnOutage,
    notifier: Notifier | None = None,
) -> Iterator[Exporter]:
    """Serves on the address, and samples all groups of all clusters, until the block ends.

    Args:
        subject: what named the address, for an error.
        on_outage: called when something cannot be read, and again when it can.
        notifier: whose counts are served.

    Raises:
        UsageError: the address cannot be listened on.
    """
    bound = bind_address(address, subject)
    config, board = workspace.config, Board()
    deliveries = DeliveryWatch(config, on_outage)
    exported = Exported(
        config.streams,
        tuple(config.clusters),
        config.watch.metrics,
        dict if notifier is None else notifier.count,
        partial(collect_deliveries, deliveries.read),
        by_partition=config.watch.granularity == "partition",
    )
    scrape = Scrape(board, workspace.ledger, exported)
    threads: list[threading.Thread] = []
    samplers: list[GroupSampler] = []
    health_check = HealthCheck(
        board,
        scrape.ledger.answers,
        config.watch.interval,
        tuple(config.clusters),
        threads,
        frozenset(stream.cluster for stream in config.streams.values()),
    )
    # Samples carry the ledger's time: what is "2 min ago" goes by the same clock.
    skew = measure_clock_skew(workspace.ledger)
    page = make_page(
        workspace,
        board=board,
        deliveries=deliveries.read,
        clock=lambda: utc_now() + skew,
    )
    with ExitStack() as stack:
        watch = config.watch
        scaler = Scaler(board, workspace.ledger, config.streams, watch.interval, watch.window)
        app: ASGIApp = make_web_app(scrape, health_check, page, scaler)
        if watch.token_file is not None:
            app = TokenGuard(app, watch.token_file)
        app = HostGuard(app, find_hosts(watch.url, watch.hosts))
        tls = None if watch.tls is None else (watch.tls.certificate, watch.tls.key)
        server = stack.enter_context(Server(app, bound, tls))
        answering = ""
        if watch.scaler is not None:
            # Only here: it comes with an extra of the package.
            from backlogctl.replay.web.scaler import serve_scaler

            answering = stack.enter_context(serve_scaler(scaler, watch.scaler, "watch.scaler", tls))
        for sampler in _make_samplers(config, board, scrape, on_outage):
            threads.append(sampler.thread)
            stack.enter_context(sampler)
            samplers.append(sampler)
        checkups = stack.enter_context(Checkups(workspace, board))
        threads.append(checkups.thread)
        if any(stream.sequence for stream in config.streams.values()):
            stack.enter_context(SequenceWatch(workspace, board, on_outage))
        stack.enter_context(deliveries)
        # All are asked to stop before any of them is waited for.
        for sampler in samplers:
            stack.callback(sampler.stop)
        yield Exporter(board, server.url, is_open=server.is_open, scaler=answering)


def _make_samplers(
    config: Config, board: Board, scrape: Scrape, on_outage: OnOutage
) -> Iterator[GroupSampler]:
    """One for each cluster whose groups can be read."""
    for name, cluster in config.clusters.items():
        try:
            properties = cluster.client_properties()
            reader = BulkReader(properties)
        except BacklogError as error:
            board.note_failure(name, "", mask_secrets(str(error)))
            on_outage(f"groups of cluster {name}", error)
            continue
        scope = SurveyScope(
            cluster=name,
            streams={(s.group, s.topic) for s in config.streams.values() if s.cluster == name},
            allow=config.watch.groups.allow,
            deny=config.watch.groups.deny,
            max_partitions=config.watch.max_partitions,
            window=config.watch.window,
            horizon=config.watch.horizon,
        )
        survey = Survey(reader, scope, Tails(make_tail_reader(properties)))
        yield GroupSampler(survey, board, config.watch.interval, scrape.prepare, on_outage)
