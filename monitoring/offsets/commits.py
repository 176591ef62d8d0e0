"""What the groups of a cluster's streams committed since they were sampled last."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import BacklogError
from backlogctl.kafka.clients import Connection
from backlogctl.kafka.commit_log import CommitLog, LogCondition, LogRecord, LogState
from backlogctl.kafka.commit_records import CommitRecord
from backlogctl.monitoring.offsets.gaps import Commits
from backlogctl.monitoring.offsets.history import SeenCommit
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.values import LOG_START

# A login that may not read the log is asked again so seldom.
ASK_AGAIN_SECONDS = 300.0
# Commits of a partition that are kept between two samples.
MOST_KEPT = 10_000


class CommitFeed:
    """The commit log of one cluster, handed out by stream. Not thread-safe."""

    def __init__(self, connection: Connection, streams: Iterable[StreamLike]) -> None:
        self._since = self._read_at = utc_now()
        self._log = CommitLog(connection, {stream.group for stream in streams}, self._since)
        self._members: dict[str, bool | None] = {}
        self._kept: defaultdict[tuple[str, str], dict[int, list[SeenCommit]]] = defaultdict(dict)
        self._taken: dict[str, datetime] = {}
        self._states: Mapping[str, LogState] = {}
        self._ask_at = 0.0

    def read(self, limit: Deadline) -> None:
        """Reads the log to its end as it is now, after a sample and before its commits are taken.

        Of a login that may not, seldom.
        """
        if time.monotonic() < self._ask_at:
            return
        self._read_at = utc_now()
        for record in self._log.read(limit):
            self._keep(record)
        self._states = self._log.state
        if any(one.condition is LogCondition.DENIED for one in self._states.values()):
            self._ask_at = time.monotonic() + ASK_AGAIN_SECONDS

    def take(self, stream: StreamLike) -> Commits | None:
        """By partition the commits since the last call for this stream, up to the last reading.

        Returns:
            None where not all of them are known; `problem` says why.
        """
        taken = self._kept.pop((stream.group, stream.topic), {})
        state = self._states.get(stream.group)
        since = self._taken.get(stream.name, self._since)
        self._taken[stream.name] = self._read_at
        is_whole = state is not None and state.condition is LogCondition.FOLLOWED
        if not is_whole or state is None or state.complete_since > since:
            return None
        if any(len(commits) >= MOST_KEPT for commits in taken.values()):
            return None
        return taken

    @property
    def problem(self) -> BacklogError | None:
        """Why the log cannot be followed; None where it is."""
        return next((one.error for one in self._states.values() if one.error), None)

    def close(self) -> None:
        self._log.close()

    def _keep(self, record: LogRecord) -> None:
        if not isinstance(record, CommitRecord):
            self._members[record.group] = None if record.members is None else record.members > 0
        # Else it is gone, which the sample shows.
        elif record.offset is not None and (record.offset >= 0 or record.offset == LOG_START):
            commits = self._kept[record.group, record.topic].setdefault(record.partition, [])
            members = self._members.get(record.group, False)
            has_epoch = record.epoch is not None
            commits.append(SeenCommit(record.at, record.offset, members, has_epoch, is_record=True))
            del commits[:-MOST_KEPT]
