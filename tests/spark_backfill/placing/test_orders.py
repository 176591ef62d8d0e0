"""Rows that the stream's order does not tell apart: no plan says more than is known of them."""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.spark_backfill.placing.tables import judge, make_table

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
