"""What a report says came of it, and of plans that it cannot read."""

from __future__ import annotations

from typing import Any

import pytest

from backlogctl.errors import Refused
from backlogctl.manifests import hash_value
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.present.report import make_report
from backlogctl.values import RecoveryState
from tests.replay.expand_makers import make_expand_plan
from tests.replay.makers import make_rebuild_plan, store_approved
from tests.replay.report_makers import drain, plan_lost, put_back, report

S = RecoveryState


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
    approve_plan(desk, planned, by="Grace")
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


def _without(whole: dict[str, Any], name: str) -> dict[str, Any]:
    *outer, last = name.split(".")
    part = whole
    for key in outer:
        part = part[key]
    del part[last]
    return whole


def keep(desk: Workspace, kind: str, plan: dict[str, Any]) -> str:
    """Stores whatever is said as a plan; its id."""
    return desk.ledger.recoveries.create(
        kind,
        "orders",
        "main",
        "orders",
        "service",
        plan,
        hash_value(plan),
        (),
        "ada",
        stops_consumers=False,
        holds_when_failed=False,
    ).id


@pytest.mark.parametrize(
    "missing",
    ["outcome", "outcome.counts", "outcome.proof", "outcome.chunks", "planned_by", "warnings"],
)
def test_a_rebuild_without_a_field_is_refused(desk: Workspace, missing: str) -> None:
    old = keep(desk, "rebuild", _without(make_rebuild_plan().dump(), missing))
    with pytest.raises(Refused, match=rf"another version.*{missing} is required"):
        make_report(desk, old)


@pytest.mark.parametrize("name", ["lag", "temporary", "wins", "rate_per_consumer", "partitions"])
@pytest.mark.parametrize("gone", [True, False])
def test_an_expansion_whose_field_is_another_or_not_there_is_refused(
    desk: Workspace, name: str, gone: bool
) -> None:
    whole = make_expand_plan().dump()
    odd = _without(whole, name) if gone else {**whole, name: {"of": "another version"}}
    old = keep(desk, "expand", odd)
    with pytest.raises(Refused, match=rf"another version.*{name}"):
        make_report(desk, old)


@pytest.mark.parametrize("kind", ["rebuild", "expand"])
def test_a_plan_of_a_newer_version_is_refused_by_its_number(desk: Workspace, kind: str) -> None:
    plan = make_rebuild_plan() if kind == "rebuild" else make_expand_plan()
    newer = keep(desk, kind, {**plan.dump(), "version": 99})
    with pytest.raises(Refused, match="it has version 99, and this program knows 1") as caught:
        make_report(desk, newer)
    assert f"backlogctl cancel {newer}" in caught.value.hint


def test_an_unknown_kind_is_refused_with_its_name(desk: Workspace) -> None:
    other = keep(desk, "mystery", {"version": 1})
    with pytest.raises(Refused, match="this program does not know the kind mystery") as caught:
        make_report(desk, other)
    assert caught.value.subject == f"recovery {other}"


def test_what_need_not_be_in_a_plan_may_be_missing(desk: Workspace) -> None:
    whole = _without(make_expand_plan().dump(), "off_peak")
    document, page = report(desk, keep(desk, "expand", _without(whole, "origin")))
    assert document["people"]["planned_by"] == "os:planner@here"
    assert document["record"]["plan_holds"]
    assert "unread when planned" in page.text
