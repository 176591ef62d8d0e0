"""Losses that begin among rows without an order, or with too few survivors to show one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from backlogctl.spark_backfill.request import RebuildOutcome, RebuildRequest
from backlogctl.values import Bookmark
from tests.spark_backfill import world
from tests.spark_backfill.placing.losing import (
    HANDLED,
    LOST,
    ROWS,
    Losing,
    lost_keys,
    make_orders,
    mark_all,
)

BULK = range(HANDLED - 40, HANDLED + 40)


class Plans:
    """Plans of one loss; each is a recovery of its own."""

    def __init__(self, losing: Losing, request: RebuildRequest) -> None:
        self._losing = losing
        self._request = request
        self._made = 0

    def make(self, edge: str | None = None, **changes: Any) -> tuple[set[int], RebuildOutcome]:
        """The keys that are put back, and what the plan says."""
        self._made += 1
        stream = self._request.stream
        assert stream.source is not None
        source = stream.source.model_copy(update={"edge": edge})
        request = replace(
            self._request,
            recovery_id=f"r-20261121-{self._made:04d}",
            stream=stream.model_copy(update={"source": source}),
            **changes,
        )
        outcome = self._losing.plan(request)
        return set(world.keys_of(request)), outcome


def number_rows(ids: list[int]) -> list[dict[str, Any]]:
    """One a second, of which some were inserted at once."""
    rows = [{**world.make_order(n + 1), "order_id": id_} for n, id_ in enumerate(ids)]
    for at in BULK:
        rows[at]["updated_at"] = rows[BULK[0]]["updated_at"]
    return rows


@pytest.mark.parametrize("marked", [True, False])
def test_fault_95_all_rows_of_a_bulk_insert_are_uncertain_where_a_loss_begins_among_them(
    losing: Losing, marked: bool
) -> None:
    rows = number_rows(Random(95).sample(range(1, ROWS + 1), ROWS))
    gaps = losing.lose(rows)
    marks = mark_all(rows, gaps) if marked else ()
    plans = Plans(losing, losing.open(gaps, bookmarks=marks))
    taken, outcome = plans.make()
    assert (outcome.verdict, len(taken)) == ("within" if marked else "short", LOST - HANDLED)
    assert outcome.uncertain.count == len(BULK)
    assert outcome.displacement == 0, "survivors show nothing of it"
    assert any("a backfill" in reason for reason in outcome.reasons) is not marked
    all_, _ = plans.make("include")
    assert all_ == {row["order_id"] for row in rows[BULK[0] : LOST]}
    sure, _ = plans.make("exclude")
    assert sure == {row["order_id"] for row in rows[BULK[-1] + 1 : LOST]}


def test_rows_that_the_streams_own_order_tells_apart_are_not(losing: Losing) -> None:
    """The key is counted up, and the stream says so."""
    rows = number_rows(list(range(1, ROWS + 1)))
    gaps = losing.lose(rows)
    marks = mark_all(rows, gaps)
    source = {"order_by": ["updated_at", "order_id"]}
    request = losing.open(gaps, bookmarks=marks, source=source)
    taken, outcome = Plans(losing, request).make()
    assert sorted(taken) == lost_keys(rows)
    assert (outcome.verdict, outcome.reasons) == ("exact", ())


def test_a_tie_that_the_log_start_cuts_through_leaves_nothing_open(losing: Losing) -> None:
    """Those of its rows that survive are known by their messages: the others were lost."""
    rows = number_rows(Random(7).sample(range(1, ROWS + 1), ROWS))
    moment = rows[LOST - 30]["updated_at"]
    for row in rows[LOST - 30 : LOST + 30]:
        row["updated_at"] = moment
    for at in BULK:
        rows[at]["updated_at"] = world.START + timedelta(seconds=at + 1)
    gaps = losing.lose(rows)
    marks = mark_all(rows, gaps)
    request = losing.open(gaps, bookmarks=marks)
    taken, outcome = Plans(losing, request).make()
    assert sorted(taken) == sorted(lost_keys(rows))
    assert (outcome.verdict, outcome.reasons) == ("exact", ())


def test_fault_95_rows_of_a_doubled_hour_are_uncertain_where_a_loss_begins_in_it(
    losing: Losing, url: str
) -> None:
    """Berlin's clock says 02:00 to 03:00 twice: 180 rows each time, at two of which it turns."""
    zone = ZoneInfo("Europe/Berlin")
    losing = replace(losing, shop=url)
    begin = datetime(2025, 10, 25, 23, 0, tzinfo=UTC)
    rows = [
        {**world.make_order(n), "updated_at": begin + timedelta(seconds=20 * (n - 1))}
        for n in range(1, ROWS + 1)
    ]
    said = [
        {**row, "updated_at": row["updated_at"].astimezone(zone).replace(tzinfo=UTC)}
        for row in rows
    ]
    kind = "DATETIME" if url.startswith("mariadb") else "TIMESTAMP"
    world.fill_table(url, world.ORDERS.format(time=kind), said)
    losing.publish(rows)
    gaps = losing.expire(rows)
    sources = {"shop": world.make_source(url, timezone=zone.key)}
    request = losing.open(
        gaps, bookmarks=mark_all(rows, gaps), sources=sources, source={"margin": "3h"}
    )
    plans = Plans(losing, request)
    taken, outcome = plans.make()
    assert (outcome.verdict, len(taken)) == ("within", LOST - HANDLED), outcome.reasons
    assert outcome.uncertain.count == 360
    sure, _ = plans.make("exclude")
    assert sure == set(range(541, LOST + 1))


def test_with_few_survivors_a_bookmark_says_where_and_the_plan_that_their_order_is_not_proved(
    losing: Losing,
) -> None:
    rows = make_orders(LOST + 7)
    gaps = losing.lose(rows)
    marks = mark_all(rows, gaps)
    plans = Plans(losing, losing.open(gaps, bookmarks=marks))
    few = "only 7 survivors show the rows' order, 20 are needed"
    taken, outcome = plans.make()
    assert sorted(taken) == lost_keys(rows)
    assert outcome.verdict == "short"
    assert {part.evidence for part in outcome.partitions} == {"bookmark"}
    assert few in outcome.evidence
    assert "counting agrees in 3 of 3" in outcome.evidence
    assert [few in reason for reason in outcome.reasons].count(True) == 1
    assert not any("times only" in reason for reason in outcome.reasons)
    # Without one nothing is counted, and the plan says what would help.
    taken, outcome = plans.make(bookmarks=())
    assert set(lost_keys(rows)) < taken
    (reason,) = [text for text in outcome.reasons if "times only" in text]
    assert few in reason
    assert "watch" in reason
    # What was done already is no advice.
    strange = tuple(Bookmark(m.partition, m.offset, m.offset, "00") for m in marks)
    _, outcome = plans.make(bookmarks=strange)
    (reason,) = [text for text in outcome.reasons if "times only" in text]
    assert few in reason
    assert "no bookmark that can be used" in reason
    assert "watch" not in reason
