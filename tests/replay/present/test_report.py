"""The incident report: every state and kind, from ledgers filled by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from backlogctl.errors import UsageError
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.present.report import make_report
from backlogctl.replay.present.report_page import render_summary
from backlogctl.replay.present.timeline import find_rise
from backlogctl.values import RecoveryState
from tests.kernel.ledger.makers import NOON
from tests.replay.expand_makers import store_expand_plan
from tests.replay.makers import change_ledger, store_approved, store_plan
from tests.replay.report_makers import drain, plan_lost, print_text, put_back, report, sample

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
        S.REJECTED: f"backlogctl plan {kind} orders",
        S.CANCELLED: f"backlogctl plan {kind} orders",
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
