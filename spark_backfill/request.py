"""What a plan of a rebuild is made from, and what it comes to: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from backlog.config import Source, Stream
from backlog.values import Gap

ALLOW_PROOF = "proof"


@dataclass(frozen=True, slots=True)
class PriorChunk:
    """A chunk that the Kafka ledger says an earlier recovery committed to this topic.

    `lost`: its messages lie within the gaps themselves, so they explain nothing any more.
    """

    recovery_id: str
    slot: int
    number: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class RebuildRequest:
    """Everything a plan reads; nothing else is looked up.

    Attributes:
        sources: the configuration's `sources`, by name.
        client_properties: of the stream's cluster, secrets revealed.
        partitions: of the topic, now.
        topic_config: of the topic, now (`max.message.bytes`, `cleanup.policy`).
        gaps: the gaps to plan, all of this stream.
        staging_root: `staging.dir`; this recovery's files go to `<root>/<recovery_id>`.
        since, until: bounds given by the operator; they win over the gaps' own times.
        allow: what the operator allowed by name: `surplus`, `proof`.
        prior: chunks of earlier recoveries of this topic that are committed.
        start_spread: how far apart the timeline's two bounds of the gaps' first message are; None
            where it does not know. Sharp evidence is one tighter than the margin.
        origin: more to keep in the manifest (the Kafka ledger's end offsets, topic ids, ...).
    """

    recovery_id: str
    stream: Stream
    sources: Mapping[str, Source]
    client_properties: Mapping[str, str]
    partitions: int
    topic_config: Mapping[str, str]
    gaps: tuple[Gap, ...]
    staging_root: Path
    since: datetime | None = None
    until: datetime | None = None
    allow: frozenset[str] = frozenset()
    prior: tuple[PriorChunk, ...] = ()
    start_spread: timedelta | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.staging_root / self.recovery_id


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """One partition of a plan. `expected` counts offsets: at most that many messages.

    `collapsed` is the part of the shortfall that one row may stand for several times.
    """

    partition: int
    expected: int
    rebuilt: int
    surviving: int
    quarantined: int
    collapsed: int
    surplus: int
    shortfall: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals of a plan: candidates = surviving + consumed + already_injected + quarantined +
    rebuilt; `duplicates` were rows of a primary key that was already there."""

    expected: int = 0
    candidates: int = 0
    duplicates: int = 0
    surviving: int = 0
    consumed: int = 0
    already_injected: int = 0
    rebuilt: int = 0
    collapsed: int = 0
    quarantined: int = 0
    surplus: int = 0
    shortfall: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """What a rebuilt message and the log's own message of one row do not agree on."""

    identity: str
    partition: int
    offset: int
    what: str  # key | value | headers | partition | row
    detail: str


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof on survivors: `rate` is None where there was nothing to compare.

    `matched` are those that agree in all that is judged: everything, or for a mutable table key
    and partition only. `equal_values` and `equal_headers` are counted in both cases.
    """

    sampled: int
    compared: int
    matched: int
    equal_values: int
    equal_headers: int
    mutable: bool
    differences: tuple[Difference, ...] = ()

    @property
    def rate(self) -> float | None:
        """Matched among the compared, 0 to 1."""
        return self.matched / self.compared if self.compared else None


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One row that could not be built: its primary key as text, and why."""

    primary_key: tuple[str | None, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Rows that could not be built; all of them are listed in the Parquet files at `path`."""

    count: int
    reasons: Mapping[str, int]
    sample: tuple[Quarantined, ...]
    path: str


@dataclass(frozen=True, slots=True)
class RebuildOutcome:
    """A finished plan. `verdict` is exact, short or surplus; `reasons` say why it is not exact.

    `bounds` are the times candidates were read between, margin included (None is open).
    `log_start` and `log_end` are the offsets survivors were read between.
    """

    recovery_id: str
    verdict: str
    reasons: tuple[str, ...]
    counts: Counts
    partitions: tuple[PartitionOutcome, ...]
    proof: Proof
    quarantine: Quarantine
    warnings: tuple[str, ...]
    manifest_sha256: str
    chunks: int
    bytes: int
    fidelity: str
    bounds: tuple[str | None, str | None]
    log_start: Mapping[int, int]
    log_end: Mapping[int, int]
    seconds: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the plan that is stored, hashed and shown (without `seconds`)."""
        value = asdict(self)
        del value["seconds"]
        value["proof"]["rate"] = self.proof.rate
        for name in ("log_start", "log_end"):
            value[name] = {str(partition): at for partition, at in value[name].items()}
        return value
