"""What a night audits, and what is told of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from backlogctl.config import load_config
from backlogctl.errors import BacklogError
from backlogctl.replay.audits import AUDITS
from backlogctl.replay.audits.audit import AuditFinding, AuditLevel, AuditOptions, AuditResult
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import name_origin
from backlogctl.replay.runbooks.descriptions import (
    NightAudit,
    describe_audit,
    describe_body,
    describe_end,
    describe_outcome,
    describe_subject,
    is_alarming,
    list_night_audits,
)
from backlogctl.values import Recovery, RecoveryState
from backlogctl_delivery.visible import escape_text
from tests.kit.recoveries import make_recovery
from tests.replay.runbooks.desks import bring, make_expand, make_rebuild, open_shop, store

_FILE = """
ledger: sqlite:///ledger.db
clusters: {main: {bootstrap.servers: "localhost:9092"}}
streams:
  orders: {cluster: main, topic: orders, group: g, audits: [consumed, sequence]}
  logs: {cluster: main, topic: logs, group: g}
  mails: {cluster: main, topic: mails, group: g, audits: [producers]}
"""


def test_audits_are_those_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "backlog.yaml"
    file.write_text(_FILE)
    config = load_config(file, {})
    orders = (NightAudit("orders", "consumed"), NightAudit("orders", "sequence"))
    mails = (NightAudit("mails", "producers"),)
    assert list_night_audits(config, None) == (*orders, *mails)
    assert list_night_audits(config, ["mails", "logs"]) == mails
    with pytest.raises(BacklogError, match="nobody"):
        list_night_audits(config, ["nobody"])
    file.write_text(_FILE.replace("sequence", "sequences"))
    with pytest.raises(BacklogError, match="sequence"):
        load_config(file, {})


def test_the_configuration_knows_every_audit(tmp_path: Path) -> None:
    file = tmp_path / "backlog.yaml"
    names = [one.name for one in AUDITS]
    file.write_text(_FILE.replace("[producers]", str(names)))
    assert [one.audit for one in list_night_audits(load_config(file, {}), ["mails"])] == names


@pytest.mark.parametrize(
    ("levels", "verdict", "alarms"),
    [
        ([], "clean", False),
        ([AuditLevel.NOTED], "clean", False),
        ([AuditLevel.UNKNOWN, AuditLevel.NOTED], "unknown", False),
        ([AuditLevel.SUSPECT, AuditLevel.UNKNOWN], "suspect", True),
        ([AuditLevel.UNKNOWN, AuditLevel.LOST], "lost", True),
    ],
)
def test_what_is_or_may_be_missing_is_an_event(
    levels: list[AuditLevel], verdict: str, alarms: bool
) -> None:
    findings = tuple(AuditFinding("hole", level, f"it is {level}", count=3) for level in levels)
    at = datetime(2026, 11, 24, tzinfo=UTC)
    found = AuditResult("sequence", "orders", "orders", AuditOptions(), at, 1.0, {}, findings, "")
    told = describe_audit(found)
    assert (told["verdict"], is_alarming(found.verdict)) == (verdict, alarms)
    assert told["missing"] == (3 if verdict == "lost" else 0)
    assert told["next"] == "backlogctl audit sequence orders"


def test_the_sentence_of_several_holes_says_how_much_is_lost_in_all() -> None:
    """It is all that the note of a night has of them."""
    holes = [
        AuditFinding("hole", AuditLevel.LOST, f"{count} messages never came", count=count)
        for count in (289, 300)
    ]
    noted = AuditFinding("put-back", AuditLevel.NOTED, "one was put back")
    at = datetime(2026, 11, 24, tzinfo=UTC)
    one, two = (
        AuditResult("sequence", "orders", "orders", AuditOptions(), at, 1.0, {}, (*some, noted), "")
        for some in (holes[:1], holes)
    )
    assert describe_audit(one)["sentence"] == "289 messages never came"
    told = "289 messages never came; and 1 more finding; 589 messages lost in all"
    assert describe_audit(two)["sentence"] == told


# A plan as Markdown: its figures, and no markup of somebody else's.

S = RecoveryState
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
TAGS = {"p", "strong", "code", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"}
EVIL = [
    "a|b`c`|d",
    "[click](http://evil.example)",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "![x](http://evil.example/x.png)",
    "x\n\n# heading\n\n- item\n\n| a | b |\n|---|---|\n| 1 | 2 |",
    "`` ` `` **bold** _em_ ~~gone~~ &lt;b&gt; \\",
    "https://evil.example www.evil.example me@evil.example",
    "- - 1. + > ---",
    "1) one",
    "[ref]: http://evil.example",
]
TEXTS = (
    st.sampled_from(EVIL) | st.text(max_size=40) | st.text("`|*_[]()<>#\\-+.1\n :/~&!", max_size=30)
)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return open_shop(tmp_path_factory.mktemp("told"))


def tell_rebuild(**changes: Any) -> Recovery:
    """A rebuild of fourteen ranges, in no ledger."""
    gaps = [
        {"id": f"g-{n}", "partition": n, "start": 1000, "end": 3500, "cause": "expired",
         "certainty": "exact"}
        for n in range(14)
    ]  # fmt: skip
    return make_recovery(make_rebuild(**{"gaps": gaps, **changes}))


def tell_expand(**changes: Any) -> Recovery:
    """An expansion, in no ledger."""
    return make_recovery(make_expand(**changes))


def show(text: str) -> str:
    """As a reader sees it: words only, blanks made one."""
    words = unescape(re.sub(r"<[^>]*>", " ", MARKDOWN.render(text)))
    return " ".join(words.replace("\u2060", "").split())


def list_tags(text: str) -> set[str]:
    return set(re.findall(r"</?([a-z0-9]+)", MARKDOWN.render(text)))


def count_items(text: str) -> int:
    return len(re.findall("<li>", MARKDOWN.render(text)))


def test_a_decision_fits_on_a_screen(desk: Workspace) -> None:
    """The buttons are below it: what is longer is on the page."""
    for recovery in (tell_rebuild(warnings=["x" * 80] * 9), tell_expand(warnings=["x" * 80] * 9)):
        body = describe_body(desk, recovery, page="http://airflow/recoveries/r-1")
        assert body.count("\n") < 30
        assert "and 5 more on the page" in body
        assert "[All figures and ranges](http://airflow/recoveries/r-1)" in body


def test_a_rebuild_is_told_with_its_figures(desk: Workspace, tmp_path: Path) -> None:
    counts = {"candidates": 17, "surviving": 4, "already_injected": 2, "quarantined": 1}
    recovery = tell_rebuild(
        outcome={"reasons": ["2 rows are quarantined"], "verdict": "short", "counts": counts},
        warnings=["other groups read this topic"],
        other_groups=["audit"],
    )
    braked = open_shop(
        tmp_path,
        off_peak={"from": "00:30", "to": "06:00", "timezone": "Asia/Shanghai"},
        limits={"messages_per_second": 2},
    )
    told = show(describe_body(braked, recovery))
    subject = describe_subject(desk, recovery)
    assert subject == "Put 10 messages back into orders (r-20261121-0001)"
    for part in (
        "Plan: short. Puts 10 messages back into topic orders; at most 10 were lost.",
        "2 rows are quarantined",
        "Proof 100 % of 4 survivors rebuilt as they are",
        "Put back 00:30–06:00 Asia/Shanghai, as many nights as needed, "
        "at most 2 messages/s: about 5 s of work",
        "Stops nothing: consumers go on, nothing is created or deleted, and messages are added at "
        "the topic's end, each once",
        "Other groups on the topic audit",
        "To know before other groups read this topic",
        "Note INC-4711",
        "Planned by os:planner at 2026-11-21 12:00:00Z",
        "Approved by: anybody who may answer here.",
        f"for plan {recovery.plan_hash[:12]} and no other",
    ):
        assert part in told, part
    at_once = show(describe_body(desk, tell_rebuild()))
    assert "Put back at any time, as fast as it goes" in at_once
    proof = {"matched": 0, "compared": 0, "equal_values": 0, "equal_headers": 0}
    unproved = show(describe_body(desk, tell_rebuild(outcome={"proof": proof})))
    assert "Proof nothing survives to compare with" in unproved


def test_an_expansion_is_told_with_what_it_stops_and_gives_back(desk: Workspace) -> None:
    recovery = tell_expand(origin=name_origin("recover_backlog", "run-1", "INC-1"))
    told = show(describe_body(desk, recovery))
    assert describe_subject(desk, recovery) == (
        "Drain 1,200,000 messages of orders with 30 consumers (r-20261121-0001)"
    )
    for part in (
        "Plan: before retention. Drains 1,200,000 messages of topic orders that group "
        "orders-service has not read.",
        "As it is drained in 11 h 6 min, by 3 consumers",
        "Expanded drained in 14 min, by 30 consumers: 46 times as fast",
        "Retention deletes the oldest unread message in 10 h 15 min (by time)",
        "Stops the consumers of group service",
        "Creates topic orders.recovery.r-20261121-0001: 30 partitions",
        "deletes nothing",
        "Raises retention.ms of orders from 1 d to unlimited",
        "Gives back topic orders.recovery.r-20261121-0001 is deleted",
        "Other groups on the topic audit",
        "Note INC-1",
    ):
        assert part in told, part
    never = tell_expand(
        seconds_to_drain_now=None, seconds_to_loss=None, loss_by=None, wins=None,
        hold={"needed": False}, stopped=["the consumers, by people"], raised=[],
        disk={"needed": 1, "usable": 2, "enough": True, "told": ""}, origin=None,
    )  # fmt: skip
    told = show(describe_body(desk, never))
    for part in (
        "never drained, by 3 consumers",
        "Retention deletes nothing in sight",
        "Stops the consumers, by people",
    ):
        assert part in told, part
    assert "Raises" not in told
    assert "Note" not in told


@pytest.mark.parametrize(
    ("approval", "who"),
    [
        ("named", "anybody who may answer here"),
        ("second_person", "another person than the one who asked for it"),
        ("auto", "a person, because such a plan is not approved by itself"),
    ],
)
def test_who_may_answer_is_said(tmp_path: Path, approval: str, who: str) -> None:
    desk = open_shop(tmp_path, approval=approval)
    for recovery in (tell_rebuild(approval=approval), tell_expand(approval=approval)):
        assert f"Approved by: {who}." in show(describe_body(desk, recovery))


def tell(kind: str, text: str) -> Recovery:
    """A plan in which all that others wrote is this text."""
    said = {
        "origin": name_origin("recover_backlog", "run-1", text or "x"),
        "other_groups": [text],
        "warnings": [text],
        "topic": text,
        "group": text,
    }
    if kind == "rebuild":
        return tell_rebuild(**said, outcome={"reasons": [text]})
    return tell_expand(**said, stopped=[text])


@pytest.mark.parametrize("kind", ["rebuild", "expand"])
@given(text=TEXTS)
def test_names_and_notes_are_text(desk: Workspace, kind: str, text: str) -> None:
    body, plain = (describe_body(desk, tell(kind, said)) for said in (text, "x"))
    html = MARKDOWN.render(body)
    assert list_tags(body) <= TAGS
    assert "href" not in html
    assert "://" not in re.sub(r"<code>.*?</code>", "", html)
    assert count_items(body) == count_items(plain)
    told = re.sub(r"\s*\u2060", "", unescape(re.sub(r"<[^>]*>", "", html)))
    # What stands between two backticks is code.
    assert escape_text(" ".join(text.split())).replace("`", "") in told.replace("`", "")


def test_no_address_becomes_a_link_by_itself(desk: Workspace) -> None:
    text = "HTTPS://evil.example http://evil.example WWW.evil.example me@evil.example"
    origin = name_origin("recover_backlog", "run-1", text)
    body = describe_body(desk, tell_rebuild(warnings=[text], origin=origin))
    # What GitHub's Markdown looks for in text, escaped or not.
    assert not re.search(r"(?i)https?://|www\.|[\w.+-]@[\w-]", body)
    assert "evil.example" in body


def test_the_page_is_linked_where_it_has_an_address(desk: Workspace) -> None:
    assert "](" not in describe_body(desk, tell_rebuild())
    own = describe_body(desk, tell_rebuild(), page="/plugin/backlogctl")
    assert "[All figures and ranges](/plugin/backlogctl)" in own
    watched = desk.config.watch.model_copy(update={"url": "https://backlog.example/"})
    config = desk.config.model_copy(update={"watch": watched})
    told = describe_body(replace(desk, config=config), tell_rebuild())
    assert "(https://backlog.example/recoveries/r-20261121-0001)" in told


def test_what_came_of_it_is_plain_data(desk: Workspace) -> None:
    failed = bring(
        desk, store(desk), S.APPROVED, S.RUNNING, S.FAILED,
        code="kafka", message="no broker", subject="x", next="run",
    )  # fmt: skip
    told = describe_outcome(desk, failed)
    json.dumps(told)
    assert told["state"] == "failed"
    assert told["counts"] == {"planned": 10, "put_back": 0}
    assert told["detail"] == {"code": "kafka", "message": "no broker"}
    assert told["approved_by"] == "Grace"
    drained = describe_outcome(desk, tell_expand())
    assert (drained["counts"], drained["approval_expires_at"]) == (None, None)


@pytest.mark.parametrize(
    ("states", "detail", "told", "is_done"),
    [
        ((S.APPROVED, S.RUNNING, S.VERIFIED), {}, "is verified", True),
        ((S.REJECTED,), {"by": "ada", "reason": "no"}, "was rejected by ada; nothing was", True),
        ((S.REJECTED,), {"by": "nobody", "reason": "nobody answered in time"},
         "nobody answered in time; nothing was changed", False),
        ((S.REJECTED,), {"superseded_by": "r-9"}, "was superseded: r-9 took its place", False),
        ((S.APPROVED, S.CANCELLED), {}, "was cancelled", True),
        ((), {}, "waits for an approval: `backlogctl approve", False),
        ((S.APPROVED,), {}, "is not at an end: approved, approved by Grace", False),
        ((S.APPROVED, S.RUNNING, S.FAILED), {"code": "kafka"}, "is not at an end: failed", False),
    ],
)  # fmt: skip
def test_each_end_has_its_words(
    tmp_path: Path, states: tuple[S, ...], detail: dict[str, str], told: str, is_done: bool
) -> None:
    desk = open_shop(tmp_path)
    end = describe_end(desk, bring(desk, store(desk), *states, **detail))
    assert told in end.sentence
    assert end.is_done is is_done
