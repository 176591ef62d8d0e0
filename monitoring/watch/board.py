"""The latest status of everything that is watched: samplers write, /metrics and the page read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Lock
from typing import Any

from backlogctl.monitoring.doctor.checks import CheckFinding
from backlogctl.monitoring.verdict.status import GroupStatus, Unseen


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

    `left_out` counts partitions of groups that are beyond `watch.max_partitions`; `unreadable`
    counts groups whose commits could not be read; `unseen` is what may not be read of the cluster.
    """

    cluster: str
    taken_at: datetime
    seconds: float
    groups: tuple[GroupStatus, ...]
    topics: Mapping[str, tuple[TopicPartitionState, ...]] = field(default_factory=dict)
    brokers: int = 0
    left_out: int = 0
    unreadable: int = 0
    unseen: tuple[Unseen, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkup:
    """What the doctor found, worst first, and when."""

    taken_at: datetime
    findings: tuple[CheckFinding, ...]


@dataclass(frozen=True, slots=True)
class MemberLook:
    """A member of a group that does not get on; `last_commit` is None where no sample saw one."""

    client_id: str
    host: str
    partitions: tuple[int, ...]
    last_commit: datetime | None


@dataclass(frozen=True, slots=True)
class SequenceLook:
    """What the numbers on a stream's new messages say (protocol P7).

    Attributes:
        taken_at: when this was read last; None where it never could be.
        since: what was written before is not looked at.
        checked: numbered messages that were read.
        unreadable: messages whose stamp could not be read.
        lost: messages that are missing for all that is known; None while nothing can be told.
        suspect: messages that are missing, and something else may explain it; None likewise.
        waiting: messages that are missing, and may still come.
        unknown: numbers of which too much is known to keep it: neither missing nor there.
        behind: offsets up to the end of the log that are not read yet; None where it is unknown.
        holes: the newest holes that are lost, each as a sentence.
        trouble: why it cannot be read now.
    """

    cluster: str
    taken_at: datetime | None = None
    since: datetime | None = None
    checked: int = 0
    unreadable: int = 0
    lost: int | None = None
    suspect: int | None = None
    waiting: int = 0
    unknown: int = 0
    behind: int | None = None
    holes: tuple[str, ...] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class BoardState:
    """What the board shows at one moment: frozen, so that a reader sees one state."""

    streams: Mapping[str, GroupStatus] = field(default_factory=dict)
    clusters: Mapping[str, ClusterPass] = field(default_factory=dict)
    # (cluster, stream or "") -> failed looks since the start, and what failed last
    failures: Mapping[tuple[str, str], int] = field(default_factory=dict)
    failing: Mapping[tuple[str, str], str] = field(default_factory=dict)
    # (cluster, stream or "") -> when it was put here, by the board's clock
    looked_at: Mapping[tuple[str, str], float] = field(default_factory=dict)
    # By stream; "" is the tool itself.
    checkups: Mapping[str, Checkup] = field(default_factory=dict)
    # By stream: only of those that somebody has to look at.
    members: Mapping[str, tuple[MemberLook, ...]] = field(default_factory=dict)
    # By stream: only of those with `sequence: true`.
    sequences: Mapping[str, SequenceLook] = field(default_factory=dict)
    version: int = 0


class Board:
    """Thread-safe; each write makes a new `BoardState`.

    Samples carry the ledger's time, which may be another host's, so the board's own clock
    measures ages.

    Args:
        clock: seconds that only count up.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = Lock()
        self._seen = BoardState()
        self.started_at = clock()
        self._round_at = self.started_at

    @property
    def seen(self) -> BoardState:
        return self._seen

    @property
    def round_at(self) -> float:
        """When the loop over the streams last made progress."""
        return self._round_at

    def put_stream(self, status: GroupStatus) -> None:
        with self._lock:
            streams = {**self._seen.streams, status.stream: status}
            self._put((status.cluster, status.stream), streams=streams)
            self._round_at = self.clock()

    def put_cluster(self, done: ClusterPass) -> None:
        with self._lock:
            self._put((done.cluster, ""), clusters={**self._seen.clusters, done.cluster: done})

    def note_failure(self, cluster: str, stream: str, reason: str) -> None:
        """A look failed; `stream` is empty for a pass over all groups."""
        key = (cluster, stream)
        with self._lock:
            old = self._seen
            failures = {**old.failures, key: old.failures.get(key, 0) + 1}
            failing = {**old.failing, key: reason}
            self._seen = replace(old, failures=failures, failing=failing, version=old.version + 1)
            if stream:
                self._round_at = self.clock()

    def put_checkup(self, stream: str, checkup: Checkup) -> None:
        with self._lock:
            old = self._seen
            checkups = {**old.checkups, stream: checkup}
            self._seen = replace(old, checkups=checkups, version=old.version + 1)

    def put_sequence(self, stream: str, look: SequenceLook) -> None:
        with self._lock:
            old = self._seen
            sequences = {**old.sequences, stream: look}
            self._seen = replace(old, sequences=sequences, version=old.version + 1)

    def put_members(self, stream: str, members: tuple[MemberLook, ...] | None) -> None:
        """None takes them away: nobody has to look at the stream any more."""
        with self._lock:
            old = self._seen
            if members is None and stream not in old.members:
                return
            others = {name: one for name, one in old.members.items() if name != stream}
            found = others if members is None else {**others, stream: members}
            self._seen = replace(old, members=found, version=old.version + 1)

    def note_round(self) -> None:
        """The loop over the streams did a round, perhaps without any."""
        self._round_at = self.clock()

    def _put(self, key: tuple[str, str], **changed: Any) -> None:
        old = self._seen
        self._seen = replace(
            old,
            failing={k: text for k, text in old.failing.items() if k != key},
            looked_at={**old.looked_at, key: self.clock()},
            version=old.version + 1,
            **changed,
        )
