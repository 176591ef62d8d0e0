"""What the groups of a cluster's streams committed since they were sampled last."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import BacklogError
from backlogctl.kafka.clients import Connection
from backlogctl.kafka.commit_log import CommitLog, LogCondition, LogState
from backlogctl.kafka.commit_records import CommitRecord
from backlogctl.monitoring.offsets.gaps import Commits
from backlogctl.monitoring.offsets.history import SeenCommit
from backlogctl.monitoring.offsets.sampler import StreamLike

# A login that may not read the log is asked again so seldom.
ASK_AGAIN_SECONDS = 300.0
# Commits of a partition that are kept between two samples.
MOST_KEPT = 10_000


class CommitFeed:
    """The commit log of one cluster, handed out by stream. Not thread-safe."""

    def __init__(self, connection: Connection, streams: Iterable[StreamLike]) -> None:
        self._since = utc_now()
        self._log = CommitLog(connection, {stream.group for stream in streams}, self._since)
        self._members: dict[str, bool | None] = {}
        self._kept: defaultdict[tuple[str, str], dict[int, list[SeenCommit]]] = defaultdict(dict)
        self._taken: dict[str, datetime] = {}
        self._ask_at = 0.0

    def take(self, stream: StreamLike, limit: Deadline) -> Commits | None:
        """By partition the commits since the last call for this stream, the newest included.

        Returns:
            None where not all of them are known; `problem` says why.
        """
        if time.monotonic() >= self._ask_at:
            self._read(limit)
        taken = self._kept.pop((stream.group, stream.topic), {})
        state = self._find_state(stream.group)
        since = self._taken.get(stream.name, self._since)
        self._taken[stream.name] = utc_now()
        is_whole = state is not None and state.condition is LogCondition.FOLLOWED
        if not is_whole or state is None or state.complete_since > since:
            return None
        if any(len(commits) >= MOST_KEPT for commits in taken.values()):
            return None
        return taken

    @property
    def problem(self) -> BacklogError | None:
        """Why the log cannot be followed; None where it is."""
        return next((one.error for one in self._log.state.values() if one.error), None)

    def close(self) -> None:
        self._log.close()

    def _find_state(self, group: str) -> LogState | None:
        return self._log.state.get(group)

    def _read(self, limit: Deadline) -> None:
        for record in self._log.read(limit):
            if not isinstance(record, CommitRecord):
                self._members[record.group] = None if record.members is None else record.members > 0
                continue
            if record.offset is None or record.offset < 0:
                continue  # gone, which the sample shows; or KafkaJS goes on where the log starts
            commits = self._kept[record.group, record.topic].setdefault(record.partition, [])
            members = self._members.get(record.group, False)
            has_epoch = record.epoch is not None
            commits.append(SeenCommit(record.at, record.offset, members, has_epoch, is_record=True))
            del commits[:-MOST_KEPT]
        if any(one.condition is LogCondition.DENIED for one in self._log.state.values()):
            self._ask_at = time.monotonic() + ASK_AGAIN_SECONDS
