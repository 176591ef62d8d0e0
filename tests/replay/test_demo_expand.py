"""The demo of an expansion: the whole story, small; what its figures mean; that nothing is left."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console

from backlog.config import load_config
from replay.demo.expand.audit import read_logs
from replay.demo.expand.shop import CONFIG, Size, count_expected, render_configuration
from replay.demo.expand.story import tell_story
from tests.kafka_tools import wait_until
from tests.leftovers import find_processes

SMALL = Size(
    orders=36_000,  # a busy machine begins late, and the consumers read meanwhile
    customers=1_000,
    partitions=2,
    factor=3,
    rate=400,
    arriving=20,
    measured=0.5,
    least_ratio=1.5,
    most_seconds=60.0,
)
TELL = """
from rich.console import Console
from replay.demo.expand.shop import Size
from replay.demo.expand.story import tell_story
tell_story(Console(), Size(orders=3_000, customers=300))
"""
SECOND = 1_000_000_000
WITHIN = 120.0  # seconds: a broker starts, and is stopped
pytestmark = pytest.mark.timeout(600)


def write_log(directory: Path, name: str, lines: Iterable[tuple[float, int, int]]) -> None:
    """Lines of (second, customer, number)."""
    text = "".join(f"{int(at * SECOND)} c-{who:06} {number}\n" for at, who, number in lines)
    (directory / f"{name}.log").write_text(text)


@pytest.mark.kafka
def test_a_small_backlog_is_drained_and_the_layout_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    console = Console(file=io.StringIO(), width=100)
    result = tell_story(console, SMALL)
    assert result.passed, result.checks
    document = result.to_json()
    assert document["orders"]["handled"] == document["orders"]["published"] > SMALL.orders
    assert document["before"]["consumers"] == 2
    assert document["during"]["consumers"] == 6
    assert list(document["steps"])[-1] == "remove_topic"
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert "drained" in told.splitlines()[-1]
    assert not list(tmp_path.iterdir())
    assert not find_processes(str(tmp_path))


@pytest.mark.kafka
def test_sigterm_ends_all_that_the_story_started(tmp_path: Path) -> None:
    """Consumers and their supervisor, the broker, the directory."""
    story = subprocess.Popen(
        [sys.executable, "-c", TELL],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: list(tmp_path.glob("*/handled/*.log")), WITHIN, "consumers at work")
        assert len(find_processes(str(tmp_path))) >= 5
        story.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        story.send_signal(signal.SIGTERM)  # impatience does not disturb the cleaning up
        assert story.wait(WITHIN) != 0
    finally:
        story.kill()
        story.wait()
    assert not list(tmp_path.iterdir())
    assert not find_processes(str(tmp_path))


def test_rates_are_taken_while_all_consumers_are_at_work(tmp_path: Path) -> None:
    """From the last to begin to the first that is through; the rest counts for the whole."""
    write_log(tmp_path, "orders.1", [(1 + n / 10, 1, n + 1) for n in range(11)])
    write_log(tmp_path, "orders.2", [(1.5 + n / 10, 2, n + 1) for n in range(11)])
    # An order that came later: not a part of the backlog, which is 11 a customer.
    write_log(tmp_path, "orders.recovery.r-1.3", [(5, 3, 1), (6, 3, 2), (9, 3, 12)])
    handled = read_logs(tmp_path)
    pace = handled.measure("before", 11)
    assert pace.consumers == 2
    assert (pace.began, pace.ended) == (1.5, 2.0)
    assert pace.rate == pytest.approx(20.0)
    assert pace.rate_overall == pytest.approx(22 / 1.5)
    assert handled.measure("during", 11).last == 6.0
    assert handled.last_of_expansion == 9.0
    assert handled.all_back is None


def test_orders_are_audited_over_both_hand_overs(tmp_path: Path) -> None:
    """Handled again is told, and is not out of order; what is missing or too early is."""
    write_log(tmp_path, "orders.1", [(1, 0, 1), (1, 1, 1), (2, 1, 2)])
    write_log(tmp_path, "orders.recovery.r-1.2", [(3, 0, 1), (3, 0, 2), (4, 0, 3)])
    write_log(tmp_path, "orders.3", [(5, 0, 4), (6, 1, 4)])
    handled = read_logs(tmp_path)
    assert [len(part) for part in (handled.before, handled.during, handled.after)] == [1, 1, 1]
    found = handled.audit(8, 2)
    assert (found.handled, found.twice, found.missing, found.out_of_order) == (7, 1, 1, 1)
    assert handled.all_back == 5.0


def test_every_customer_has_as_many_orders_as_were_published() -> None:
    assert dict(count_expected(7, 3)) == {0: 3, 1: 2, 2: 2}


def test_the_configuration_loads(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(render_configuration(Size()))
    stream = load_config(tmp_path / CONFIG, {"SHOP_KAFKA": "localhost:9092"}).stream("orders")
    assert stream.consumers is not None
    assert (stream.consumers.replicas, stream.expand.factor) == (3, 10)
