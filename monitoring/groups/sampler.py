"""Passes over all groups of a cluster on an interval, in a thread of their own.

A slow pass, or a cluster that is away, does not hold up the streams.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol, Self

from backlogctl.config import mask_secrets
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.monitoring.groups.survey import SurveyScope
from backlogctl.monitoring.verdict.status import Unseen, What
from backlogctl.monitoring.watch.board import Board, ClusterPass
from backlogctl.monitoring.watch.loop import OnOutage, Outages

LOG = logging.getLogger("backlogctl.monitoring.groups")
_STOP_SECONDS = 2.0
_UNSEEN: Mapping[What, str] = {"groups": "the list of groups", "tails": "ends of topics"}


class SurveyLike(Protocol):
    """What makes passes over one cluster."""

    @property
    def scope(self) -> SurveyScope: ...
    def look(self) -> ClusterPass: ...
    def close(self) -> None: ...


class GroupSampler:
    """Samples while the `with` block runs.

    Args:
        on_pass: called after each good pass, in the sampler's thread.
        on_outage: called with what fails, or may not be read, when that begins, and with None when
            it ends.
    """

    def __init__(
        self,
        survey: SurveyLike,
        board: Board,
        interval: timedelta,
        on_pass: Callable[[], None],
        on_outage: OnOutage,
    ) -> None:
        self._survey = survey
        self._board = board
        self._seconds = interval.total_seconds()
        self._on_pass = on_pass
        self._on_outage = on_outage
        self._outages = Outages(self._report)
        self._stop = threading.Event()
        self._cluster = survey.scope.cluster
        self._what = f"groups of cluster {self._cluster}"
        name = f"backlog-groups-{self._cluster}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        # It may wait for a broker that is away; as a daemon it ends with the process.
        self.thread.join(_STOP_SECONDS)

    def stop(self) -> None:
        """Asks the thread to end; leaving the `with` block waits for it."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            end = time.monotonic() + self._seconds
            self._look()
            self._stop.wait(max(0.0, end - time.monotonic()))
        self._survey.close()

    def _look(self) -> None:
        try:
            done = self._survey.look()
            self._board.put_cluster(done)
            self._on_pass()
        except BacklogError as error:
            self._fail(error)
        except Exception as error:
            # A bug in one pass must not end all passes in silence.
            LOG.exception("the pass over cluster %s failed", self._cluster)
            message = f"the pass over all groups failed: {type(error).__name__}"
            self._fail(BacklogError(message, subject=f"cluster {self._cluster}"))
        else:
            self._outages.end(self._what)
            self._note_unseen(done.unseen)

    def _fail(self, error: BacklogError) -> None:
        self._board.note_failure(self._cluster, "", mask_secrets(str(error)))
        self._outages.begin(self._what, error)

    def _note_unseen(self, unseen: Sequence[Unseen]) -> None:
        found = {one.what: KafkaFailure(str(one), hint=one.error.hint) for one in unseen}
        for what, words in _UNSEEN.items():
            # Tails are read only where a lag is small: else nothing says that they can be read.
            if what in found or what != "tails":
                self._outages.note(f"{words} of cluster {self._cluster}", found.get(what))

    def _report(self, what: str, error: BacklogError | None) -> None:
        try:
            self._on_outage(what, error)
        except Exception:
            LOG.exception("an outage of cluster %s was not reported", self._cluster)
