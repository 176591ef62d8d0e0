"""Configuration, ledger and page, opened when first asked for and again when they changed."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backlogctl.clock import utc_now
from backlogctl.config import Config, mask_secrets
from backlogctl.config.root import DEFAULT_FILE
from backlogctl.dags.configuration import read_deployment
from backlogctl.dags.links import find_question
from backlogctl.dags.notes import has_open_question
from backlogctl.dags.policies import ASKING, RECOVER, name_question
from backlogctl.errors import BacklogError
from backlogctl.monitoring.offsets.bulk_look import measure_clock_skew
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import find_origin
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.web.page.app import make_page
from backlogctl.values import Recovery, RecoveryState

if TYPE_CHECKING:
    from starlette.types import ASGIApp

LOG = logging.getLogger(__name__)
# Seconds. A changed file is seen at once; a changed connection, variable or secret file after this.
KEEP = 60.0
# An error is not tried again for each of those who look.
KEEP_ERROR = 5.0


@dataclass(frozen=True)
class PageParts:
    workspace: Workspace
    page: ASGIApp


class PageCache:
    """Opens it; what was opened, or why it could not be, is kept for a while."""

    def __init__(
        self, load: Callable[[], Config] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = load or _load_config
        self._clock = clock
        self._lock = threading.Lock()
        self._opened: PageParts | None = None
        self._error: BacklogError | None = None
        self._stamp: object = None
        self._until = 0.0

    def open(self) -> PageParts:
        """Configuration, ledger and page.
        Raises BacklogError: the configuration is wrong, or the ledger cannot be opened.
        """
        with self._lock:
            stamp = _read_stamp()
            if stamp != self._stamp or self._clock() >= self._until:
                # What is no error of ours is not kept either.
                self._error, self._until = None, 0.0
                self._look()
                self._stamp = stamp
            if self._error is not None:
                raise self._error.with_traceback(None)
            assert self._opened is not None
            return self._opened

    def _look(self) -> None:
        try:
            config = self._load()
            if self._opened is None or config != self._opened.workspace.config:
                self._replace(config)
        except BacklogError as error:
            LOG.warning("the page cannot be made: %s", mask_secrets(str(error)))
            self._error = error
            self._until = self._clock() + KEEP_ERROR
        else:
            self._error = None
            self._until = self._clock() + KEEP

    def _replace(self, config: Config) -> None:
        before, self._opened = self._opened, None
        if before is not None:
            # Who still reads from it keeps the connection they have.
            before.workspace.ledger.close()
        workspace = open_workspace(config)
        try:
            skew = measure_clock_skew(workspace.ledger)
        except BaseException:
            workspace.ledger.close()
            raise
        page = make_page(
            workspace,
            board=None,
            find_approval=find_approval,
            reports=True,
            # Samples carry the ledger's time.
            clock=lambda: utc_now() + skew,
        )
        self._opened = PageParts(workspace, page)


def find_approval(recovery: Recovery) -> str:
    """The address where this Airflow asks about a plan that one of its runs made; "" where it does
    not ask, or not now."""
    origin = find_origin(recovery)
    if recovery.state is not RecoveryState.PLANNED or origin is None:
        return ""
    if origin.deployment != read_deployment():
        return ""
    # A night has another run ask.
    mine = origin.dag_id in ASKING
    dag_id, run_id = (
        (origin.dag_id, origin.run_id) if mine else (RECOVER, name_question(recovery.id))
    )
    question = dag_id, run_id, f"{recovery.kind}.approve"
    return find_question(*question) if has_open_question(*question) else ""


def _load_config() -> Config:
    from backlogctl.dags.configuration import load

    return load()


def _read_stamp() -> object:
    """What changes when the file does, or when another is named."""
    path = Path(os.environ.get("BACKLOG_CONFIG") or DEFAULT_FILE)
    try:
        found = path.stat()
    except OSError:
        return path
    return path, found.st_mtime_ns, found.st_size, found.st_ino
