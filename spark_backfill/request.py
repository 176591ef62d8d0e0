"""What a plan of a rebuild is made from, and what it comes to: frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from backlogctl.config import SchemaRegistry, Source, Stream
from backlogctl.values import Bookmark, EdgeTimes, Gap

ALLOW_PROOF = "proof"
# Plans without the id lists that are missing.
ALLOW_IDS = "ids"


@dataclass(frozen=True, slots=True)
class PriorChunk:
    """A chunk that the Kafka ledger says an earlier recovery committed to this topic.

    `first_offset`, `last_offset` are where its `count` messages lie, None where that is not known;
    its transaction's control record follows. `same_group`: it was put back for the group of the
    plan: where its messages lie in a gap, the group lost them again. `archive`: where it was read,
    None where in none. `left_out`: messages of its list, counted from 0, that were not sent;
    `count` is without them.
    """

    recovery_id: str
    slot: int
    number: int
    count: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    same_group: bool = True
    archive: str | None = None
    left_out: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets `[first, end)` of one partition, of which `count` are an earlier recovery's: its
    messages and the control record of their transaction."""

    partition: int
    first: int
    end: int
    count: int


def list_stretches(prior: Sequence[PriorChunk]) -> tuple[Stretch, ...]:
    """Where in the log earlier recoveries wrote."""
    return tuple(
        # The control record follows the last message.
        Stretch(chunk.slot, chunk.first_offset, chunk.last_offset + 2, chunk.count + 1)
        for chunk in prior
        if chunk.first_offset is not None and chunk.last_offset is not None
    )


def count_offsets(first: int, end: int, ours: Sequence[Stretch]) -> int:
    """Offsets `[first, end)` that no earlier recovery wrote."""
    return max(0, end - first) - count_ours(first, end, ours)


def count_ours(first: int, end: int, ours: Sequence[Stretch]) -> int:
    """Offsets `[first, end)` that earlier recoveries wrote."""
    found = 0
    for item in ours:
        overlap = min(end, item.end) - max(first, item.first)
        if overlap > 0:
            # Others may have written in between: then it is a share.
            found += round(item.count * overlap / (item.end - item.first))
    return found


@dataclass(frozen=True, slots=True)
class Growth:
    """The topic got partitions: `before` of them until then; it happened between two samples."""

    before: int
    earliest: datetime
    latest: datetime


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """An archive of the topic, as the ledger knows it: its messages are not lost."""

    recovery_id: str
    location: str
    manifest_sha256: str


@dataclass(frozen=True, slots=True)
class RebuildRequest:
    """Everything a plan reads; nothing else is looked up.

    Attributes:
        sources: the configuration's `sources`, by name.
        client_properties: of the stream's cluster, secrets revealed.
        partitions: of the topic, now.
        topic_config: of the topic, now (`max.message.bytes`, `cleanup.policy`).
        gaps: the gaps to plan, all of this stream, whose messages are in no archive; of messages
            that had offsets, or of those that never reached the topic.
        archives: all of this topic that are there still.
        staging_root: `staging.dir`; this recovery's files go to `<root>/<recovery_id>`.
        since, until: bounds given by the operator; they win over the gaps' own times.
        allow: what the operator allowed by name: `surplus`, `proof`, `ids`.
        prior: chunks of earlier recoveries of this topic that are committed.
        elsewhere: the same of another target, where messages are not sent twice either.
        target: the topic that gets the messages, and its number of partitions; None for this one.
        edge_times: between which samples the gaps' first and last messages were published.
        bookmarks: which messages the group's committed offsets pointed at.
        growth: when the topic got partitions, oldest first.
        registries: the configuration's `registries`, by name.
        read_since: rows are read from here on at least: of messages that are lost again.
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
    elsewhere: tuple[PriorChunk, ...] = ()
    archives: tuple[ArchiveSource, ...] = ()
    target: tuple[str, int] | None = None
    edge_times: tuple[EdgeTimes, ...] = ()
    bookmarks: tuple[Bookmark, ...] = ()
    growth: tuple[Growth, ...] = ()
    read_since: datetime | None = None
    registries: Mapping[str, SchemaRegistry] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.staging_root / self.recovery_id

    @property
    def is_unsent(self) -> bool:
        """Whether the gaps are of messages that never reached the topic: then all of them are."""
        return any(gap.sequences is not None for gap in self.gaps)

    @property
    def lost_from(self) -> tuple[int, ...]:
        """The partitions that have a gap to rebuild rows for."""
        return tuple(sorted({gap.partition for gap in self.gaps}))

    @property
    def topic_id(self) -> str:
        """The topic's, as the gaps have it."""
        return next((gap.topic_id for gap in self.gaps), "")

    @property
    def target_topic(self) -> str:
        """The topic that gets the messages."""
        return self.stream.topic if self.target is None else self.target[0]

    @property
    def target_partitions(self) -> int:
        """How many partitions it has."""
        return self.partitions if self.target is None else self.target[1]


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """One partition of a plan. `expected` counts offsets: at most that many messages.

    `collapsed` is the part of the shortfall that one row may stand for several times. `evidence`
    says how it is known where the loss begins; `uncertain` rows lie at its edges, within
    `displacement` places or what counting may be wrong by. `differs`: by how many rows the check
    of that evidence says otherwise. `surplus` and `shortfall` do not count uncertain rows that
    `edge` takes in or leaves out.
    """

    partition: int
    expected: int
    rebuilt: int
    surviving: int
    quarantined: int
    collapsed: int
    surplus: int
    shortfall: int
    evidence: str = ""
    uncertain: int = 0
    differs: int = 0


@dataclass(frozen=True, slots=True)
class CandidateCounts:
    """Totals of a plan: candidates = surviving + consumed + already_injected + outside +
    quarantined + rebuilt.

    `outside` rows lie in no gap: the group has read their messages. `duplicates` were rows of a
    primary key that was already there.
    """

    expected: int = 0
    candidates: int = 0
    duplicates: int = 0
    surviving: int = 0
    consumed: int = 0
    already_injected: int = 0
    outside: int = 0
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
class Variation:
    """A header, or a field of JSON values, that compared messages differ in.

    Attributes:
        name: the header's, or the field's path with dots.
        messages: how many of the compared ones differ in it.
        ignored: it is left out of the comparison.
    """

    what: str  # header | field
    name: str
    messages: int
    ignored: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof on survivors: `rate` is None where there was nothing to compare.

    `matched` are those that agree in all that is judged: everything, or for a mutable table key
    and partition only. `equal_values` and `equal_headers` are counted in both cases. What is
    ignored is left out of all three.

    `placed` are those that agree in key and partition; None where a plan did not count them.
    `variations` has the most frequent ones. `repeated` of the sampled were sent more than once.
    `returns`: how often a schema comes back among them after another one.
    """

    sampled: int
    compared: int
    matched: int
    equal_values: int
    equal_headers: int
    mutable: bool
    differences: tuple[Difference, ...] = ()
    placed: int | None = None
    variations: tuple[Variation, ...] = ()
    repeated: int = 0
    returns: int = 0

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
class UncertainRow:
    """A row at a gap's edge that may be lost or not; `taken`: it is put back."""

    partition: int
    primary_key: tuple[str | None, ...]
    time: str
    taken: bool


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Rows at the edges; all of them are listed in the Parquet files at `path`."""

    count: int = 0
    taken: int = 0
    sample: tuple[UncertainRow, ...] = ()
    path: str = ""


@dataclass(frozen=True, slots=True)
class RebuildOutcome:
    """A finished plan. `verdict` is exact, within, covering, short or surplus; `reasons` say why
    it is not exact, `evidence` what says where the losses begin, in one sentence.

    `slots` are the partitions that get messages; those that lost them, where it is empty.
    `displacement` (D) is by how many places at most a surviving row stands from its message among
    the rows of its partition; None where that was not measured.

    `schemas` say, of keys and values that have one, which they get.

    `bounds` are the times candidates were read between, margin included (None is open).
    `log_start` and `log_end` are the offsets survivors were read between.
    """

    recovery_id: str
    verdict: str
    reasons: tuple[str, ...]
    counts: CandidateCounts
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
    evidence: str = ""
    uncertain: Uncertain = Uncertain()
    displacement: int | None = None
    slots: tuple[int, ...] = ()
    schemas: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data for the plan that is stored, hashed and shown (without `seconds`)."""
        value = asdict(self)
        del value["seconds"]
        value["proof"]["rate"] = self.proof.rate
        for name in ("log_start", "log_end"):
            value[name] = {str(partition): at for partition, at in value[name].items()}
        return value
