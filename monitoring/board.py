"""The newest of everything that is watched: samplers write, /metrics and the page read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Lock

from backlog.clock import utc_now
from monitoring.status import GroupStatus


@dataclass(frozen=True, slots=True)
class TopicPartitionState:
    """One partition of a topic as its cluster describes it; offsets are None where unknown."""

    partition: int
    log_start: int | None
    high: int | None
    leader: int
    replicas: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class ClusterPass:
    """One pass over all groups of a cluster.

    `left_out` counts partitions of groups that are beyond `watch.max_partitions`.
    """

    cluster: str
    taken_at: datetime
    seconds: float
    groups: tuple[GroupStatus, ...]
    topics: Mapping[str, tuple[TopicPartitionState, ...]] = field(default_factory=dict)
    brokers: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the board shows at one moment: frozen, so that a reader sees one state."""

    streams: Mapping[str, GroupStatus] = field(default_factory=dict)
    clusters: Mapping[str, ClusterPass] = field(default_factory=dict)
    # (cluster, stream or "") -> failed looks since the start, and what failed last
    failures: Mapping[tuple[str, str], int] = field(default_factory=dict)
    failing: Mapping[tuple[str, str], str] = field(default_factory=dict)
    version: int = 0


class Board:
    """Thread-safe; each write makes a new `Seen`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen = Seen()
        self.started_at = utc_now()

    @property
    def seen(self) -> Seen:
        """The newest state."""
        return self._seen

    def put_stream(self, status: GroupStatus) -> None:
        """A stream was looked at."""
        key = (status.cluster, status.stream)
        with self._lock:
            old = self._seen
            failing = {k: text for k, text in old.failing.items() if k != key}
            streams = {**old.streams, status.stream: status}
            self._seen = replace(old, streams=streams, failing=failing, version=old.version + 1)

    def put_cluster(self, done: ClusterPass) -> None:
        """All groups of a cluster were looked at."""
        key = (done.cluster, "")
        with self._lock:
            old = self._seen
            failing = {k: text for k, text in old.failing.items() if k != key}
            clusters = {**old.clusters, done.cluster: done}
            self._seen = replace(old, clusters=clusters, failing=failing, version=old.version + 1)

    def note_failure(self, cluster: str, stream: str, told: str) -> None:
        """A look failed; `stream` is empty for a pass over all groups."""
        key = (cluster, stream)
        with self._lock:
            old = self._seen
            failures = {**old.failures, key: old.failures.get(key, 0) + 1}
            failing = {**old.failing, key: told}
            self._seen = replace(old, failures=failures, failing=failing, version=old.version + 1)
