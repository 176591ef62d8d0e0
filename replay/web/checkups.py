"""Looks that are too slow for each sample, in a thread of their own: the doctor, the brokers'
disks, and the members of streams that somebody has to look at."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from backlogctl.clock import utc_now
from backlogctl.config import Stream, mask_secrets
from backlogctl.errors import BacklogError
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.monitoring.doctor.checks import sort_findings
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.monitoring.watch.board import Board, Checkup, MemberLook
from backlogctl.monitoring.watch.disks import make_readings
from backlogctl.monitoring.watch.loop import RoundThread
from backlogctl.replay.consumers.members import describe_members
from backlogctl.replay.doctor.deliveries import examine_deliveries
from backlogctl.replay.doctor.stream import Examination, examine_stream, examine_tool
from backlogctl.replay.engine.kind import Workspace

LOG = logging.getLogger(__name__)
# With these somebody asks who is in the group.
_TROUBLED = frozenset({Verdict.STALL, Verdict.STOP, Verdict.REWIND, Verdict.WARN, Verdict.LOSING})


class Checkups(RoundThread):
    """A look that fails is tried again at the next round; the first samples come first."""

    def __init__(self, workspace: Workspace, board: Board) -> None:
        self._workspace, self._board = workspace, board
        watch = workspace.config.watch
        self._every = watch.doctor.total_seconds()
        self._due = time.monotonic()
        super().__init__("backlog-checkups", watch.interval.total_seconds(), rests=True)

    def look_once(self) -> None:
        """Disks and members; now and then what the doctor examines, too."""
        streams = list(self._workspace.config.streams.values())
        for cluster in sorted({stream.cluster for stream in streams}):
            self._try(f"the disks of {cluster}", partial(self._look_at_disks, cluster))
        for stream in streams:
            self._try(stream.name, partial(self._look_at_members, stream))
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            self._examine("", partial(self._examine_rest, streams))
            for stream in streams:
                self._examine(stream.name, partial(examine_stream, self._workspace, stream))

    def _look_at_disks(self, cluster: str) -> None:
        config, disks = self._workspace.config, self._workspace.ledger.disks
        properties = config.clusters[cluster].client_properties()
        disks.add(make_readings(cluster, read_log_dirs(properties, ""), None))
        disks.thin(self._workspace.ledger.now(), config.watch.horizon)

    def _look_at_members(self, stream: Stream) -> None:
        status = self._board.seen.streams.get(stream.name)
        if status is None or status.course not in _TROUBLED:
            self._board.put_members(stream.name, None)
            return
        document = describe_members(self._workspace, stream)
        if document["error"] is None:
            members = tuple(
                MemberLook(
                    client_id=one["client_id"],
                    host=one["host"],
                    partitions=tuple(one["partitions"]),
                    last_commit=one["last_commit"] and datetime.fromisoformat(one["last_commit"]),
                )
                for one in document["members"]
            )
            self._board.put_members(stream.name, members)

    def _examine(self, name: str, examine: Callable[[], Examination]) -> None:
        def look() -> None:
            taken_at = utc_now()
            self._board.put_checkup(name, Checkup(taken_at, examine().findings))

        if not self._stop.is_set():
            self._try(name, look)

    def _examine_rest(self, streams: Sequence[Stream]) -> Examination:
        """The tool itself, and what no stream is about."""
        parts = [examine_tool(self._workspace, streams), *examine_deliveries(self._workspace)]
        found = sort_findings(one for part in parts for one in part.findings)
        return Examination("tool", "", found)

    def _try(self, name: str, look: Callable[[], None]) -> None:
        try:
            look()
        except BacklogError as error:
            LOG.warning("a checkup of %s failed: %s", name or "the tool", mask_secrets(str(error)))
        except Exception:
            # A look must not end all looks in silence.
            LOG.exception("a checkup of %s failed", name or "the tool")
