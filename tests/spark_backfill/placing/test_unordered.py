"""Rows with NULL in a column of `order_by` have no place: a real broker, Spark and SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.placing.placement import GapPlacement
from backlogctl.spark_backfill.placing.ranking import Edge, EdgeEvidence, PlacedGap, Unordered
from backlogctl.spark_backfill.request import RebuildOutcome, RebuildRequest
from backlogctl.values import Bookmark, Gap
from tests.conftest import MakeTopic
from tests.spark_backfill import world
from tests.spark_backfill.placing.losing import (
    HANDLED,  # fmt: skip
    LOST,  # fmt: skip
    PARTITIONS,  # fmt: skip
    ROWS,  # fmt: skip
    lose,  # fmt: skip
    lost_keys,  # fmt: skip
    mark,  # fmt: skip
    open_request,  # fmt: skip
    place,  # fmt: skip
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Their sender did not know its column yet.
AMONG_LOST = range(LOST - 60, LOST, 5)
AMONG_HANDLED = range(HANDLED - 60, HANDLED, 5)


class Losses:
    """Rows are in the order of `sequence`, a column that was added later."""

    def __init__(
        self, spark: SparkSession, kafka: EmbeddedKafka, topic: str, shop: str, path: Path
    ) -> None:
        self.rows = [world.make_order(number) for number in range(1, ROWS + 1)]
        self._spark, self._kafka, self._topic, self._shop = spark, kafka, topic, shop
        self._path = path
        self.gaps: tuple[Gap, ...] = lose(kafka, topic, shop, self.rows)
        self.marks = tuple(mark(self.rows, gap.partition, gap.start or 0) for gap in self.gaps)

    def clear(self, numbers: range) -> dict[int, int]:
        """These have NULL there; returns how many of each partition."""
        listed = ", ".join(map(str, numbers))
        world.run_sql(
            self._shop,
            "ALTER TABLE orders ADD COLUMN sequence BIGINT",
            f"UPDATE orders SET sequence = order_id WHERE order_id NOT IN ({listed})",
        )
        own = [place(self.rows[number - 1]) for number in numbers]
        return {partition: own.count(partition) for partition in range(PARTITIONS)}

    def plan(
        self, bookmarks: tuple[Bookmark, ...] = (), **source: Any
    ) -> tuple[RebuildRequest, RebuildOutcome]:
        request = open_request(
            self._kafka, self._topic, self._shop, self._path, self.gaps, bookmarks=bookmarks,
            source={"order_by": ["sequence"], **source},
        )  # fmt: skip
        return request, world.plan(self._spark, request)


@pytest.fixture
def losses(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop: str, tmp_path: Path
) -> Losses:
    return Losses(spark, kafka, topic(partitions=PARTITIONS), shop, tmp_path)


def test_over_rows_without_a_place_nothing_is_counted(losses: Losses) -> None:
    """They would stand first, as handled ones, and as many handled ones be put back for them."""
    cleared = losses.clear(AMONG_LOST)
    request, outcome = losses.plan()
    assert all(cleared.values())
    assert set(lost_keys(losses.rows)) <= set(world.keys_of(request))
    assert {part.evidence for part in outcome.partitions} == {"samples"}
    assert outcome.verdict not in {"exact", "within"}
    told = f"{len(AMONG_LOST)} rows in partitions 0, 1, 2 with NULL in sequence: "
    assert any(reason.startswith(told) for reason in outcome.reasons)
    assert told in outcome.evidence


def test_where_they_are_of_one_partition_the_others_are_counted(losses: Losses) -> None:
    number = next(n for n in AMONG_LOST if place(losses.rows[n - 1]) == 1)
    losses.clear(range(number, number + 1))
    request, outcome = losses.plan()
    found = set(world.keys_of(request))
    assert set(lost_keys(losses.rows)) <= found
    assert [part.evidence for part in outcome.partitions] == ["counted", "samples", "counted"]
    others = {key for key in found if place(losses.rows[key - 1]) != 1}
    assert others == set(lost_keys(losses.rows, [0, 2]))


def test_a_bookmark_is_as_good_as_it_was(losses: Losses) -> None:
    losses.clear(AMONG_HANDLED)
    request, outcome = losses.plan(losses.marks)
    assert world.keys_of(request) == lost_keys(losses.rows)
    assert (outcome.verdict, outcome.reasons) == ("exact", ())
    assert "with NULL in sequence" in outcome.evidence


def test_a_lost_row_without_a_place_is_missing_in_the_count(losses: Losses) -> None:
    cleared = losses.clear(AMONG_LOST)
    request, outcome = losses.plan(losses.marks)
    assert set(world.keys_of(request)) == set(lost_keys(losses.rows)) - set(AMONG_LOST)
    assert outcome.verdict == "short"
    assert {part.partition: part.shortfall for part in outcome.partitions} == cleared


def test_a_bookmark_of_a_row_without_a_place_says_nothing(losses: Losses) -> None:
    """Such a row stands beside another one, whatever their order was in the log."""
    first = losses.gaps[0]
    own = [row for row in losses.rows if place(row) == first.partition]
    number = own[first.start or 0]["order_id"]
    losses.clear(range(number, number + 1))
    request, outcome = losses.plan(losses.marks)
    assert set(lost_keys(losses.rows)) <= set(world.keys_of(request))
    assert [part.evidence for part in outcome.partitions] == ["samples", "bookmark", "bookmark"]
    assert outcome.verdict not in {"exact", "within"}


def test_only_where_bookmarks_are_sharp_no_other_row_stands_for_one_without_a_place() -> None:
    end = Edge(9, 9, EdgeEvidence.LOG)
    sharp = PlacedGap(Edge(5, 5, EdgeEvidence.BOOKMARK), end)
    open_ = PlacedGap(Edge(5, 5, EdgeEvidence.BOOKMARK, before=1), end)
    unordered = dict.fromkeys(range(3), Unordered(1, ("sequence",)))
    gaps = {0: (sharp,), 1: (sharp, open_), 2: None, 3: None}
    placement = GapPlacement(cast(Any, None), gaps, unordered=unordered)
    assert placement.misplaced == (1, 2)
