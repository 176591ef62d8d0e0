"""Which losses a report tells, and as how large."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from backlogctl.clock import format_time, read_time
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.present.report import make_report
from backlogctl.values import Cause, Gap, RecoveryState, SequenceRange
from tests.kernel.ledger.makers import make_gap
from tests.replay.expand_makers import make_expand_plan, store_expand_plan
from tests.replay.makers import keep_plan, make_rebuild_plan
from tests.replay.report_makers import drain, note, plan_lost, report, sample

S = RecoveryState
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)


def lose(desk: Workspace, at: datetime, start: int, end: int) -> Gap:
    """A gap of partition 0 of the group that expansions are for."""
    seen = replace(make_gap(start, end), first_time=at - MINUTE, last_time=at - MINUTE)
    return desk.ledger.gaps.record(replace(seen, group="service", detected_at=at))


def test_what_an_expansion_has_not_lost_is_not_told(desk: Workspace) -> None:
    now = desk.ledger.now()
    lose(desk, now - 20 * DAY, 0, 5)
    before = lose(desk, now - 60 * MINUTE, 100, 107)
    recovery = drain(desk).id
    just = lose(desk, now + MINUTE, 1000, 1011)
    lose(desk, now + 20 * DAY, 5000, 5013)
    document, _ = report(desk, recovery)
    assert [gap["id"] for gap in document["losses"]["gaps"]] == [before.id, just.id]
    assert document["losses"]["count"] == 18
    assert read_time(document["from"]) > now - DAY
    assert sum(line["what"] == "loss detected" for line in document["timeline"]["lines"]) == 2


def test_an_old_loss_that_lasted_until_the_plan_is_told(desk: Workspace) -> None:
    now = desk.ledger.now()
    old = lose(desk, now - 20 * DAY, 1_100_000, 1_200_000)
    first, *rest = make_expand_plan().dump()["partitions"]
    rows = [{**first, "lost": 100_000, "start": 1_200_000}, *rest]
    recovery = store_expand_plan(desk, partitions=rows, lost=100_000).id
    sample(desk, -19 * DAY.total_seconds(), 70)
    sample(desk, -60, 5_000)
    document, _ = report(desk, recovery)
    assert [gap["id"] for gap in document["losses"]["gaps"]] == [old.id]
    assert [point["lag"] for point in document["lag"]] == [5_000]


def test_a_recovery_ends_with_its_state_and_not_with_its_last_line(desk: Workspace) -> None:
    recovery = drain(desk).id
    ended = desk.ledger.events.list(recovery)[-1].at
    note(desk, recovery, "staged messages removed")
    assert make_report(desk, recovery)["to"] == format_time(ended)


def test_a_gap_that_grew_after_its_release_is_as_it_was_planned(desk: Workspace) -> None:
    planned = plan_lost(desk)
    desk.ledger.recoveries.advance(planned.id, S.REJECTED, "op")
    grown = desk.ledger.gaps.record(make_gap(100, 150, partition=0))
    assert grown.count == 50
    document, page = report(desk, planned.id)
    losses = document["losses"]
    assert [gap["count"] for gap in losses["gaps"]] == [5, 5]
    assert losses["count"] == 10
    assert "At most 10 messages" in losses["sentence"]
    (seen,) = (line for line in document["timeline"]["lines"] if line["what"] == "loss detected")
    assert seen["detail"] == "at most 10 messages in 2 partitions"
    assert "100–104" in page.text


def test_what_was_not_lost_unread_is_not_called_that(desk: Workspace) -> None:
    ledger = desk.ledger
    unsent = replace(
        make_gap(None, None, cause=Cause.PRODUCER_GAP),
        sequences=SequenceRange("shop", 0, 10, 13),
    )
    gaps = [ledger.gaps.record(gap) for gap in (unsent, make_gap(0, 7, cause=Cause.UNPROCESSED))]
    planned = keep_plan(desk, make_rebuild_plan(group="orders-service"), [gap.id for gap in gaps])
    sentence = report(desk, planned.id)[0]["losses"]["sentence"]
    assert "4 messages that their producer had numbered never reached topic" in sentence
    assert "7 messages of topic orders were committed by group" in sentence
    assert "unread" not in sentence


def test_very_many_gaps_are_cut_on_the_page(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backlogctl.replay.present.report_page._GAPS_SHOWN", 1)
    document, page = report(desk, plan_lost(desk))
    assert len(document["losses"]["gaps"]) == 2
    assert page.text.count("100–104") == 1
    assert "and 1 more gaps" in page.text
