"""What `exact` takes beside counts that fit: survivors that show the rules, and no other errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.spark_backfill import world
from tests.spark_backfill.placing.losing import HANDLED, LOST, Losing, make_orders, mark_all, place

NOTED = {"consumed": {"database": "shop", "table": "processed", "column": "order_id"}}


def note_handled(losing: Losing) -> None:
    """The consumer's own table: it has all that was handled."""
    world.run_sql(
        losing.shop,
        "CREATE TABLE processed (order_id text PRIMARY KEY)",
        f"INSERT INTO processed SELECT order_id FROM orders WHERE order_id <= {HANDLED}",
    )


def test_fault_137_a_consumed_table_does_not_say_that_the_rules_are_right(losing: Losing) -> None:
    """It names the rows; that the messages of the lost ones are made as they were, survivors show."""
    gaps = losing.lose(make_orders(LOST + 11))
    note_handled(losing)
    request = losing.open(gaps, source=NOTED)
    outcome = losing.plan(request)
    assert world.keys_of(request) == list(range(HANDLED + 1, LOST + 1))
    assert outcome.proof.compared == 11
    assert (outcome.verdict, outcome.reasons) == (
        "short",
        (
            "the rules are not proved: only 11 surviving messages could be compared with what they "
            "make of rows, 100 are needed to rely on them",
        ),
    )


def test_fault_137_bookmarks_do_not_say_it_either(losing: Losing) -> None:
    """A hundred rows that were read show the order, and few of the sample are among these."""
    rows = make_orders(2_000)
    gaps = losing.lose(rows)
    identity: dict[str, Any] = {"row": {"sql": "concat('', order_id)"}, "message": "key"}
    source = {"identity": identity, "margin": "120s"}
    request = losing.open(gaps, source=source, bookmarks=mark_all(rows, gaps))
    outcome = losing.plan(request)
    assert 0 < outcome.proof.compared < 100
    assert outcome.verdict == "short"
    assert all(part.expected == part.rebuilt for part in outcome.partitions)
    (reason,) = outcome.reasons
    assert "surviving messages could be compared" in reason
    later = replace(request, recovery_id="r-2", until=rows[-1]["updated_at"])
    assert losing.plan(later).verdict == "exact", "it reads the rows of all survivors"


def test_fault_137_rows_never_sent_and_rows_that_are_gone_may_cancel_out(losing: Losing) -> None:
    """In each partition one lost row was deleted, and one row was never sent; so it was later."""
    rows = make_orders()
    unsent = {_nth(rows[LOST - 100 : LOST], p)["order_id"] for p in range(3)} | {700, 710, 720}
    gone = {_nth(rows[HANDLED:], p)["order_id"] for p in range(3)} | set(range(800, 850))
    world.fill_table(losing.shop, world.ORDERS, rows)
    sent = [row for row in rows if row["order_id"] not in unsent]
    losing.publish(sent)
    lost = sent[: LOST - 3]
    handled, taken = ([sum(place(row) == p for row in some) for p in range(3)]
                      for some in (rows[:HANDLED], lost))  # fmt: skip
    losing.delete_below(dict(enumerate(taken)))
    note_handled(losing)
    world.run_sql(
        losing.shop, f"DELETE FROM orders WHERE order_id IN ({', '.join(map(str, gone))})"
    )
    first, last = rows[HANDLED]["updated_at"], lost[-1]["updated_at"]
    gaps = tuple(losing.make_gap(p, handled[p], taken[p], first, last) for p in range(3))
    request = losing.open(gaps, source=NOTED)
    outcome = losing.plan(request)
    assert all(part.expected == part.rebuilt for part in outcome.partitions)
    assert len(unsent & set(world.keys_of(request))) == 3
    assert outcome.verdict == "short"
    (reason,) = outcome.reasons
    assert "have no row that was read" in reason


@pytest.mark.parametrize("noted", [True, False], ids=["consumed", "bookmarks"])
def test_fault_153_messages_sent_twice_and_rows_never_sent_may_cancel_out(
    losing: Losing, noted: bool
) -> None:
    """So many of each are among the lost ones of each partition; survivors show the repeats."""
    rows = make_orders()
    world.fill_table(losing.shop, world.ORDERS, rows)
    unsent, twice = (
        {_nth(rows[HANDLED:LOST], p, at)["order_id"] for p in range(3)} for at in (5, 50)
    )
    again = twice | set(range(LOST + 1, LOST + 31))
    sent = [
        row
        for row in rows
        if row["order_id"] not in unsent
        for _ in range(1 + (row["order_id"] in again))
    ]
    losing.publish(sent)
    gaps = losing.expire(rows)
    if noted:
        note_handled(losing)
    request = losing.open(
        gaps,
        source=NOTED if noted else {},
        bookmarks=() if noted else mark_all(sent, gaps),
    )
    outcome = losing.plan(request)
    assert all(part.expected == part.rebuilt for part in outcome.partitions)
    assert len(unsent & set(world.keys_of(request))) == 3
    assert outcome.verdict == "short"
    assert "were sent more than once" in outcome.reasons[0]


def _nth(rows: list[dict[str, Any]], partition: int, number: int = 5) -> dict[str, Any]:
    return [row for row in rows if place(row) == partition][number]
