"""Names, reasons and errors are printed as they are, in narrow and in wide terminals."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from backlog.numbers import format_plural
from backlog.values import Cause, Certainty, Gap, GapState, RecoveryState
from monitoring.status import PartitionStatus
from monitoring.summaries import summarize_group
from replay.cli import main
from replay.progress import Bar, spin
from replay.rendering import (
    draw_events,
    draw_gaps,
    draw_plan,
    draw_recoveries,
    draw_status,
    print_next,
    say_done,
)
from replay.views import describe_event, describe_gap, describe_recovery
from replay.workspace import Workspace
from tests.backlog.ledger.makers import NOON
from tests.replay.makers import make_plan, open_desk, store_approved, store_plan

ODD = "ann [/ops] [red] :smile:"


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    return open_desk(tmp_path)


def draw(*things: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    for thing in things:
        console.print(thing)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def make_gap(number: int = 1) -> Gap:
    return Gap(
        f"g-20261121-{number:04}",
        "orders",
        "main",
        "orders",
        ODD,
        "id",
        12,
        1_000_000,
        2_000_000,
        Cause.EXPIRED,
        Certainty.EXACT,
        GapState.OPEN,
        None,
        None,
        NOON,
    )


def test_foreign_text_is_not_markup(desk: Workspace) -> None:
    changes: dict[str, Any] = {"warnings": [ODD], "other_groups": [ODD], "deliver": "topic"}
    recovery = store_plan(desk, **changes)
    desk.ledger.events.append(recovery.id, ODD, ODD, {"message": ODD})
    document = describe_recovery(recovery)
    document["approved_by"] = document["approved_identity"] = ODD
    document["quarantine"] = {"reasons": {ODD: 2}}
    document["reasons"] = [ODD]
    events = [describe_event(event) for event in desk.ledger.events.list(recovery.id)]
    unseen = {"stream": ODD, "group": ODD, "verdict": "unknown", "error": {"message": ODD}}
    gaps = [{**describe_gap(make_gap()), "cause": ODD, "stream": name} for name in (ODD, "x")]
    row = {**document, "stream": ODD, "kind": ODD}
    for thing, times in (
        (draw_plan(document), 5),
        (draw_events(events), 3),
        (draw_status({"streams": [unseen]}), 3),
        (draw_gaps({"gaps": gaps}), 3),
        (draw_recoveries({"recoveries": [row, document]}), 2),
    ):
        # Cells may be wrapped: the words are counted, not the whole.
        assert draw(thing, width=300).count("[/ops]") >= times


def test_messages_of_verbs_are_not_markup(
    desk: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    recovery = store_plan(desk).id
    assert main(["approve", recovery, "--by", ODD]) == 0
    assert f"approved by {ODD} (" in capfd.readouterr().out
    assert main(["show", recovery]) == 0
    assert "[/ops]" in capfd.readouterr().out
    assert main(["show", "[/ops]"]) == 2
    assert "recovery [/ops]: there is no such recovery" in capfd.readouterr().err


def test_progress_texts_are_not_markup() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with spin(console) as tell:
        tell(ODD)
    bar = Bar(console, 10)
    bar.start()
    bar.tell(ODD)
    bar.stop()
    assert "[/ops]" in str(console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [80, 100])
def test_ids_and_numbers_are_whole(desk: Workspace, width: int) -> None:
    recovery = store_approved(desk)
    document = describe_recovery(recovery)
    document["created_at"] = "2026-11-21T12:00:00.000000Z"
    several = draw_gaps({"gaps": [describe_gap(make_gap(number)) for number in range(3)]})
    text = draw(several, draw_recoveries({"recoveries": [document]}), width=width)
    assert text.count("g-20261121-000") == 3
    assert text.count("1,000,000–1,999,999") == 3
    assert text.count("expired, exact") == 3
    assert recovery.id in text
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width


def test_bar_tells_rate_and_time_left_and_how_long_a_phase_takes() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    bar = Bar(console, 1_234_567)
    bar.start()
    bar.tell("injecting")
    bar.move(34_567, rate=4999.6, eta=245.0)
    bar.stop()
    text = str(console.file.getvalue())  # type: ignore[attr-defined]
    assert "34,567 of 1,234,567 5,000/s, 4 min 5 s left" in text
    bar = Bar(console, 1_234_567)
    bar.start()
    bar.tell("injecting")
    bar.move(34_567, rate=4999.6)
    bar.tell("reading back")
    bar.stop()
    last = str(console.file.getvalue()).rpartition("reading back")[2]  # type: ignore[attr-defined]
    assert "/s" not in last, "what is read back has no rate, only a time"
    assert " s" in last


def test_one_is_not_several(desk: Workspace) -> None:
    assert format_plural(1, "message") == "1 message"
    assert format_plural(12_000, "stream") == "12,000 streams"
    assert describe_recovery(store_plan(desk))["staging"] == "1 chunk, 1 byte"


def write(part: Callable[[Console], None]) -> str:
    console = Console(file=io.StringIO(), width=40)
    part(console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_commands_and_results_are_one_line() -> None:
    command = "backlogctl plan rebuild a-stream-with-a-long-name --allow surplus"
    assert write(lambda console: print_next(console, command)) == f"next: {command}\n"
    told = ": 5 messages are in a topic with a long name, each once"
    done = write(lambda console: say_done(console, "r-1", str(RecoveryState.VERIFIED), told))
    assert done == f"r-1 verified{told}\n"


def test_a_plan_says_what_its_rules_rebuilt_differently(desk: Workspace) -> None:
    outcome = make_plan()["outcome"]
    difference = {"identity": "'7'", "what": "value", "detail": "differs in [spacing] only"}
    proof = {**outcome["proof"], "rate": 0.5, "differences": [difference] * 3}
    drawn = draw(
        draw_plan(describe_recovery(store_plan(desk, outcome={**outcome, "proof": proof})))
    )
    assert drawn.count("'7': value differs in [spacing] only") == 2


def test_status_links_to_the_page() -> None:
    """Where people reach the page is said under each stream."""
    part = PartitionStatus(0, 0, 5, 9, 4, None, 0)
    status = summarize_group(
        [part],
        stream="orders",
        cluster="main",
        topic="orders",
        group="g",
        group_state="stable",
        taken_at=NOON,
        written=[True],
    ).to_json()
    page = "https://b.example/streams/orders"
    text = draw(draw_status({"streams": [{**status, "page": page}]}))
    assert "page: https://b.example/streams/orders" in text
    assert "orders: 4 behind" in text
