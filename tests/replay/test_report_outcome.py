"""What a report says came of it, and of plans that it cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backlog.errors import Refused
from backlog.values import RecoveryState
from replay.approval import approve_plan
from replay.report.document import make_report
from replay.workspace import Workspace
from tests.replay.expand_makers import make_expand_plan, store_expand_plan
from tests.replay.makers import make_plan, open_desk, store_approved
from tests.replay.report_makers import drain, plan_lost, put_back, report

S = RecoveryState


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    return open_desk(tmp_path)


def test_a_stale_plan_cannot_be_run_again(desk: Workspace) -> None:
    recovery = store_approved(desk).id
    desk.ledger.recoveries.advance(recovery, S.RUNNING, "op")
    why = {"code": "plan_stale", "message": "the topic was made anew"}
    desk.ledger.recoveries.advance(recovery, S.FAILED, "op", why)
    standing = make_report(desk, recovery)["standing"]
    assert standing["next"] == [f"backlogctl cancel {recovery}"]
    assert standing["sentence"] == "It failed: the topic was made anew."


def test_what_a_cancelled_rebuild_left_out_is_not_explained_away(desk: Workspace) -> None:
    planned = plan_lost(desk)
    approve_plan(desk.ledger, desk.config, planned, by="Grace")
    desk.ledger.recoveries.advance(planned.id, S.CANCELLED, "op")
    rest = make_report(desk, planned.id)["unexplained"]
    assert [(item["name"], item["value"]) for item in rest["items"]] == [("not_put_back", 10)]
    assert not rest["told"].startswith("Nothing")


def test_nothing_is_left_of_a_verified_rebuild(desk: Workspace) -> None:
    rest = make_report(desk, put_back(desk).id)["unexplained"]
    assert rest["items"] == []
    assert rest["told"] == "Nothing: every lost offset has its rebuilt message."


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "Nothing: relayed = written = handled, 1,200,007 messages."),
        ({"written": 5}, "Not the same: 1,200,007 relayed, 5 written, 1,200,007 handled."),
        ({"handled": 6}, "Not the same: 1,200,007 relayed, 1,200,007 written, 6 handled."),
    ],
)
def test_what_was_drained_is_compared(desk: Workspace, changes: dict[str, int], told: str) -> None:
    document, page = report(desk, drain(desk, counted=changes))
    assert document["unexplained"]["told"] == told
    assert "unread at the end" not in page.text


def _without(whole: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        *outer, last = name.split(".")
        part = whole
        for key in outer:
            part = part[key]
        del part[last]
    return whole


@pytest.mark.parametrize(
    "missing",
    ["outcome", "outcome.counts", "outcome.counts.expected", "outcome.proof", "outcome.chunks"],
)
def test_a_rebuild_of_another_version_is_refused(desk: Workspace, missing: str) -> None:
    old = _without(make_plan(), missing)
    recovery = desk.ledger.recoveries.create(
        "rebuild", "orders", "main", "orders", "service", old, "hash", (), "ada"
    )
    with pytest.raises(Refused, match=rf"another version.*{missing} is required"):
        make_report(desk, recovery.id)


@pytest.mark.parametrize("name", ["lag", "temporary", "wins", "rate_per_consumer", "partitions"])
def test_an_expansion_of_another_version_is_refused(desk: Workspace, name: str) -> None:
    odd = {"of": "another version"}
    with pytest.raises(Refused, match=rf"another version.*{name}"):
        make_report(desk, store_expand_plan(desk, **{name: odd}).id)


def test_what_need_not_be_in_a_plan_may_be_missing(desk: Workspace) -> None:
    optional = ("stopped", "raised", "created", "given_back", "planned_by", "planned_at")
    whole = _without(make_expand_plan(), *optional, "warnings")
    recovery = desk.ledger.recoveries.create(
        "expand", "orders", "main", "orders", "service", whole, "hash", (), "ada"
    )
    document, page = report(desk, recovery)
    assert document["people"]["planned_by"] == "?:?@?"
    assert "unread when planned" in page.text
