"""What `backlogctl watch` serves beside its sampling: the board, /metrics, health, the page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from backlog.config import mask_secrets
from backlog.errors import BacklogError
from monitoring.board import Board
from monitoring.metrics.scrape import Exported, Scrape
from monitoring.sampler import StreamLike
from monitoring.server.app import make_app
from monitoring.server.health import Doctor
from monitoring.server.listening import Server, bind_address
from replay.views import list_next_commands
from replay.workspace import Workspace


@dataclass(frozen=True)
class Exporter:
    """The parts that live while `watch` serves."""

    board: Board
    url: str

    def note(self, stream: StreamLike, error: BacklogError) -> None:
        """A look at a stream failed."""
        self.board.note_failure(stream.cluster, stream.name, mask_secrets(str(error)))


@contextmanager
def open_exporter(workspace: Workspace, address: str, subject: str) -> Iterator[Exporter]:
    """Serves on the address until the block ends.

    Args:
        subject: what named the address, for an error.

    Raises:
        UsageError: the address cannot be listened on.
    """
    bound = bind_address(address, subject)
    config, board = workspace.config, Board()
    exported = Exported(config.streams, tuple(config.clusters), config.watch.metrics)
    scrape = Scrape(board, workspace.ledger, exported)
    threads: list[threading.Thread] = []
    doctor = Doctor(board, workspace.ledger, config.watch.interval, tuple(config.clusters), threads)
    try:
        from monitoring.page.app import make_page

        page = make_page(workspace.ledger, config, board=board, next_commands=list_next_commands)
    except ImportError:
        page = None
    with ExitStack() as stack:
        server = stack.enter_context(Server(make_app(scrape, doctor, page), bound))
        yield Exporter(board, server.url)
