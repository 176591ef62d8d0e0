"""A plan as Markdown: its figures, and no markup of somebody else's."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from backlog.values import Recovery, RecoveryState
from replay.runbooks.describing import describe_body, describe_outcome, describe_subject
from replay.workspace import Workspace
from tests.replay.expand_makers import make_expand_plan
from tests.replay.runbooks.desks import bring, make_rebuild_plan, open_shop, store

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


def make(kind: str, plan: dict[str, Any], **changes: Any) -> Recovery:
    """A recovery that is in no ledger."""
    recovery = Recovery(
        "r-20261121-0001", kind, "orders", "main", "orders", "orders-service",
        S.PLANNED, "abcdef0123456789", plan, None,  # type: ignore[arg-type]
    )  # fmt: skip
    return replace(recovery, **changes)


def make_rebuild(**changes: Any) -> Recovery:
    gaps = [
        {"id": f"g-{n}", "partition": n, "start": 1000, "end": 3500, "cause": "expired",
         "certainty": "exact"}
        for n in range(14)
    ]  # fmt: skip
    return make("rebuild", make_rebuild_plan(**{"gaps": gaps, **changes}))


def make_expand(**changes: Any) -> Recovery:
    return make("expand", make_expand_plan(**changes))


def show(text: str) -> str:
    """As a reader sees it: words only, blanks made one."""
    words = unescape(re.sub(r"<[^>]*>", " ", MARKDOWN.render(text)))
    return " ".join(words.replace("\u2060", "").split())


def list_tags(text: str) -> set[str]:
    return set(re.findall(r"</?([a-z0-9]+)", MARKDOWN.render(text)))


def count_rows(text: str) -> int:
    return len(re.findall("<tr>", MARKDOWN.render(text)))


def test_a_rebuild_is_told_with_its_figures(desk: Workspace) -> None:
    plan = make_rebuild_plan()
    plan["outcome"] |= {"reasons": ["2 rows are quarantined"], "verdict": "short"}
    recovery = make_rebuild(
        outcome=plan["outcome"],
        warnings=["other groups read this topic"],
        other_groups=["audit"],
        off_peak={"from": "00:30", "to": "06:00", "timezone": "Asia/Shanghai"},
        limits={"messages_per_second": 2},
    )
    told = show(describe_body(recovery, desk.config))
    assert describe_subject(recovery) == "Put 10 messages back into orders (r-20261121-0001)"
    for part in (
        "short : 10 messages rebuilt for at most 10 lost offsets of topic orders",
        "2 rows are quarantined",
        "already injected 0",
        "0 1,000–3,499 2,500 expired, exact",
        "and 2 more",
        "4 of 4 surviving messages",
        "1 chunk, 1 B",
        "00:30 to 06:00 Asia/Shanghai, as many nights as needed, at most 2/s: about 5 s of work",
        "Other groups on the topic: audit",
        "Note: INC-4711",
        "Planned by os:planner at 2026-11-21 12:00:00Z",
        "for plan abcdef012345 and no other",
    ):
        assert part in told, part
    at_once = show(describe_body(make_rebuild(), desk.config))
    assert "When: at once." in at_once
    plan["outcome"]["proof"] |= {"rate": None, "matched": 0, "compared": 0}
    unproved = describe_body(make_rebuild(outcome=plan["outcome"]), desk.config)
    assert "Proof" not in unproved


def test_an_expansion_is_told_with_what_it_stops_and_gives_back(desk: Workspace) -> None:
    recovery = make_expand(origin={"note": "INC-1"})
    told = show(describe_body(recovery, desk.config))
    assert describe_subject(recovery) == (
        "Drain 1,200,000 messages of orders with 30 consumers (r-20261121-0001)"
    )
    for part in (
        "1,200,000 messages of topic orders unread by group orders-service",
        "as it is in 11 h 6 min, by 3 consumers",
        "expanded in 14 min, by 30 consumers",
        "loss in 10 h 15 min",
        "Stopped the consumers of group service",
        "deletes nothing",
        "Raised retention.ms of orders from 1 d to unlimited",
        "Given back",
        "Note: INC-1",
    ):
        assert part in told, part
    never = make_expand(
        seconds_to_drain_now=None, seconds_to_loss=None, stopped="by people", raised=[],
        disk={"needed": 1, "usable": 2, "enough": True, "told": ""}, origin=None,
    )  # fmt: skip
    told = show(describe_body(never, desk.config))
    for part in ("never, by 3 consumers", "no loss in sight", "room enough", "Stopped by people"):
        assert part in told, part
    assert "Raised" not in told
    assert "Note" not in told


@pytest.mark.parametrize("kind", ["rebuild", "expand"])
@given(text=TEXTS)
def test_names_and_notes_are_text(desk: Workspace, kind: str, text: str) -> None:
    origin = {"note": text}
    if kind == "rebuild":
        outcome = {**make_rebuild_plan()["outcome"], "reasons": [text]}
        told = {"outcome": outcome, "origin": origin, "other_groups": [text]}
        recovery = make_rebuild(**told, warnings=[text])
    else:
        disk = {"needed": 1, "usable": 2, "enough": True, "told": text}
        recovery = make_expand(
            disk=disk, stopped=[text], origin=origin, other_groups=[text], warnings=[text],
        )  # fmt: skip
    recovery = replace(recovery, topic=text, group=text)
    body = describe_body(recovery, desk.config)
    html = MARKDOWN.render(body)
    assert list_tags(body) <= TAGS
    assert "href" not in html
    assert "://" not in re.sub(r"<code>.*?</code>", "", html)
    plain = make_rebuild(other_groups=["x"]) if kind == "rebuild" else make_expand()
    assert count_rows(body) == count_rows(describe_body(plain, desk.config))
    if "\0" not in text and (wanted := " ".join(text.split())):
        assert wanted in re.sub(r"\s*\u2060", "", unescape(re.sub(r"<[^>]*>", "", html)))


def test_a_name_stays_within_its_cell(desk: Workspace) -> None:
    disk = {"needed": 1, "usable": 2, "enough": True, "told": "a|b \\| c"}
    html = MARKDOWN.render(describe_body(make_expand(disk=disk), desk.config))
    assert "<td>a|b \\| c</td>" in html


def test_no_address_becomes_a_link_by_itself(desk: Workspace) -> None:
    text = "HTTPS://evil.example http://evil.example WWW.evil.example me@evil.example"
    body = describe_body(make_rebuild(warnings=[text], origin={"note": text}), desk.config)
    # What GitHub's Markdown looks for in text, escaped or not.
    assert not re.search(r"(?i)https?://|www\.|[\w.+-]@[\w-]", body)
    assert "evil.example" in body


def test_the_page_is_linked_where_it_has_an_address(desk: Workspace, tmp_path: Path) -> None:
    assert "](" not in describe_body(make_rebuild(), desk.config)
    own = describe_body(make_rebuild(), desk.config, page="/plugin/backlogctl")
    assert own.endswith("[The recovery's page](/plugin/backlogctl)")
    watched = desk.config.watch.model_copy(update={"url": "https://backlog.example/"})
    config = desk.config.model_copy(update={"watch": watched})
    assert describe_body(make_rebuild(), config).endswith(
        "(https://backlog.example/recoveries/r-20261121-0001)"
    )


def test_what_came_of_it_is_plain_data(desk: Workspace) -> None:
    failed = bring(
        desk, store(desk), S.APPROVED, S.RUNNING, S.FAILED,
        code="kafka", message="no broker", subject="x", next="run",
    )  # fmt: skip
    told = describe_outcome(failed)
    json.dumps(told)
    assert told["state"] == "failed"
    assert told["counts"] == {"planned": 10, "put_back": 0}
    assert told["detail"] == {"code": "kafka", "message": "no broker"}
    assert told["approved_by"] == "Grace"
    drained = describe_outcome(make_expand())
    assert (drained["counts"], drained["approval_expires_at"]) == (None, None)
