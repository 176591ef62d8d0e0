"""What the verbs draw, at 40, 80 and 200 columns: nothing of what a document says is cut."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

from backlogctl.clock import format_time
from backlogctl.formats import format_count, format_duration
from backlogctl.replay.cli import app
from backlogctl.replay.cli.shared import show
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.values import Telling
from backlogctl.replay.present.layout import WholeConsole
from backlogctl.replay.present.progress import describe_progress
from backlogctl.replay.present.report import make_report
from backlogctl.replay.present.report_page import render_summary
from backlogctl.replay.present.status import describe_gap, describe_recovery_plan
from backlogctl.replay.present.tables import render_examinations, render_groups
from backlogctl.replay.present.terminal import (
    render_events,
    render_gaps,
    render_next,
    render_plan,
    render_progress,
    render_recoveries,
    render_recovery_status,
    render_status,
)
from backlogctl.values import Cause, Certainty, Gap, GapState, LedgerEvent, Recovery
from tests.kit.ledger import NOON
from tests.kit.recoveries import (
    make_burndown,
    make_step,
    open_desk,
    put_back,
    store_expand_plan,
    store_plan,
)
from tests.kit.shop import call_main
from tests.replay.present.test_layout import draw

WIDTHS = (40, 80, 200)
_FRAME = re.compile(r"[│╭╮╰╯─]")
LONG = "payments-of-the-eastern-region.settlements-and-refunds.v2"


def check_whole(drawn: str, told: Sequence[str], width: int) -> None:
    """Every word of every text stands in it whole; what backticks hold is on one line."""
    assert "…" not in drawn
    lines = drawn.splitlines()
    words = set(_FRAME.sub(" ", drawn).split())
    words |= {word.rstrip(":,") for word in words}
    for text in told:
        for command in re.findall(r"`[^`]+`", text):
            assert any(command in line for line in lines), command
        missing = set(text.split()) - words
        assert not missing, text
    for line in lines:
        if line.startswith("next: "):
            continue
        parts = re.sub(r"`[^`]*`", "x" * 200, line).split()
        assert len(line.rstrip()) <= width or max(map(len, parts)) > width - 20, line


def list_texts(told: Telling) -> Iterator[str]:
    """All that a plan says in a terminal."""
    yield told.summary
    yield from told.reasons
    yield from told.warnings
    yield from told.other_groups
    for count in told.own_counts:
        yield from (str(count), count.words)
    for fact in told.facts:
        yield from (fact.name, fact.text)
    for action in told.actions:
        yield from (action.verb, *action.sentences)
    table = told.tables[0]
    for number, name in enumerate(table.columns):
        cells = [row.cells[number] for row in table.rows]
        # A list names what it has.
        yield from (*([name] if any(cells) else []), *cells)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("store", [store_plan, store_expand_plan])
def test_a_stored_plan(tmp_path: Path, store: Callable[[Workspace], Recovery], width: int) -> None:
    desk = open_desk(tmp_path)
    recovery = store(desk)
    told = describe_recovery_plan(desk, recovery)
    drawn = draw(render_plan(recovery, told), width)
    check_whole(drawn, [*list_texts(told), recovery.id, recovery.plan_hash], width)
    if width == 80:
        assert "╭" in drawn
        assert all(len(line) == 80 for line in drawn.splitlines()), "the frame is whole"


def make_part(number: int) -> dict[str, Any]:
    return {
        "partition": number,
        "log_start": 1_234_567_890,
        "committed": None if number == 2 else 1_234_600_000,
        "end": 9_876_543_210,
        "lag": None if number == 2 else 8_641_943_210,
        "lag_seconds": 4_210.0,
        "lost": 12_345,
        "seconds_to_drain": 48_000.0,
        "seconds_to_loss": 3_720.0,
        "seconds_retained": 90_000.0,
        "verdict": "losing",
    }


def make_status() -> dict[str, Any]:
    member = {
        "client_id": "order-service-7d9c5b6f4-x2x9k",
        "instance": "order-service-0",
        "host": "ip-10-12-144-201.eu-central-1.compute.internal",
        "partitions": list(range(12)),
        "other_topics": [LONG],
        "last_commit": format_time(NOON),
    }
    command = "`kafka-consumer-groups.sh --bootstrap-server HOST:PORT --group g --to-latest`"
    return {
        "stream": LONG,
        "group": "billing-and-invoices",
        "verdict": "losing",
        "sentence": f"{LONG}/0: retention deletes unread messages in 1 h 2 min",
        "partitions": [make_part(number) for number in range(3)],
        "members": {
            "error": None,
            "members": [member],
            "unassigned": [13],
            "rebalancing_samples": 2,
            "samples": 20,
        },
        "warnings": [f"hold h-20261121-0001 on {LONG} is not in force"],
        "ways": [f"the offset was set wrong; set it with {command}"],
        "next_commands": [f"backlogctl hold {LONG} --for 6h"],
        "page": f"https://backlog.example.com/streams/{LONG}",
    }


@pytest.mark.parametrize("width", WIDTHS)
def test_status(width: int) -> None:
    stream = make_status()
    drawn = draw(render_status({"streams": [stream]}), width)
    parts = [
        text
        for part in stream["partitions"]
        for text in (
            f"{part['log_start']:,}",
            f"{part['end']:,}",
            format_count(part["lag"]),
            *(format_duration(part[name]) for name in part if name.startswith("seconds")),
        )
    ]
    (member,) = stream["members"]["members"]
    told = [stream["sentence"], *stream["warnings"], *stream["ways"], stream["page"], *parts]
    told += [member["client_id"], member["host"], "(static order-service-0)", LONG]
    check_whole(drawn, told, width)
    assert f"next: {stream['next_commands'][0]}" in drawn.splitlines()
    # A figure and its unit are not parted.
    assert drawn.count("1 h 2 min") == 4


@pytest.mark.parametrize("width", WIDTHS)
def test_lists(width: int) -> None:
    """Gaps, recoveries, a record, groups: ids, offsets and causes."""
    gaps = [
        Gap(
            *(f"g-20261121-{number:04}", LONG, "main", LONG, "service", "id", 120),
            *(9_000_000_000, 9_876_543_211, Cause.EXPIRED, Certainty.BOUNDED),
            *(GapState.INJECTED, None, None, NOON),
        )
        for number in range(3)
    ]
    told = ["9,000,000,000–9,876,543,210", "expired,", "injected", *(gap.id for gap in gaps)]
    check_whole(draw(render_gaps({"gaps": list(map(describe_gap, gaps))}), width), told, width)

    row = {
        "id": "r-20261121-0001",
        "kind": "rebuild",
        "stream": LONG,
        "state": "cancelled",
        "verdict": "covering",
        "size": 123_456,
        "injected": 123_400,
        "injects": True,
        "created_at": format_time(NOON),
    }
    rows = {"recoveries": [row, {**row, "kind": "expand"}]}
    told = ["r-20261121-0001", LONG, "cancelled", "123,456", "123,400", "11-21 12:00Z"]
    check_whole(draw(render_recoveries(rows), width), told, width)

    message = f"could not read {LONG}: no broker answered"
    detail = {"message": message, "at": 12}
    event = LedgerEvent("r-20261121-0001", 0, NOON, "os:ada@ops-1", "failed", detail, "", "")
    told = ["11-21 12:00:00Z", "os:ada@ops-1", "failed", message]
    check_whole(draw(render_events([event]), width), told, width)

    topic = {"topic": LONG, "partitions": 120, "lag": 123_456, "stream": None}
    group = {"group": "two\nlines", "members": None, "topics": [topic], "why_not": None}
    share = {"group": "sharing", "why_not": "it is a share group"}
    groups = {"groups": [group, share], "unknown": ["there may be more groups"]}
    told = ['"two\\nlines"', LONG, "123,456", "unknown", "there may be more groups"]
    check_whole(draw(render_groups(groups), width), told, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_how_far_it_is_and_how_it_ended(tmp_path: Path, width: int) -> None:
    workspace = open_desk(tmp_path)
    steps = [make_step("check_target", 0, 2, attempts=2), make_step("drain", 2, None)]
    progress = describe_progress(steps, make_burndown(20), NOON + timedelta(hours=13))
    told = ["check target", "2 attempts", "12:00:00Z", "now: drain"]
    check_whole(draw(render_progress(progress), width), told, width)

    standing: dict[str, Any] = {
        "kind": "expand",
        "recovery": "r-20261121-0001",
        "state": "failed",
        "runner": None,
        "reads": "nobody",
        "originals": 0,
        "recovery_consumers": 0,
        "stopped": "billing-and-invoices",
        "temporary": None,
        "put_back": None,
        "retention_held": ["retention.ms", "retention.bytes"],
        "problem": f"could not read {LONG}",
    }
    told = ["r-20261121-0001", "billing-and-invoices", *standing["retention_held"], LONG]
    check_whole(draw(render_recovery_status(standing), width), told, width)

    report = make_report(workspace, put_back(workspace).id)
    told = [report["standing"]["headline"], report["losses"]["sentence"], report["id"]]
    check_whole(draw(render_summary(report), width), told, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_doctor(width: int) -> None:
    command = f"kafka-configs.sh --alter --entity-type topics --entity-name {LONG}"
    finding = {
        "level": "unknown",
        "subject": f"topic {LONG}",
        "found": f"the retention of {LONG} could not be read within 1 h 2 min",
        "why": "messages may be deleted before they are read",
        "page": "docs/watching.md",
        "mend": "see `kafka-configs.sh --describe --all`",
        "commands": [command],
    }
    one = {"about": "stream", "name": "orders", "findings": [finding], "requests": {}}
    document = {"examinations": [one], "result": 2}
    drawn = draw(render_examinations(document), width)
    lines = [line for line in drawn.splitlines() if line.strip() != command]
    assert len(lines) == len(drawn.splitlines()) - 1, "the command is a line"
    told = [str(finding[name]) for name in ("subject", "found", "why", "mend")]
    check_whole("\n".join(lines), told, width)


def test_every_help_at_80_columns_has_all_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path in walk_commands():
        words: dict[int, set[str]] = {}
        for width in (80, 200):
            code, out, _ = call_main((*path, "--help"), tmp_path, {"COLUMNS": str(width)})
            assert code == 0, path
            words[width] = set(_FRAME.sub(" ", out).split())
        assert words[200] <= words[80], path


def walk_commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    command = command or typer.main.get_command(app)
    yield path
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from walk_commands(command.get_command(context, name), (*path, name))


@pytest.mark.parametrize("width", WIDTHS)
def test_commands_stay_on_a_line(width: int) -> None:
    console = WholeConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    command = f"backlogctl plan rebuild {LONG} --allow surplus --allow ledger"
    show(console, render_next(command))
    assert str(console.file.getvalue()) == f"next: {command}\n"  # type: ignore[attr-defined]
