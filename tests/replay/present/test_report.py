"""The incident report: every state and kind, its losses, its outcome, as a page and a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backlogctl.clock import format_time, read_time
from backlogctl.errors import BacklogError, Refused, UsageError
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.present.progress import thin
from backlogctl.replay.present.report import make_report
from backlogctl.replay.present.report_page import render_page, render_summary, write_whole
from backlogctl.replay.present.timeline import find_rise
from backlogctl.values import Cause, Gap, RecoveryState, SequenceRange
from tests.kit.ledger import NOON, create_recovery, make_gap
from tests.kit.recoveries import (
    Page,
    change_ledger,
    drain,
    keep_plan,
    make_expand_plan,
    make_rebuild_plan,
    note,
    open_desk,
    plan_lost,
    print_text,
    put_back,
    report,
    sample,
    store_approved,
    store_expand_plan,
    store_plan,
)
from tests.replay.conftest import Verb

S = RecoveryState


def test_a_verified_rebuild(desk: Workspace) -> None:
    document, page = report(desk, put_back(desk))
    assert (
        document["standing"]["headline"] == "10 lost messages of topic orders put back, each once"
    )
    assert document["standing"]["next"] == []
    assert [gap["count"] for gap in document["losses"]["gaps"]] == [5, 5]
    assert {gap["state"] for gap in document["losses"]["gaps"]} == {"verified"}
    assert document["verification"]["result"] == "passed"
    assert document["verification"]["partitions"] == [
        [0, 5, 5, 5, "900–904"],
        [1, 5, 5, 5, "901–905"],
    ]
    assert document["unexplained"]["items"] == []
    assert document["injection"]["points"][-1]["total"] == 10
    assert [step["step"] for step in document["steps"]] == ["inject"]
    people = document["people"]
    assert people["planned_by"] == "os:planner@here"
    assert people["approved_by"] == "Grace"
    assert people["approved_identity"].startswith("os:")
    assert people["approved_hash"] == people["plan_hash"]
    assert document["record"]["intact"]
    assert document["record"]["plan_holds"]
    whats = [line["what"] for line in document["timeline"]["lines"]]
    wanted = ["loss detected", "planned", "approved", "run began", "inject: done", "verified"]
    assert [what for what in whats if what in wanted] == wanted
    for told in ("≤ 5", "100–104", "chain was verified", "every lost offset has its rebuilt"):
        assert told in page.text
    assert page.count("svg") == 1


def test_a_verified_expansion(desk: Workspace) -> None:
    sample(desk, -120, 10)
    sample(desk, -60, 5_000)
    document, page = report(desk, drain(desk))
    assert document["standing"]["headline"].startswith("1,200,007 unread messages of topic orders")
    assert document["unexplained"]["told"] == (
        "Nothing: relayed = written = handled, 1,200,007 messages."
    )
    assert document["verification"]["partitions"][0] == [0, 400_000, 400_007]
    assert len(document["burndown"]) == 5
    assert document["lag"][0]["lag"] == 10
    assert document["steps"][0]["step"] == "stop_consumers"
    lines = document["timeline"]["lines"]
    assert lines[0]["what"] == "the group falls behind"
    assert lines[1]["detail"] == "5,000 unread"
    assert "handled more than once" in page.text.lower()
    assert page.count("svg") == 2


@pytest.mark.parametrize("kind", ["rebuild", "expand"])
@pytest.mark.parametrize("state", list(S))
def test_every_state_says_where_it_stands(desk: Workspace, kind: str, state: S) -> None:
    planned = plan_lost(desk) if kind == "rebuild" else store_expand_plan(desk)
    name, ledger = planned.id, desk.ledger
    detail: Mapping[str, Any] = {}
    if state not in (S.PLANNED, S.REJECTED):
        approve_plan(desk, planned, by="Grace")
    if state not in (S.PLANNED, S.REJECTED, S.APPROVED):
        ledger.recoveries.advance(name, S.RUNNING, "op")
    if state in (S.PAUSED, S.FAILED):
        detail = {"why": "operator", "code": "kafka", "message": "no broker answered"}
    if state not in (S.PLANNED, S.APPROVED, S.RUNNING):
        ledger.recoveries.advance(name, state, "op", detail)
    document, page = report(desk, name)
    standing = document["standing"]
    assert standing["sentence"] in page.text
    assert page.text.count(name) >= 2
    commands = {
        S.PLANNED: f"backlogctl approve {name} --by NAME",
        S.APPROVED: f"backlogctl run {name}",
        S.RUNNING: f"backlogctl run {name}",
        S.PAUSED: f"backlogctl resume {name}",
        S.FAILED: f"backlogctl run {name}",
        S.REJECTED: "backlogctl status orders",  # it has no source: a rebuild would be refused
        S.CANCELLED: "backlogctl status orders",
    }
    assert standing["next"] == ([commands[state]] if state in commands else [])
    assert document["ended"] is (state in (S.VERIFIED, S.REJECTED, S.CANCELLED))
    if state in (S.PAUSED, S.FAILED):
        assert "no broker answered" in standing["sentence"]
    text = print_text(render_summary(document))
    assert name in text
    assert "hash chain verified" in text


def test_consumers_that_stand_still_are_told(desk: Workspace) -> None:
    recovery = store_expand_plan(desk)
    approve_plan(desk, recovery, by="Grace")
    desk.ledger.recoveries.advance(recovery.id, S.RUNNING, "op")
    desk.ledger.steps.start(recovery.id, "stop_consumers")
    desk.ledger.recoveries.advance(recovery.id, S.FAILED, "op", {"message": "no broker"})
    assert "consumers are stopped" in make_report(desk, recovery.id)["standing"]["sentence"]


def test_the_rest_of_a_short_plan_is_told(desk: Workspace) -> None:
    differs = {"identity": "customer-18", "partition": 0, "offset": 3}
    differs |= {"what": "value", "detail": "is 1, 2 rebuilt"}
    outcome: dict[str, Any] = {
        "verdict": "short",
        "reasons": ["3 lost offsets have no rebuilt message: why"],
        "counts": {"rebuilt": 7, "shortfall": 3, "quarantined": 1, "collapsed": 2, "surviving": 2},
        "quarantine": {
            "count": 1,
            "reasons": {"its identity is NULL": 1},
            "sample": [{"primary_key": ["customer-17"], "reason": "x"}],
            "path": "/srv/quarantine",
        },
        "proof": {"differences": [differs]},
    }
    document, page = report(desk, store_plan(desk, outcome=outcome))
    found = {item["name"]: item["value"] for item in document["unexplained"]["items"]}
    assert found == {"shortfall": 3, "quarantined": 1, "collapsed": 2, "not_put_back": 7}
    assert "3 lost offsets have no rebuilt message: why" in page.text
    assert "− 2 still in the topic" in page.text, "what is subtracted is told as such"
    assert "in quarantine: 1 × its identity is NULL" in page.text
    everything = json.dumps(document) + page.text
    assert "customer-1" not in everything, "keys of rows are nobody's business"


def test_ids_and_bugs_are_not_told(desk: Workspace) -> None:
    verified, page = report(desk, put_back(desk))
    assert "secret-id" not in json.dumps(verified) + page.text
    failed = store_approved(desk, topic="other").id
    desk.ledger.recoveries.advance(failed, S.RUNNING, "op")
    bug = {"code": "bug", "message": "UnicodeDecodeError: b'the payload'"}
    desk.ledger.recoveries.advance(failed, S.FAILED, "op", bug)
    document, page = report(desk, failed)
    assert "the payload" not in json.dumps(document) + page.text
    assert "an error of the program" in document["standing"]["sentence"]


def test_a_changed_record_is_shouted(desk: Workspace) -> None:
    recovery = put_back(desk).id
    for (trigger,) in list_triggers(desk):
        change_ledger(desk, f"DROP TRIGGER {trigger}")
    change_ledger(desk, "UPDATE backlog_events SET actor = 'eve' WHERE sequence = 2")
    document, page = report(desk, recovery)
    assert document["record"]["problem"] == "event 2 was altered"
    assert "not to be relied on" in page.text
    assert "event 2 was altered" in print_text(render_summary(document))
    change_ledger(desk, "UPDATE backlog_recoveries SET plan = replace(plan, 'exact', 'short')")
    document, page = report(desk, recovery)
    assert not document["record"]["plan_holds"]


def list_triggers(desk: Workspace) -> list[tuple[str]]:
    import sqlite3

    path = desk.config.ledger_url().removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        return connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()


def test_falling_behind_begins_where_the_lag_was_last_small() -> None:
    lags = [900, 40, 55, 30, 800, 5_000, 10_000, 300]
    points = [(NOON + timedelta(minutes=n), lag) for n, lag in enumerate(lags)]
    assert find_rise(points) == (points[3][0], points[6][0], 10_000)
    assert find_rise(points[4:]) == (points[4][0], points[6][0], 10_000)
    assert find_rise([(NOON, 0)]) is None
    assert find_rise([]) is None


def test_what_is_not_there_has_no_report(desk: Workspace) -> None:
    with pytest.raises(UsageError, match="no such recovery"):
        make_report(desk, "r-20261121-9999")


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
    return create_recovery(desk.ledger, kind, plan=plan, stops_consumers=False).id


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


SECRET = "hunter2-of-the-shop"
HOSTILE = "<script>alert(1)</script>"


def test_the_page_needs_nothing_else_and_escapes_names(desk: Workspace) -> None:
    planned = store_plan(desk, warnings=[HOSTILE, f"`{HOSTILE}`"], other_groups=[HOSTILE])
    note(desk, planned.id, HOSTILE, message=HOSTILE)
    page = render_page(make_report(desk, planned.id))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 5
    for tag, attributes in Page(page).tags:
        assert tag not in ("script", "link", "iframe", "img", "object", "base", "form")
        for name in ("src", "href", "action"):
            assert (attributes.get(name) or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in page.replace("url(#", "")
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_secrets_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    url = "postgresql+psycopg://shop:${env:SHOP_PASSWORD}@db/shop"
    desk = open_desk(tmp_path, sources={"shop": {"url": url}})
    planned = store_expand_plan(desk, stopped=[f"processes `serve --password {SECRET}`"])
    note(desk, planned.id, "said", message=f"tried {SECRET}")
    document, page = report(desk, planned)
    assert SECRET not in json.dumps(document) + page.text
    assert "***" in page.text


def test_a_very_long_record_is_cut_in_the_middle(desk: Workspace) -> None:
    planned = store_plan(desk)
    for number in range(300):
        note(desk, planned.id, "said", message=f"note {number}")
    document, page = report(desk, planned)
    assert document["timeline"]["left_out"] == 61
    assert len(document["timeline"]["lines"]) == 240
    assert "61 lines are left out here" in page.text
    assert "note 299" in page.text


def test_thinning_keeps_both_ends() -> None:
    found = thin(range(5_000), 400)
    assert (found[0], found[-1], len(found)) == (0, 4_999, 400)
    assert thin(range(7), 400) == list(range(7))


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.html"
    target.write_text("before")

    def fail(self: Path, other: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fail)
        with pytest.raises(BacklogError, match="No space left"):
            write_whole(target, "after")
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]
    link = tmp_path / "link.html"
    link.symlink_to(target)
    write_whole(link, "after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    for wrong in (tmp_path, Path("/dev/null"), tmp_path / "none" / "report.html"):
        with pytest.raises(UsageError):
            write_whole(wrong, "x")


def test_the_verb(
    desk: Workspace, verb: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = "backlogctl.replay.runbooks.detection.describe_loss_ahead"
    monkeypatch.setattr(look, lambda *_, **__: "")  # no broker is here
    recovery = put_back(desk).id
    assert verb("report", recovery, "--html", "out.html").out.strip() == "wrote out.html"
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")
    assert verb("report", recovery, "--html", "-").out.startswith("<!doctype html>")
    assert "hash chain verified" in verb("report", recovery).out
    assert "it is a directory" in verb("report", recovery, "--html", ".", code=2).err
