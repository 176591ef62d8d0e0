"""The words of the product as frozen values; standard library only, Spark executors import it.

All times are aware and in UTC. Offsets are Kafka's: a range is half open, `[start, end)`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Self, TypeVar

from backlogctl.clock import format_time
from backlogctl.formats import format_bytes


def to_document(value: Any, *names: str) -> dict[str, Any]:
    """An object as JSON has it: its fields, or those attributes of it that are named."""
    return {
        name: to_plain(getattr(value, name))
        for name in names or [each.name for each in fields(value)]
    }


def to_plain(value: Any) -> Any:
    """Any value as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_document(value)
    match value:
        case datetime():
            return format_time(value)
        case StrEnum():
            return str(value)
        case Mapping():
            return {name: to_plain(one) for name, one in value.items()}
        case list() | tuple():
            return [to_plain(one) for one in value]
    return value


class Cause(StrEnum):
    """Why a group will never read messages (protocol: what is a gap)."""

    EXPIRED = "expired"
    SKIPPED = "skipped"
    DISCARDED = "discarded"  # an offload took it off the brokers
    PRODUCER_GAP = "producer_gap"  # its producer numbered them, and they never reached the topic
    UNPROCESSED = "unprocessed"  # committed, and the consumer's own table lacks them
    TOPIC_RECREATED = "topic_recreated"
    COMMIT_VANISHED = "commit_vanished"
    NEVER_COMMITTED = "never_committed"


class Certainty(StrEnum):
    """How well the offsets of a gap are known."""

    EXACT = "exact"  # offsets exact; messages at most that many
    BOUNDED = "bounded"  # at most this range
    POSSIBLE = "possible"  # at most this range, and perhaps nothing of it
    REPORTED = "reported"  # something happened; its range is unknown


class GapState(StrEnum):
    """open -> planned -> staged -> injected -> verified, or waived."""

    OPEN = "open"
    PLANNED = "planned"
    STAGED = "staged"
    INJECTED = "injected"
    VERIFIED = "verified"
    WAIVED = "waived"


class RecoveryState(StrEnum):
    """planned -> approved -> running <-> paused -> verified; rejected, cancelled, failed."""

    PLANNED = "planned"
    APPROVED = "approved"
    RUNNING = "running"
    PAUSED = "paused"
    VERIFIED = "verified"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    FAILED = "failed"


# A recovery in one of these is over.
FINAL = frozenset({RecoveryState.VERIFIED, RecoveryState.REJECTED, RecoveryState.CANCELLED})


class ChunkState(StrEnum):
    """SQL copy of what the Kafka ledger says about a chunk."""

    STAGED = "staged"
    INJECTED = "injected"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `[start, end)` of one partition."""

    partition: int
    start: int
    end: int

    @property
    def count(self) -> int:
        """Offsets in the range: an upper bound on its messages."""
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """Sequences `first` to `last`, both included, that one start of a producer numbered."""

    producer: str
    epoch: int
    first: int
    last: int

    @property
    def count(self) -> int:
        """Messages of these numbers."""
        return self.last - self.first + 1


# Kafka's word for the log start, where an offset is meant.
LOG_START = -2


@dataclass(frozen=True, slots=True)
class PartitionSample:
    """One partition at one moment, read in the order low, committed, LSO, high watermark.

    `committed` is None where the group has no committed offset (Kafka's -1001). `committed_epoch`
    is the leader epoch in the commit; None where it carries none, as an outside tool's never does.
    It is LOG_START where the commit names no offset but that.
    """

    partition: int
    low: int
    committed: int | None
    lso: int
    high: int
    committed_epoch: int | None = None

    @property
    def at_start(self) -> bool:
        """Whether the commit names the log start, as KafkaJS's do where it goes on there:
        `committed` is that of now, and which one it has read from is not known."""
        return self.committed_epoch == LOG_START


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Which message a committed offset pointed at, noted while it could still be read.

    `offset` is that of the first committed data message at or after `committed`: control records
    and aborted ones in between are passed over. `digest` is `stamps.hash_identity` of its
    identity by the stream's rule; never the identity itself.
    """

    partition: int
    committed: int
    offset: int
    digest: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a stream. `topic_id` is the same before and after the offsets were read.

    `group_state` is Kafka's in lower case, "" where unknown; `took` the seconds it needed from
    `taken_at` on.
    """

    stream: str
    cluster: str
    topic: str
    group: str
    topic_id: str
    taken_at: datetime
    partitions: tuple[PartitionSample, ...]
    group_state: str = ""
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """When something was published: not before `lower`, not after `upper`; None is unknown."""

    lower: datetime | None
    upper: datetime | None


@dataclass(frozen=True, slots=True)
class EdgeTimes:
    """Between which samples the message at an offset was published; None is unknown."""

    partition: int
    offset: int
    lower: datetime | None
    upper: datetime | None


DatePiece = Callable[[int, int], TimeBounds]
"""When the messages `[start, end)` of a partition were published."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages the group will never read. `start`/`end` are None where the range is unknown.

    `archive` is the offload in whose archive its messages lie; None where they are in none.
    `likely` is about how many of its offsets were lost; None where nothing tells. `maybe_empty`:
    its offsets may be aborted messages or transaction markers, and no messages. `sequences` are
    those of a `producer_gap`, whose messages never had an offset. `recovery_id` is the recovery
    that has the gap now.
    """

    id: str
    stream: str
    cluster: str
    topic: str
    group: str
    topic_id: str
    partition: int
    start: int | None
    end: int | None
    cause: Cause
    certainty: Certainty
    state: GapState
    first_time: datetime | None
    last_time: datetime | None
    detected_at: datetime
    reason: str = ""
    archive: str | None = None
    sequences: SequenceRange | None = None
    likely: int | None = None
    maybe_empty: bool = False
    recovery_id: str | None = field(default=None, compare=False)
    changed_by: str = field(default="", compare=False)

    @property
    def may_be_read(self) -> bool:
        """Whether the group may have read some of it after all."""
        return self.certainty is not Certainty.EXACT and not self.maybe_empty

    @property
    def count(self) -> int | None:
        """Offsets lost at most, or messages that have none; None where unknown."""
        if self.sequences is not None:
            return self.sequences.count
        return None if self.start is None or self.end is None else max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The messages of one injection transaction.

    `path` and `ids_path` are relative to the recovery's staging directory.
    """

    slot: int
    number: int
    count: int
    bytes: int
    sha256: str
    path: str
    ids_path: str
    canary: bool = False


@dataclass(frozen=True, slots=True)
class Recovery:
    """One planned and approved piece of work, as the SQL ledger has it."""

    id: str
    kind: str
    stream: str
    cluster: str
    topic: str
    group: str
    state: RecoveryState
    plan_hash: str
    plan: Mapping[str, Any]
    created_at: datetime
    approved_by: str | None = None
    approved_identity: str | None = None
    approved_hash: str | None = None
    approval_expires_at: datetime | None = None
    requested: str | None = None  # pause | cancel: what an operator asked the runner for
    runner: str | None = None  # who holds the lease: "host:pid"
    lease_until: datetime | None = None
    injected: int = 0
    skipped: int = 0
    detail: Mapping[str, Any] = field(default_factory=dict)
    stops_consumers: bool = False  # the group's own consumers are stopped while it is worked on
    holds_when_failed: bool = False  # failed, it is active until it is run again or cancelled


@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """One line of a recovery's record; `hash` covers the line and the previous line's hash."""

    recovery_id: str
    sequence: int
    at: datetime
    actor: str
    action: str
    detail: Mapping[str, Any]
    previous_hash: str
    hash: str


# A part of a recovery that can be started again after a crash, and completed.

ContextT_contra = TypeVar("ContextT_contra", contravariant=True)


class Step(Generic[ContextT_contra]):
    """One step: three verbs side by side, each safe to call again after a crash.

    A verb that a step does not define does nothing. What takes back what the steps did is the
    kind's own `close`, which `cancel` drives.
    """

    name: str

    def validate(self, context: ContextT_contra) -> None:
        """Looks, changes nothing; raises where the step must not start."""

    def start(self, context: ContextT_contra) -> None:
        """Does the work; goes on where an earlier start was killed."""

    def complete(self, context: ContextT_contra) -> None:
        """Closes the step: checks its result and records it."""


def hash_value(value: Any) -> str:
    """SHA-256 of a JSON value's canonical text (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


# What stays free of the brokers' disks.

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_PERCENT = 100


@dataclass(frozen=True, slots=True)
class DiskFloor:
    """What stays free of each disk: bytes, or a share of it in percent."""

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `5%`, `20 GB`.

        Raises:
            ValueError: for anything else.
        """
        unit = next((unit for unit in ("%", *reversed(_UNITS)) if text.strip().endswith(unit)), "")
        amount = float(text.strip().removesuffix(unit)) if unit else -1.0
        if not 0 <= amount < math.inf or (unit == "%" and amount >= _PERCENT):
            raise ValueError(text)
        return cls(amount, unit)

    def count_bytes(self, total: int) -> int:
        """Of a disk of so many bytes."""
        whole = total / _PERCENT if self.unit == "%" else _UNITS[self.unit]
        return math.ceil(self.amount * whole)


@dataclass(frozen=True, slots=True)
class Quota:
    """`rate`: bytes a second that each broker takes of `who`; None: as many as come."""

    rate: float | None
    who: str

    def take(self, share: float | None) -> float | None:
        """So much of it; None where there is no quota, or no share is asked for."""
        return None if self.rate is None or share is None else share * self.rate

    def describe(self, share: float) -> str:
        """`at most 1.5 MB/s: 50 % of the quota of user ada …`."""
        if self.rate is None:
            return (
                f"as fast as it goes: brokers name no quota for {self.who} (`limits.quota_share`)"
            )
        least, whole = (f"{format_bytes(round(one * self.rate))}/s" for one in (share, 1.0))
        return (
            f"at most {least}: {100 * share:g} % of the quota of {self.who}, {whole} "
            "(`limits.quota_share`)"
        )
