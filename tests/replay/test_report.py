"""The incident report: every state and kind, from ledgers filled by hand."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from backlog.errors import BacklogError, UsageError
from backlog.ledger.burndown import BurndownSample
from backlog.manifest import hash_value
from backlog.values import Chunk, GapState, PartitionSample, Recovery, RecoveryState, Sample
from replay.approval import approve_plan
from replay.cli import main
from replay.report.curves import thin
from replay.report.document import make_report
from replay.report.files import write_whole
from replay.report.page import render_page
from replay.report.summary import draw_summary
from replay.report.timeline import find_rise
from replay.workspace import Workspace
from tests.backlog.ledger.makers import NOON, make_gap
from tests.replay.expand_makers import store_expand_plan
from tests.replay.makers import change_ledger, make_plan, open_desk, store_approved, store_plan

S = RecoveryState
SECRET = "hunter2-of-the-shop"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    return open_desk(tmp_path)


class Page(HTMLParser):
    """The page as a browser would read it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def report(desk: Workspace, recovery: Recovery | str) -> tuple[dict[str, Any], Page]:
    name = recovery if isinstance(recovery, str) else recovery.id
    document = make_report(desk, name)
    json.dumps(document)
    return document, Page(render_page(document))


def lose(desk: Workspace) -> tuple[str, ...]:
    """Two gaps of five messages, detected."""
    ledger = desk.ledger
    return tuple(ledger.gaps.record(make_gap(100, 105, partition=number)).id for number in range(2))


def plan_lost(desk: Workspace, **changes: Any) -> Recovery:
    gaps = lose(desk)
    plan = make_plan(
        gaps=[{"id": gap, "partition": n, "start": 100, "end": 105} for n, gap in enumerate(gaps)],
        **changes,
    )
    return desk.ledger.recoveries.create(
        "rebuild", "orders", "main", "orders", "orders-service", plan, hash_value(plan), gaps, "ada"
    )


def put_back(desk: Workspace, **changes: Any) -> Recovery:
    """A rebuild that was carried out: two chunks of five, read back."""
    ledger = desk.ledger
    planned = plan_lost(desk, **changes)
    recovery = approve_plan(ledger, desk.config, planned, by="Grace").id
    chunks = [Chunk(n, 0, 5, 9, "ab", "messages/x", "ids/x") for n in range(2)]
    ledger.chunks.add_all(recovery, chunks)
    ledger.recoveries.advance(recovery, S.RUNNING, "os:root@vm", {"runner": "vm:1"})
    note(desk, recovery, "inject started")
    for number in range(2):
        ledger.chunks.mark_injected(recovery, number, 0, 900 + number, 904 + number)
    note(desk, recovery, "inject completed")
    for state in (GapState.STAGED, GapState.INJECTED, GapState.VERIFIED):
        ledger.gaps.advance(ledger.recoveries.gap_ids(recovery), state, recovery)
    found = {"exact": True, "staged": 10, "matched": 10, "ids": {"missing": ["secret-id"]}}
    found |= dict.fromkeys(("missing", "doubled", "different", "unexpected"), 0)
    note(desk, recovery, "read back", **found)
    return ledger.recoveries.advance(recovery, S.VERIFIED, "os:root@vm", {"verified": found})


def drain(desk: Workspace, **changes: Any) -> Recovery:
    """An expansion that was carried out."""
    ledger = desk.ledger
    planned = store_expand_plan(desk, **changes)
    recovery = approve_plan(ledger, desk.config, planned, by="Grace").id
    ledger.recoveries.advance(recovery, S.RUNNING, "os:root@vm", {"runner": "vm:1"})
    now = ledger.now()
    for second in range(5):
        left = 1_200_000 - 300_000 * second
        at = now + timedelta(seconds=second)
        ledger.burndown.add(
            BurndownSample(recovery, at, "drain", left // 2, left // 2, 0, 1_200_000 - left, 30)
        )
    verified = {"relayed": 1_200_007, "written": 1_200_007, "partitions": {"0": 400_007}}
    for step in ("stop_consumers", "drain", "restore", "verify"):
        note(desk, recovery, f"{step} started")
        ledger.steps.start(recovery, step)
        ledger.steps.complete(recovery, step, verified if step == "verify" else {})
        note(desk, recovery, f"{step} completed")
    counts = {"relayed": 1_200_007, "handled": 1_200_007, "drained_per_second": 1379.4}
    detail = {"verified": verified, "counts": counts}
    return ledger.recoveries.advance(recovery, S.VERIFIED, "os:root@vm", detail)


def print_text(part: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def note(desk: Workspace, recovery: str, action: str, **detail: Any) -> None:
    desk.ledger.events.append(recovery, "os:root@vm", action, detail)


def sample(desk: Workspace, seconds: float, lag: int) -> None:
    at = desk.ledger.now() + timedelta(seconds=seconds)
    part = PartitionSample(0, 0, 10_000 - lag, 10_000, 10_000)
    desk.ledger.samples.add(Sample("orders", "main", "orders", "service", "topic-id", at, (part,)))


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
        approve_plan(ledger, desk.config, planned, by="Grace")
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
    text = print_text(draw_summary(document))
    assert name in text
    assert "hash chain verified" in text


def test_consumers_that_stand_still_are_told(desk: Workspace) -> None:
    recovery = store_expand_plan(desk)
    approve_plan(desk.ledger, desk.config, recovery, by="Grace")
    desk.ledger.recoveries.advance(recovery.id, S.RUNNING, "op")
    desk.ledger.steps.start(recovery.id, "stop_consumers")
    desk.ledger.recoveries.advance(recovery.id, S.FAILED, "op", {"message": "no broker"})
    assert "consumers are stopped" in make_report(desk, recovery.id)["standing"]["sentence"]


def test_the_rest_of_a_short_plan_is_told(desk: Workspace) -> None:
    outcome = make_plan()["outcome"]
    outcome |= {"verdict": "short", "reasons": ["3 lost offsets have no rebuilt message: why"]}
    outcome["counts"] |= {"rebuilt": 7, "shortfall": 3, "quarantined": 1, "collapsed": 2}
    outcome["quarantine"] = {
        "reasons": {"its identity is NULL": 1},
        "sample": [{"primary_key": ["customer-17"], "reason": "x"}],
        "path": "/srv/quarantine",
    }
    outcome["proof"] |= {"differences": [{"identity": "customer-18", "detail": "is 1, 2 rebuilt"}]}
    document, page = report(desk, store_plan(desk, outcome=outcome))
    found = {item["name"]: item["value"] for item in document["unexplained"]["items"]}
    assert found == {"shortfall": 3, "quarantined": 1, "collapsed": 2}
    assert "3 lost offsets have no rebuilt message: why" in page.text
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


def test_figures_of_one_page_share_no_ids(desk: Workspace) -> None:
    sample(desk, -120, 10)
    sample(desk, -60, 5_000)
    _, page = report(desk, drain(desk))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert ids
    assert len(ids) == len(set(ids))


def test_secrets_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    url = "postgresql+psycopg://shop:${env:SHOP_PASSWORD}@db/shop"
    desk = open_desk(tmp_path, sources={"shop": {"url": url}})
    planned = store_expand_plan(desk, stopped=[f"processes `serve --password {SECRET}`"])
    note(desk, planned.id, "said", message=f"tried {SECRET}")
    document, page = report(desk, planned)
    assert SECRET not in json.dumps(document) + page.text
    assert "***" in page.text


def test_a_changed_record_is_shouted(desk: Workspace) -> None:
    recovery = put_back(desk).id
    for (trigger,) in list_triggers(desk):
        change_ledger(desk, f"DROP TRIGGER {trigger}")
    change_ledger(desk, "UPDATE backlog_events SET actor = 'eve' WHERE sequence = 2")
    document, page = report(desk, recovery)
    assert document["record"]["problem"] == "event 2 was altered"
    assert "not to be relied on" in page.text
    assert "event 2 was altered" in print_text(draw_summary(document))
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


def test_a_very_long_record_is_cut_in_the_middle(desk: Workspace) -> None:
    planned = store_plan(desk)
    for number in range(300):
        note(desk, planned.id, "said", message=f"note {number}")
    document, page = report(desk, planned)
    assert document["timeline"]["left_out"] == 61
    assert len(document["timeline"]["lines"]) == 240
    assert "61 lines are left out here" in page.text
    assert "note 299" in page.text


def test_falling_behind_begins_where_the_lag_was_last_small() -> None:
    lags = [900, 40, 55, 30, 800, 5_000, 10_000, 300]
    points = [(NOON + timedelta(minutes=n), lag) for n, lag in enumerate(lags)]
    assert find_rise(points) == (points[3][0], points[6][0], 10_000)
    assert find_rise(points[4:]) == (points[4][0], points[6][0], 10_000)
    assert find_rise([(NOON, 0)]) is None
    assert find_rise([]) is None


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
    desk: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    recovery = put_back(desk).id
    assert main(["report", recovery, "--html", "out.html"]) == 0
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")
    assert capfd.readouterr().out.strip() == "wrote out.html"
    assert main(["report", recovery, "--html", "-"]) == 0
    assert capfd.readouterr().out.startswith("<!doctype html>")
    assert main(["report", recovery]) == 0
    assert "hash chain verified" in capfd.readouterr().out
    assert main(["report", recovery, "--html", "."]) == 2
    assert "it is a directory" in capfd.readouterr().err


def test_what_is_not_there_has_no_report(desk: Workspace) -> None:
    with pytest.raises(UsageError, match="no such recovery"):
        make_report(desk, "r-20261121-9999")
