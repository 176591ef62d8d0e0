"""Outboxes and look-back on the overview; plans and kinds that cannot be read."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backlogctl.monitoring.metrics.ledger import LedgerReader
from backlogctl.replay.cli import main
from backlogctl.replay.web.deliveries import DeliveryLook
from backlogctl.replay.web.page.delivery_rows import DeliveryRow, list_rows
from backlogctl.values import RecoveryState
from tests.kit.recoveries import make_expand_plan, make_rebuild_plan
from tests.replay.conftest import Verb
from tests.replay.web.page.night import SECRET, Night, make_stream
from tests.replay.web.page.story import tell_night
from tests.replay.web.page.visits import (
    SEEN,
    describe_deliveries,
    make_look_back,
    make_outbox,
    read,
    serve,
    strip,
)


@pytest.fixture
def delivering(tmp_path: Path) -> Iterator[Night]:
    """Outboxes and look-back are configured, and nobody has looked at them."""
    begun = Night.begin(
        tmp_path, streams={"orders": make_stream("orders")}, **describe_deliveries()
    )
    yield begun
    begun.ledger.close()


def tell(night: Night, look: DeliveryLook) -> DeliveryRow:
    (row,) = list_rows(night.config, (look,))
    return row


@pytest.mark.parametrize(
    ("figures", "standing", "sentence", "commands"),
    [
        ((0, 0, 0, None, None), "ok", "All that was committed is sent.", ()),
        ((1, 0, 0, 600.0, 600.0), "ok", "1 message is about to be sent.", ()),
        (
            *((2, 1, 0, 601.0, 601.0), "late"),
            "3 messages wait to be sent, the oldest for 10 min: does `backlogctl outbox run` run, "
            "and does Kafka answer?",
            ("backlogctl outbox list --outbox shop",),
        ),
        (
            *((0, 0, 1, 9_000.0, None), "parked"),
            "1 message is parked. It holds up later ones of the same key.",
            ("backlogctl outbox list --outbox shop --state parked",),
        ),
        (
            *((1, 0, 2, 9_000.0, 60.0), "parked"),
            "2 messages are parked. They hold up later ones of the same key. 1 other waits, the "
            "oldest for 1 min.",
            ("backlogctl outbox list --outbox shop --state parked",),
        ),
    ],
)
def test_an_outbox_says_how_it_stands(
    delivering: Night,
    figures: tuple[float, ...],
    standing: str,
    sentence: str,
    commands: tuple[str, ...],
) -> None:
    row = tell(delivering, make_outbox("shop", *figures))
    assert (row.standing, row.sentence, row.commands) == (standing, sentence, commands)


@pytest.mark.parametrize(
    ("ages", "standing", "sentence", "command"),
    [
        ({}, "ok", "No transaction is open; what was committed is sent.", ""),
        (
            {"prepared": (2, 5.0), "committed": (1, 5.0), "forwarding": (1, 2.0)},
            *("ok", "3 messages wait for a transaction to end. 1 message is about to be sent.", ""),
        ),
        (
            {"prepared": (1, 3_600.0), "forwarding": (4, 700.0)},
            "late",
            "1 message waits for a decision, the oldest for 1 h: does `backlogctl lookback run` "
            "run, and do the services answer?",
            "backlogctl lookback list --state prepared",
        ),
        (
            {"prepared": (1, 5.0), "forwarding": (4, 700.0)},
            "late",
            "4 messages that were committed wait to be sent, the oldest for 11 min: does "
            "`backlogctl lookback run` run, and does Kafka answer?",
            "backlogctl lookback list --state forwarding",
        ),
        (
            {"committed": (1, 700.0)},
            "late",
            "1 message waits for the prepared message, the oldest for 11 min: its decision has "
            "come, and it has not.",
            "backlogctl lookback list --state committed",
        ),
        (
            {"parked": (1, 90.0), "prepared": (2, 9_000.0)},
            "parked",
            "1 message is parked. Nobody asks about it, and nothing is sent, until somebody "
            "resumes. 2 others wait.",
            "backlogctl lookback list --state parked",
        ),
    ],
)
def test_look_back_says_how_it_stands(
    delivering: Night,
    ages: dict[str, tuple[int, float]],
    standing: str,
    sentence: str,
    command: str,
) -> None:
    row = tell(delivering, make_look_back(**ages))
    assert (row.standing, row.sentence) == (standing, sentence)
    assert row.commands == ((command,) if command else ())


def test_they_stand_worst_first_and_what_is_unknown_is_no_zero(tmp_path: Path) -> None:
    night = tell_night(tmp_path, lean=True)
    page = read(night, "/")
    section = page[page.index('<section id="delivery">') : page.index("</section>")]
    rows = re.findall(r'<td class="key">([\w-]+)<span', section)
    assert rows == ["billing", "stock", "crm", "shop", "look-back"]
    words = strip(section)
    assert "Unknown: the database cannot be reached: nothing listens at crm" in words
    assert "unknown unknown unknown" in words
    assert "backlogctl outbox list --outbox billing --state parked" in words
    assert "2 records of its topic did not fit" in words
    night.ledger.close()


def test_before_the_first_look_it_is_unknown_without_an_error(delivering: Night) -> None:
    delivering.deliveries = (DeliveryLook("shop"),)
    assert "Unknown: not looked at yet" in strip(read(delivering, "/"))
    assert "outbox status" not in read(delivering, "/")


def test_where_none_is_configured_there_is_no_section(quiet: Night) -> None:
    assert "Delivery" not in read(quiet, "/")


def test_what_a_database_says_is_escaped_and_masked(delivering: Night) -> None:
    problem = f"<script>alert(1)</script> \u202e {SECRET}"
    delivering.deliveries = (DeliveryLook("shop", None, problem, SEEN),)
    page = read(delivering, "/")
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert SECRET not in page


S = RecoveryState
UNKNOWN = "this program does not know the kind mystery"
MODELS = {"rebuild": make_rebuild_plan().dump(), "expand": make_expand_plan().dump()}
WHY = {
    "version 99": "it has version 99, and this program knows 1",
    "no group": "group is required",
    "nothing": "is required",
}
CASES = [(kind, what) for kind in MODELS for what in WHY]


def make_unread(kind: str, what: str) -> dict[str, Any]:
    """A plan of that kind that cannot be read."""
    plan = MODELS[kind]
    if what == "version 99":
        return {**plan, "version": 99}
    if what == "nothing":
        return {"warnings": ["beware"], "outcome": None}
    return {name: value for name, value in plan.items() if name != "group"}


def bring_to(night: Night, kind: str, plan: dict[str, Any], state: S) -> str:
    """A recovery in that state; its id."""
    recovery = night.keep(kind, plan)
    if state is not S.PLANNED:
        night.approve(recovery)
    if state not in (S.PLANNED, S.APPROVED):
        night.advance(recovery, S.RUNNING)
        night.ledger.steps.start(recovery.id, "relay")
    if state not in (S.PLANNED, S.APPROVED, S.RUNNING):
        night.advance(recovery, state, message="no broker answered")
    return recovery.id


STATES = (S.PLANNED, S.APPROVED, S.RUNNING, S.PAUSED, S.CANCELLED)


@pytest.mark.parametrize(
    ("kind", "what", "state"),
    [
        *((kind, what, S.FAILED) for kind, what in CASES),
        *(("rebuild", "version 99", state) for state in STATES),
        *(("expand", "nothing", state) for state in STATES),
        *(("mystery", "nothing", state) for state in (*STATES, S.FAILED)),
    ],
)
def test_the_page_shows_what_is_known_and_why_the_rest_is_not(
    quiet: Night, kind: str, what: str, state: S
) -> None:
    plan = make_unread(kind, what) if kind in MODELS else {"future": 1}
    found = bring_to(quiet, kind, plan, state)
    words = html.unescape(strip(read(quiet, f"/recoveries/{found}")))
    assert (UNKNOWN if kind == "mystery" else WHY[what]) in words
    assert "use the version" in words
    assert f"{kind} orders" in words
    assert "Record" in words
    if state is S.FAILED:
        assert "no broker answered" in words
        assert "relay" in words
    assert f"backlogctl run {found}" not in words, "it would be refused"
    for path in ("/", "/streams/orders"):
        page = strip(read(quiet, path))
        if state is not S.CANCELLED or path != "/":
            assert found in page
            assert kind in page


@pytest.fixture
def beside(quiet: Night, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """The night with its configuration in the working directory, for the command."""
    document = {
        "ledger": "sqlite:///ledger.db",
        "clusters": {"main": {"bootstrap.servers": "127.0.0.1:1"}},
        "sources": {"shop": {"url": "sqlite:///shop.db"}},
        "streams": {"orders": make_stream("orders")},
    }
    (tmp_path / "backlog.yaml").write_text(json.dumps(document))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BACKLOG_CONFIG", raising=False)
    return quiet


@pytest.mark.parametrize(("kind", "what"), CASES)
def test_show_and_recoveries_say_why_a_plan_cannot_be_read(
    beside: Night, verb: Verb, kind: str, what: str
) -> None:
    plan = make_unread(kind, what)
    found = bring_to(beside, kind, plan, S.FAILED)
    for arguments in (["show", found], ["show", found, "--watch"]):
        told = " ".join(verb(*arguments).out.split())
        assert found in told
        assert "failed" in told
        assert "relay" in told
    told = " ".join(verb("show", found).out.replace("│", "").split())
    assert WHY[what] in told
    assert "use the version that planned it" in told
    told = verb("recoveries").out
    assert found in told
    assert "unknown" in told
    document = verb("show", found, "--json").document
    assert WHY[what] in document["problem"]
    assert document["plan"] == plan
    contract = {"id", "kind", "stream", "state", "plan_hash", "verdict", "counts", "partitions"}
    assert contract | {"warnings"} <= set(document)


def test_an_unknown_kind_is_listed_and_refused_by_name(
    beside: Night, capfd: pytest.CaptureFixture[str]
) -> None:
    found = bring_to(beside, "mystery", {"future": 1}, S.PAUSED)
    for arguments in (["show", found], ["show", found, "--watch"], ["report", found]):
        assert main(arguments) != 0
        said = capfd.readouterr()
        assert f"recovery {found}: {UNKNOWN}" in " ".join(said.err.split())
        assert "Traceback" not in said.err + said.out
    assert main(["recoveries", "--json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)["recoveries"]
    assert (row["id"], row["kind"], row["verdict"]) == (found, "mystery", "unknown")
    assert UNKNOWN in row["problem"]


@pytest.mark.parametrize("kind", ["rebuild", "expand", "mystery"])
def test_metrics_and_pages_of_others_go_on(quiet: Night, kind: str) -> None:
    gap = quiet.lose("orders", 0, 5, 9)
    found = quiet.keep(kind, {"version": 99}, gaps=[gap])
    quiet.approve(found)
    quiet.advance(found, S.RUNNING)
    other = quiet.plan(make_rebuild_plan(stream="other", topic="other"))
    families = LedgerReader(quiet.ledger).collect()
    told = {
        sample.labels["recovery"]: sample.labels
        for family in families
        if family.name == "backlog_recovery_state"
        for sample in family.samples
    }
    assert set(told) == {found.id, other.id}
    assert (told[found.id]["kind"], told[found.id]["state"]) == (kind, "running")
    assert serve(quiet).get(f"/recoveries/{other.id}").status_code == 200
