"""The demo of delivery: both halves, small; that its audit can fail; that nothing is left."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from backlog.config import load_config
from replay.cli import main
from replay.demo.delivery.audit import Facts, Row, Sent, audit_facts
from replay.demo.delivery.result import Result
from replay.demo.delivery.shop import Size, render_configuration
from replay.demo.delivery.story import tell_story
from tests.kafka_tools import wait_until
from tests.leftovers import find_processes

SMALL = Size(seconds=8.0, rate=60.0, apart=(1.5, 3.0))
ROWS = tuple(Row(f"o-{number}", f"c-{number % 2}", number // 2) for number in range(8))
SENT = tuple(Sent(f"m-{row.id}", row) for row in ROWS)
UNDONE = Row("o-9", "c-0", 9)
GOOD = Facts(
    begun=frozenset({*(row.id for row in ROWS), UNDONE.id}),
    committed=ROWS,
    # Sent again after a crash, behind a later one of its key.
    topic=(*SENT[:4], SENT[1], *SENT[4:]),
    handled=ROWS,
    dropped=1,
)


@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_each_order_and_payment_is_handled_once_whatever_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    console = Console(file=io.StringIO(), width=100)
    result = tell_story(console, SMALL)
    assert result.passed, result.to_json()
    document = result.to_json()
    for rows in ("orders", "payments"):
        assert document[rows]["handled"] == document[rows]["committed"] > 20
        assert document[rows]["rolled_back"] > 0
    assert document["kills"]["order service"] >= 2
    assert document["broker_restarts"] == 1
    told = console.file.getvalue()  # type: ignore[attr-defined]
    for command in ("backlogctl outbox run", "backlogctl lookback run", "docs/outbox.md"):
        assert command in told
    assert "rolled back and never seen" in told.replace("\n", " ")
    assert not list(tmp_path.iterdir())
    assert not find_processes(str(tmp_path))


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_story_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    story = subprocess.Popen(
        [sys.executable, "-m", "replay.cli", "demo", "delivery"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: any(file.stat().st_size for file in tmp_path.glob("*/orders.begun")))
        assert len(find_processes(str(tmp_path))) >= 5
        story.send_signal(number)
        assert story.wait(120) != 0
    finally:
        story.kill()
        story.wait()
    wait_until(lambda: not find_processes(str(tmp_path)), 30, "its processes are gone")
    assert number == signal.SIGKILL or not list(tmp_path.iterdir())


def test_the_audit_passes_where_repeats_were_dropped() -> None:
    audit = audit_facts(GOOD)
    assert audit.passed
    assert (audit.committed, audit.handled, audit.rolled_back) == (8, 8, 1)
    assert (audit.repeats, audit.dropped) == (1, 1)
    assert audit.tell("orders") == (
        "8 orders in the table, 8 handled, 0 missing, 0 twice, 1 rolled back and never seen"
    )


def swap(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The first two of a key in the wrong order."""
    return (rows[2], rows[1], rows[0], *rows[3:])


@pytest.mark.parametrize(
    ("spoil", "name", "ids"),
    [
        (lambda f: replace(f, handled=(*f.handled, ROWS[3])), "twice", ("o-3",)),
        (lambda f: replace(f, handled=f.handled[1:]), "missing", ("o-0",)),
        # As many rows as there should be: what counts alone would not see.
        (lambda f: replace(f, handled=(*f.handled[1:], ROWS[7])), "missing", ("o-0",)),
        (lambda f: replace(f, topic=SENT[1:]), "missing", ("o-0",)),
        (lambda f: replace(f, topic=(*f.topic, Sent("m-9", UNDONE))), "not_committed", ("o-9",)),
        (lambda f: replace(f, handled=(*f.handled, UNDONE)), "not_committed", ("o-9",)),
        # Another number than its row has.
        (
            lambda f: replace(f, topic=(*f.topic, Sent("m-o-0", Row("o-0", "c-0", 5)))),
            "not_committed",
            ("o-0",),
        ),
        (lambda f: replace(f, handled=swap(f.handled)), "out_of_order", ("c-0",)),
        (
            lambda f: replace(f, topic=(SENT[2], SENT[1], SENT[0], *SENT[3:])),
            "out_of_order",
            ("c-0",),
        ),
        (lambda f: replace(f, topic=(*f.topic, Sent("other", ROWS[0]))), "other_id", ("o-0",)),
        (
            lambda f: replace(f, topic=(*SENT[1:], Sent("m-o-1", ROWS[0]))),
            "other_id",
            ("o-0", "o-1"),
        ),
    ],
)
def test_the_audit_fails(spoil: Callable[[Facts], Facts], name: str, ids: tuple[str, ...]) -> None:
    audit = audit_facts(spoil(GOOD))
    assert not audit.passed
    assert audit.list_wrong()[name] == ids
    assert audit.to_json()["ids"][name] == list(ids)
    result = Result({"orders": audit}, {"sender": 1}, 1)
    assert not result.passed


def test_a_story_without_a_row_or_a_kill_proves_nothing() -> None:
    empty = audit_facts(Facts(frozenset(), (), (), (), 0))
    assert not empty.passed
    assert Result({"orders": audit_facts(GOOD)}, {"sender": 1}, 1).passed
    assert not Result({"orders": audit_facts(GOOD)}, {"sender": 0}, 1).passed


def test_the_command_fails_with_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = audit_facts(replace(GOOD, handled=ROWS[1:]))
    told = Result({"orders": audit}, {"sender": 1}, 1)
    monkeypatch.setattr("replay.demo.delivery.story.tell_story", lambda _: told)
    assert main(["demo", "delivery", "--json"]) == 1


def test_look_backs_configuration_loads(tmp_path: Path) -> None:
    (tmp_path / "backlog.yaml").write_text(render_configuration("localhost:9092", 8080))
    config = load_config(tmp_path / "backlog.yaml", {})
    assert config.look_back is not None
    assert set(config.look_back.services) == {"payments"}


@pytest.mark.parametrize("option", [("--report", "x.html"), ("--consumed",), ("--secure",)])
def test_an_option_of_another_story_is_refused(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "delivery", *option]) == 2
    assert "goes with" in capsys.readouterr().err
