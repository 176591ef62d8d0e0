"""Bookmarks in the ledger: noted once, found again, thinned with age."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import event

from backlogctl.ledger import Ledger
from backlogctl.values import Bookmark
from tests.kernel.ledger.makers import NOON, make_gap

HORIZON = timedelta(hours=24)
PLACE = ("orders", "orders-service", "topic-id")


def mark(committed: int, partition: int = 0, digest: str = "ab" * 16) -> Bookmark:
    return Bookmark(partition, committed, committed + 2, digest)


def note(ledger: Ledger, at: datetime, *marks: Bookmark) -> None:
    ledger.bookmarks.add(*PLACE, marks, at)


def list_commits(ledger: Ledger, partition: int = 0) -> list[int]:
    return [m.committed for m in ledger.bookmarks.list(*PLACE) if m.partition == partition]


def test_bookmarks_come_back_in_order_and_apart(ledger: Ledger) -> None:
    note(ledger, NOON, mark(7, 1), mark(2**40))
    note(ledger, NOON + timedelta(minutes=1), mark(3), mark(1, 1))
    ledger.bookmarks.add("invoices", "orders-service", "topic-id", [mark(5)], NOON)
    ledger.bookmarks.add("orders", "other", "topic-id", [mark(5)], NOON)
    ledger.bookmarks.add("orders", "orders-service", "recreated", [mark(5)], NOON)
    note(ledger, NOON)
    assert ledger.bookmarks.list(*PLACE) == (mark(3), mark(2**40), mark(1, 1), mark(7, 1))
    assert ledger.bookmarks.list("orders", "orders-service", "recreated") == (mark(5),)


def test_a_commit_that_has_a_bookmark_keeps_it(ledger: Ledger) -> None:
    note(ledger, NOON, mark(7))
    note(ledger, NOON, mark(7, digest="cd" * 16), mark(8, digest="cd" * 16))
    assert ledger.bookmarks.list(*PLACE) == (mark(7), mark(8, digest="cd" * 16))


def test_commits_that_have_one_are_found(ledger: Ledger) -> None:
    note(ledger, NOON, *(mark(100 + number, number) for number in range(0, 1200, 2)))
    commits = {number: 100 + number for number in range(1200)} | {0: 99}
    found = ledger.bookmarks.find_noted(*PLACE, commits)
    assert found == frozenset(range(2, 1200, 2))
    assert ledger.bookmarks.find_noted(*PLACE, {}) == frozenset()
    assert ledger.bookmarks.find_noted("orders", "other", "topic-id", commits) == frozenset()


def test_those_of_an_observation_are_one_statement(ledger: Ledger) -> None:
    statements: list[tuple[str, bool]] = []
    engine = ledger._database.writer
    event.listen(
        engine,
        "before_cursor_execute",
        lambda *call: statements.append((call[2].split()[0], call[5])),
    )
    note(ledger, NOON, *(mark(1, number) for number in range(5000)))
    assert [each for each in statements if each[0] != "BEGIN"] == [("INSERT", True)]
    assert len(ledger.bookmarks.list(*PLACE)) == 5000


def test_thinning_keeps_the_first_and_the_last_of_each_cell(ledger: Ledger) -> None:
    for minute in range(30 * 60):
        note(ledger, NOON - timedelta(minutes=minute), mark(10_000 - minute))
    deleted = ledger.bookmarks.thin(NOON, HORIZON)
    kept = [10_000 - committed for committed in list_commits(ledger)]
    assert deleted == 30 * 60 - len(kept)
    assert [age for age in kept if age <= 60] == list(range(60, -1, -1))
    # 12:00:00.1 is the first of its cell: [0, 5) of the hour's minutes, so 4 and 0 are kept.
    fine = [age for age in kept if 60 < age <= 24 * 60]
    assert {-age % 5 for age in fine} == {0, 4}
    assert len(fine) in (2 * 23 * 12, 2 * 23 * 12 - 1)
    coarse = [age for age in kept if age > 24 * 60]
    assert {-age % 60 for age in coarse[1:]} == {0, 59}
    assert ledger.bookmarks.thin(NOON, HORIZON) == 0


def test_thinning_goes_by_partition_and_keeps_the_newest(ledger: Ledger) -> None:
    old = NOON - timedelta(days=50)
    for number in range(4):
        note(ledger, old + timedelta(seconds=number), mark(number, 0), mark(number, 1))
    note(ledger, old + timedelta(days=48), *(mark(number, 2) for number in range(5)))
    assert ledger.bookmarks.thin(NOON, HORIZON) == 3 + 3 + 3
    assert [list_commits(ledger, number) for number in range(3)] == [[3], [3], [0, 4]]
    assert ledger.bookmarks.thin(NOON, timedelta(days=60)) == 0


@pytest.mark.parametrize("start", [22, 25])
def test_thinning_leaves_those_at_a_recorded_gap(ledger: Ledger, start: int) -> None:
    at = NOON - timedelta(days=40)
    for number in range(20, 30):
        note(ledger, at, mark(number), mark(number, 1))
    end = start + 2
    ledger.gaps.record(make_gap(start, end))
    ledger.gaps.record(make_gap(26, 28, topic_id="recreated"))
    ledger.bookmarks.thin(NOON, HORIZON)
    assert list_commits(ledger) == [start, end, 29]
    assert list_commits(ledger, 1) == [29]
    assert ledger.bookmarks.thin(NOON, HORIZON) == 0


def test_thinning_again_and_again_keeps_what_thinning_once_keeps(ledger: Ledger) -> None:
    for minute in range(0, 6 * 60, 2):
        now = NOON + timedelta(minutes=minute)
        note(ledger, now, mark(minute))
        ledger.bookmarks.thin(now, HORIZON)
    again = list_commits(ledger)
    for minute in range(0, 6 * 60, 2):
        note(ledger, NOON + timedelta(minutes=minute), mark(minute, 1))
    ledger.bookmarks.thin(NOON + timedelta(minutes=6 * 60 - 2), HORIZON)
    assert again == list_commits(ledger, 1)
