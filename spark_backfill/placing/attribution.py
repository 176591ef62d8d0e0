"""Decides of each candidate whether it lies in a gap: by its offset, its place, or its time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame

from backlogctl.errors import StagingError
from backlogctl.spark_backfill.evidence.injected import LOST, OUTSIDE, QUARANTINED
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.messages.windows import Bounds
from backlogctl.spark_backfill.messages.windows import Window as TimeWindow
from backlogctl.spark_backfill.placing.ranking import SPREAD, RowRange
from backlogctl.spark_backfill.spark.frames import freeze, make_empty, make_rows, mark_within, quote
from backlogctl.values import OffsetRange

INCLUDE, EXCLUDE = "include", "exclude"


def take_by_edge(edge: str | None) -> str:
    """Which of the messages that may be lost are put back, by the stream's `source.edge`: an SQL
    condition over the columns `sure` and `likely`."""
    return {INCLUDE: "true", EXCLUDE: "sure"}.get(edge or "", "likely")


@dataclass(frozen=True, slots=True)
class Attribution:
    """How rows are given to gaps.

    Attributes:
        ranges: the gaps: a row whose message is still in the log is in one by its offset.
        bounded: those of them that the group may have read in part.
        cuts: places, of the partitions whose gaps could be placed.
        windows: times, of the other partitions that have a gap; they do not overlap.
        anywhere: times of rows whose partition is not known.
        proven: whether the partitioner is proved: else a row may be of any partition. What else
            messages differ in says nothing of that.
        edge: what is done with uncertain rows: include, exclude, or None for what is likely.
    """

    ranges: Sequence[OffsetRange]
    bounded: Collection[OffsetRange]
    cuts: Sequence[RowRange]
    windows: Sequence[TimeWindow]
    anywhere: Bounds
    proven: bool
    edge: str | None = None

    def take(self, cut: RowRange) -> bool:
        """Whether rows of a range are put back."""
        if self.edge == INCLUDE:
            return True
        return cut.sure if self.edge == EXCLUDE else cut.likely


def attribute_rows(
    ranked: DataFrame, how: Attribution, again: DataFrame | None, work: Path
) -> DataFrame:
    """The ranked rows with their last `label`, `uncertain` and whether they are `likely` lost, and
    `counted` (the partition of a row that is of one of two), frozen.

    A row that no evidence explains and that lies in no gap is `outside`: the group has read it.

    Args:
        again: ids (`key`) of messages that were put back and may have been lost again (`likely`,
            `sure`), wherever their rows lie.
    """
    spark = ranked.sparkSession
    rows = ranked
    place = {"partition": "log_partition", "offset": "log_offset"}
    for name, ranges in (("in_log", how.ranges), ("in_bounded", how.bounded)):
        rows = mark_within(rows, ranges, f"c_{name}", **place)
    cuts = make_rows(
        spark,
        [(c.partition, c.first, c.end, how.take(c), c.likely, not c.sure) for c in how.cuts],
        "c_home int, c_first long, c_end long, c_take boolean, c_is_likely boolean, "
        "c_uncertain boolean",
    )
    windows = make_rows(
        spark,
        [(w.partition, *w.bounds.to_text()) for w in how.windows],
        "w_home int, w_lower string, w_upper string",
    )
    lost_again = (make_empty(spark, _AGAIN) if again is None else again).selectExpr(
        "key AS a_key", "likely AS a_likely", "sure AS a_sure",
        f"{take_by_edge(how.edge)} AS a_take",
    )  # fmt: skip
    decided = spark.sql(
        _render_decision(how, [name for name in ranked.columns if name != "label"]),
        rows=rows,
        cuts=cuts,
        windows=windows,
        again=lost_again,
    )
    path = str(work / "attributed")
    with translating("find the lost rows", subject=path, kind=StagingError):
        return freeze(decided, path)


_AGAIN = "key string, likely boolean, sure boolean"


def _render_decision(how: Attribution, names: Sequence[str]) -> str:
    """The statement over rows, cuts, windows, and what was put back and may be lost again."""
    in_gap = _render_in_gap(how)
    numbers = sorted({*(r.partition for r in how.ranges), *(w.partition for w in how.windows)})
    return f"""
        WITH placed AS (
            SELECT /*+ BROADCAST(c, w, a) */
                r.*, c_take, c_is_likely, c_uncertain, w_home, a_key, a_likely, a_sure, a_take,
                array_intersect(homes, CAST(array({_join(numbers)}) AS array<int>)) AS possible,
                -- A row without a time is a candidate until evidence explains it.
                time IS NULL AS is_timeless,
                -- A message with a key that was sent while partitions were added.
                home IS NULL AND homes IS NOT NULL AND time IS NOT NULL AS is_either,
                label IN ('{LOST}', '{QUARANTINED}') AS is_open
            FROM {{rows}} r
            LEFT JOIN {{cuts}} c ON home = c_home AND log_offset IS NULL
                AND place >= c_first AND place < c_end
            LEFT JOIN {{windows}} w ON home = w_home AND {_is_between("w_lower", "w_upper")}
            LEFT JOIN {{again}} a ON message_id = a_key
        ), judged AS (
            SELECT *, {_render_either(how)} AS is_either_lost, {in_gap} AS in_gap FROM placed
        ), labelled AS (
            SELECT * EXCEPT (label),
                CASE WHEN is_open AND NOT in_gap THEN '{OUTSIDE}' ELSE label END AS label
            FROM judged
        ), known AS (
            -- Where it was put back says more than where its row stands, which may be at an edge.
            SELECT *, a_key IS NOT NULL AND label IN ('{LOST}', '{QUARANTINED}', '{OUTSIDE}')
                AS is_known
            FROM labelled
        )
        SELECT {", ".join(names)},
            CASE WHEN is_known THEN NOT a_sure
                ELSE is_open AND coalesce(c_uncertain, c_in_bounded OR is_either_lost)
            END AS uncertain,
            CASE WHEN is_known THEN a_likely ELSE coalesce(c_is_likely, true) END AS likely,
            CASE
                WHEN is_known AND label = '{OUTSIDE}' AND a_take
                    THEN CASE WHEN reason IS NULL THEN '{LOST}' ELSE '{QUARANTINED}' END
                ELSE label
            END AS label,
            CASE WHEN is_either THEN try_element_at(possible, 1) END AS counted
        FROM known
        """


def _render_in_gap(how: Attribution) -> str:
    others = sorted({window.partition for window in how.windows})
    elsewhere, excludes = _render_elsewhere(how), how.edge == EXCLUDE
    return f"""
        CASE
            WHEN log_offset IS NOT NULL THEN c_in_log{" AND NOT c_in_bounded" if excludes else ""}
            WHEN is_either THEN {"false" if excludes else _render_either(how)}
            WHEN home IS NULL OR is_timeless THEN is_timeless OR {elsewhere}
            {f"WHEN home IN ({_join(others)}) THEN w_home IS NOT NULL" if others else ""}
            WHEN c_take IS NOT NULL THEN c_take
            ELSE {"false" if how.proven else elsewhere}
        END"""


def _render_either(how: Attribution) -> str:
    """Whether a message of one of several partitions may be lost."""
    lost = f"is_either AND {_render_elsewhere(how)}"
    return f"{lost} AND size(possible) > 0" if how.proven else lost


def _render_elsewhere(how: Attribution) -> str:
    return _is_between(*(at and quote(at) for at in how.anywhere.to_text()))


def _join(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _is_between(lower: str | None, upper: str | None) -> str:
    """Whether `time` lies between two texts, in SQL; a bound that is NULL is open."""
    bounds = [(lower, ">="), (upper, "<=")]
    return (
        " AND ".join(f"({at} IS NULL OR time {than} {at})" for at, than in bounds if at) or "true"
    )


def fill_needs(decided: DataFrame, needs: Mapping[int, int]) -> DataFrame:
    """Gives lost messages without a key to the partitions that still lack some, in order of time.

    Args:
        needs: lost offsets that no message with a key explains, by partition. What is left over
            keeps the partition it was spread to.
    """
    edges, at = [], 0
    for number, need in sorted(needs.items()):
        if need > 0:
            edges.append((number, at, at + need))
            at += need
    if not edges:
        return decided
    spark = decided.sparkSession
    return spark.sql(
        f"""
        WITH marked AS (
            SELECT *, label = '{LOST}' AND key_is_null AND home IS NULL AS __keyless
            FROM {{decided}}
        ), numbered AS (
            -- The other rows are sorted as well, but not all of them in one task.
            SELECT *, row_number() OVER (
                PARTITION BY __keyless,
                    CASE WHEN NOT __keyless THEN pmod(xxhash64(message_id), {SPREAD}) END
                ORDER BY time, message_id
            ) - 1 AS __index
            FROM marked
        )
        SELECT /*+ BROADCAST(f) */ n.* EXCEPT (slot, __keyless, __index),
            coalesce(f_slot, slot) AS slot
        FROM numbered n
        LEFT JOIN {{edges}} f ON __keyless AND __index >= f_first AND __index < f_end
        """,
        decided=decided,
        edges=make_rows(spark, edges, "f_slot int, f_first long, f_end long"),
    )
