"""Passes over all groups of a cluster on an interval, in a thread of their own.

A slow pass, or a cluster that is away, does not hold up the streams.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from backlogctl.config import mask_secrets
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.monitoring.groups.survey import Survey
from backlogctl.monitoring.verdict.status import Unseen, What
from backlogctl.monitoring.watch.board import Board
from backlogctl.monitoring.watch.loop import OnOutage, Outages, RoundThread

LOG = logging.getLogger(__name__)
_UNSEEN: Mapping[What, str] = {"groups": "the list of groups", "tails": "ends of topics"}


class GroupSampler(RoundThread):
    """Samples while the `with` block runs.

    Args:
        on_pass: called after each good pass, in the sampler's thread.
        on_outage: called with what fails, or may not be read, when that begins, and with None when
            it ends.
    """

    def __init__(
        self,
        survey: Survey,
        board: Board,
        interval: timedelta,
        on_pass: Callable[[], None],
        on_outage: OnOutage,
    ) -> None:
        super().__init__(f"backlog-groups-{survey.scope.cluster}", interval.total_seconds())
        self._survey = survey
        self._board = board
        self._on_pass = on_pass
        self._on_outage = on_outage
        self._outages = Outages(self._report)
        self._cluster = survey.scope.cluster
        self._what = f"groups of cluster {self._cluster}"

    def close(self) -> None:
        self._survey.close()

    def look_once(self) -> None:
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
