"""Rows that the stream's order does not tell apart: no plan says more than is known of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from tests.spark_backfill.placing.tables import Row, Table, judge, make_table

CASES = 10_000


def test_fault_95_no_random_table_is_called_exact_or_within_where_it_is_not() -> None:
    random = Random(95)
    said: Counter[str] = Counter()
    for number in range(CASES):
        table = make_table(random)
        judged = judge(table)
        said[judged.kind] += 1
        if judged.kind in {"exact", "within"}:
            assert judged.is_true, (number, judged, sorted(table.kinds), table.bookmarks)
        if judged.kind == "exact":
            assert judged.uncertain == 0
    # It says something, all the same.
    assert min(said["exact"], said["within"]) > CASES / 20, said


def test_a_lost_row_that_no_survivor_is_like_is_missing_behind_a_bookmark() -> None:
    """It was inserted with an older time than that of the bookmark's row: a backfill."""
    random = Random(31)
    for _ in range(1_000):
        table = Table(
            tuple(Row(i, i, random.random()) for i in range(180)),
            commit=20, low=20 + random.randrange(2, 40), bookmarks=(20,), kinds=frozenset(),
        )  # fmt: skip
        assert judge(table).kind == "exact"
        rows = list(table.rows)
        for at in random.sample(range(21, table.low), random.randrange(1, table.low - 20)):
            rows[at] = replace(rows[at], key=random.randrange(20) - 0.5)
        assert judge(replace(table, rows=tuple(rows))).kind == "short"


def test_too_few_survivors_and_survivors_that_tie_prove_no_order() -> None:
    random = Random(20)
    for _ in range(1_000):
        table = make_table(random, survivors=random.randrange(6, 20))
        assert judge(table).kind not in {"exact", "within"}
    rows = tuple(Row(i, min(i, 60), random.random()) for i in range(300))
    tied = Table(rows, 20, 50, (20,), frozenset())
    assert judge(tied).kind == "short"
