"""What is measured of one partition's rows, and where its gaps begin and end among them.

Rows of a partition are counted in the stream's order (`order_by`). A *place* is a number of rows:
those that come before, without the ones whose message is still in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spark_backfill.request import Stretch


class EdgeEvidence(StrEnum):
    """What says where a gap begins or ends, best first."""

    CONSUMED = "consumed"  # the consumer's own table
    LOG = "log"  # the log itself: its first offset, or the first message that survives
    BOOKMARK = "bookmark"  # the identity of the message at the committed offset
    COUNTED = "counted"  # offsets counted from the nearest offset whose row is known
    SAMPLES = "samples"  # times of samples only


@dataclass(frozen=True, slots=True)
class Anchor:
    """A row whose offset is known: no row lies between the offsets `first` and `offset`."""

    first: int
    offset: int
    place: int


@dataclass(frozen=True, slots=True)
class TimedPlaces:
    """Where the samples' times put an edge: not before `lower`, not after `upper`; not before
    `floor`, not after `ceiling`, where rows were committed, or marked, as late as the stream's
    margin allows."""

    offset: int
    lower: int
    upper: int
    floor: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """The rows of one partition, as measured.

    Attributes:
        rows: rows whose message is not in the log.
        log_start: where the log begins; every offset from here on is known by its message.
        before_log: the place of `log_start`.
        bookmarks: rows below the log start whose offset is known.
        ours: offsets that earlier recoveries wrote, control records included: no row stands there.
        timed: what samples say of the edges.
        unordered: those of the rows that have no place; None where each has one.
    """

    partition: int
    rows: int
    log_start: int
    before_log: int
    bookmarks: tuple[Anchor, ...] = ()
    ours: tuple[Stretch, ...] = ()
    timed: tuple[TimedPlaces, ...] = ()
    unordered: Unordered | None = None


@dataclass(frozen=True, slots=True)
class Unordered:
    """Rows with NULL in columns of `order_by`: they stand before all others, wherever they were."""

    rows: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OrderProof:
    """How well the rows' order is the log's, measured on messages that survive.

    Attributes:
        compared: rows whose message is in the log.
        early, late: by how many places at most a row stands before, or after, its message.
        mean: the mean displacement, in places.
        disorder: the mean displacement as a share of a partition's survivors; 1/3 where the order
            is random.
        unsent: rows among the survivors whose message is not in the log.
        gone: messages among the survivors that have no row of their own.
        holes: the share of offsets that are no messages (control records, aborted, compacted).
    """

    compared: int = 0
    early: int = 0
    late: int = 0
    mean: float = 0.0
    disorder: float = 0.0
    unsent: int = 0
    gone: int = 0
    holes: float = 0.0

    @property
    def displacement(self) -> int:
        """D: the most places between a row and its message."""
        return max(self.early, self.late)


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a gap begins or ends: `place` rows come before it.

    Attributes:
        before: how many rows before `place` may lie behind the edge all the same.
        after: how many rows from `place` on may lie before it.
        differs: by how many rows the check says otherwise: negative, the check lies earlier.
        check: what it was checked by; None where nothing could.
        beyond: by how many rows it lies before the first one that was read.
    """

    offset: int
    place: int
    evidence: EdgeEvidence
    before: int = 0
    after: int = 0
    differs: int = 0
    check: EdgeEvidence | None = None
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class PlacedGap:
    """A gap among the rows of its partition. `bounded`: the group may have read some of it."""

    start: Edge
    end: Edge
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class RowRange:
    """Places `[first, end)` of one partition: whether their rows are likely, or surely, lost."""

    partition: int
    first: int
    end: int
    likely: bool
    sure: bool
