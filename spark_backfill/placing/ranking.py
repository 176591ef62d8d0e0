"""Ranks the rows of the gaps' partitions in the stream's order, beside their messages (P2.10)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pyspark.sql import DataFrame

from backlogctl.errors import StagingError
from backlogctl.spark_backfill.evidence.survivors import SurvivorEvidence
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.request import Stretch
from backlogctl.spark_backfill.spark.frames import freeze, make_rows, quote
from backlogctl.values import Bookmark, OffsetRange

# What is measured of one partition's rows, and where its gaps begin and end among them.
#
# Rows of a partition are counted in the stream's order (`order_by`). A *place* is a number of
# rows: those that come before, without the ones whose message is still in the log. Among rows that
# tie in that order those that left the log come first, then the others by their offset.


class EdgeEvidence(StrEnum):
    """What says where a gap begins or ends, best first."""

    CONSUMED = "consumed"  # the consumer's own table
    LOG = "log"  # the log itself: its first offset, or the first message that survives
    BOOKMARK = "bookmark"  # the identity of the message at the committed offset
    COUNTED = "counted"  # offsets counted from the nearest offset whose row is known
    SAMPLES = "samples"  # times of samples only


@dataclass(frozen=True, slots=True)
class Anchor:
    """A row whose offset is known: no row lies between the offsets `first` and `offset`.

    `before`, `after`: by how many places it may stand elsewhere among the rows that tie with it.
    """

    first: int
    offset: int
    place: int
    before: int = 0
    after: int = 0

    @property
    def is_sharp(self) -> bool:
        return not (self.before or self.after)


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
        compared: rows whose message is in the log. Those that tie show no order: they count once.
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


# Bookmarks that are looked for on either side of an edge.
_BOOKMARKS = 8
# Rows without a rank are spread over so many groups.
SPREAD = 1000


@dataclass(frozen=True, slots=True)
class Ranked:
    """The labelled rows without their content, ranked and frozen.

    Columns of `frame`: message_id, time, label, reason, key_is_null, slot, home (the partition it
    was sent to; NULL where unknown), homes (those it may have been sent to), log_partition and
    log_offset (of its own message in the log, else NULL), mark (the digest of a bookmark of this
    row), rank and place (rows before it: all, and those whose message is not in the log; NULL
    outside of the gaps' partitions), tie (the rank of the first row that ties with it), unordered
    (the column of `order_by` in which it has NULL, so that rank and place say nothing of it; NULL
    where it has none), copies, p0...
    """

    frame: DataFrame

    def in_gaps(self) -> DataFrame:
        """Rows that have a rank."""
        return self.frame.where("rank IS NOT NULL")

    def list_left(self) -> DataFrame:
        """Those of them whose message is not in the log."""
        return self.in_gaps().where("log_offset IS NULL")


def choose_bookmarks(
    bookmarks: Iterable[Bookmark], ranges: Sequence[OffsetRange], log_start: Mapping[int, int]
) -> tuple[Bookmark, ...]:
    """The bookmarks that may place an edge: of rows that left the log, nearest to the gaps."""
    by_partition: dict[int, list[Bookmark]] = {}
    for mark in bookmarks:
        if mark.offset < log_start.get(mark.partition, 0):
            by_partition.setdefault(mark.partition, []).append(mark)
    chosen: list[Bookmark] = []
    for partition in sorted({item.partition for item in ranges}):
        edges = [at for r in ranges if r.partition == partition for at in (r.start, r.end)]
        known = sorted(by_partition.get(partition, ()), key=lambda mark: mark.offset)
        near: set[int] = set()
        for edge in edges:
            at = bisect_left(known, edge, key=lambda mark: mark.offset)
            near |= set(range(max(0, at - _BOOKMARKS), min(len(known), at + _BOOKMARKS)))
        chosen += [known[i] for i in sorted(near)]
    # The identity of messages in several partitions says of none where its row belongs.
    homes: dict[str, set[int]] = {}
    for mark in chosen:
        homes.setdefault(mark.digest, set()).add(mark.partition)
    return tuple(mark for mark in chosen if len(homes[mark.digest]) == 1)


def rank_rows(
    labelled: DataFrame,
    survivors: SurvivorEvidence,
    bookmarks: Sequence[Bookmark],
    *,
    topic_id: str,
    partitions: Sequence[int],
    order: Mapping[str, str],
    sort_keys: Sequence[str],
    keys: Sequence[str],
    work: Path,
) -> Ranked:
    """Ranks and freezes the candidates.

    Args:
        labelled: the candidates with `label`.
        partitions: those that have a gap; without any nothing is ranked, only frozen.
        order: the sort columns, and what the table calls them; keys: those of the primary key.
        sort_keys: what tells rows apart (`list_sort_keys`).
    """
    rows = labelled.drop("value", "header_values", "header_list")
    if partitions:
        rows = _rank(_find_marks(_find_messages(rows, survivors), bookmarks, topic_id),
                     partitions, tuple(order), sort_keys)  # fmt: skip
    else:
        rows = rows.selectExpr("*", *_UNRANKED)
    unordered = " ".join(f"WHEN {name} IS NULL THEN {quote(told)}" for name, told in order.items())
    frame = rows.selectExpr(
        "message_id", "time", "label", "reason", "key IS NULL AS key_is_null", "slot", "home",
        "homes", "log_partition", "log_offset", "mark", "rank", "place", "tie",
        f"CASE {unordered} END AS unordered", "copies", *keys,
    )  # fmt: skip
    path = str(work / "ranked")
    with translating("rank the candidates", subject=path, kind=StagingError):
        return Ranked(freeze(frame, path))


_UNRANKED = (
    "CAST(NULL AS int) AS log_partition", "CAST(NULL AS long) AS log_offset",
    "CAST(NULL AS string) AS mark", "CAST(NULL AS int) AS rank", "CAST(NULL AS long) AS place",
    "CAST(NULL AS int) AS tie",
)  # fmt: skip


def _find_messages(rows: DataFrame, survivors: SurvivorEvidence) -> DataFrame:
    """Adds the offset of the row's own message in the log, and where it knows the partition."""
    return rows.sparkSession.sql(
        """
        WITH log AS (
            SELECT identity AS log_identity, min_by(partition, offset) AS log_partition,
                min(offset) AS log_offset
            FROM {log} WHERE NOT ours AND identity IS NOT NULL GROUP BY identity
        )
        SELECT r.* EXCEPT (home), coalesce(home, log_partition) AS home, log_partition, log_offset
        FROM {rows} r LEFT JOIN log ON identity = log_identity
        """,
        rows=rows,
        log=survivors.read_frozen(),
    )


def _rank(
    rows: DataFrame, partitions: Sequence[int], order: Sequence[str], sort_keys: Sequence[str]
) -> DataFrame:
    names = [f"__k{i}" for i in range(len(sort_keys))]
    keyed = rows.selectExpr(
        "*",
        f"coalesce(home IN ({', '.join(map(str, partitions))}), false) AND time IS NOT NULL "
        "AS __ranked",
        *(f"{key} AS {name}" for name, key in zip(names, sort_keys, strict=True)),
    )
    # The others are sorted as well, but not all of them in one task.
    sort = ", ".join([*names, "log_offset ASC NULLS FIRST", *order, "message_id"])
    window = (
        "PARTITION BY __ranked, home, CASE WHEN NOT __ranked THEN "
        f"pmod(xxhash64(message_id), {SPREAD}) END ORDER BY {sort}"
    )
    same = " AND ".join(f"{name} <=> lag({name}) OVER w" for name in names) or "true"
    return rows.sparkSession.sql(
        f"""
        WITH numbered AS (
            SELECT *, row_number() OVER w - 1 AS __rank,
                count_if(log_offset IS NULL) OVER (
                    {window} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                ) AS __place,
                NOT ({same}) AS __begins
            FROM {{rows}} WINDOW w AS ({window})
        )
        SELECT * EXCEPT (__rank, __place, __begins),
            CASE WHEN __ranked THEN __rank END AS rank,
            CASE WHEN __ranked THEN __place END AS place,
            CASE WHEN __ranked THEN max(CASE WHEN __rank = 0 OR __begins THEN __rank END) OVER (
                {window} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) END AS tie
        FROM numbered
        """,
        rows=keyed,
    )


def _find_marks(rows: DataFrame, bookmarks: Sequence[Bookmark], topic_id: str) -> DataFrame:
    """Adds `mark`, the digest of a bookmark that is of this row, and where that is."""
    if not bookmarks:
        return rows.selectExpr("*", "CAST(NULL AS string) AS mark")
    known = {mark.digest: mark.partition for mark in bookmarks}
    salt = (topic_id.encode() + b"\0").hex()
    # `stamps.hash_identity` in Spark SQL, bit for bit.
    digest = f"substring(sha2(concat(X'{salt}', identity), 256), 1, 32)"
    return rows.sparkSession.sql(
        f"""
        SELECT /*+ BROADCAST(m) */ r.* EXCEPT (home), coalesce(home, mark_home) AS home, mark
        FROM {{rows}} r LEFT JOIN {{marks}} m ON {digest} = mark
        """,
        rows=rows,
        marks=make_rows(rows.sparkSession, list(known.items()), "mark string, mark_home int"),
    )
