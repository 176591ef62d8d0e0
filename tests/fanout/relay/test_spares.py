"""Relay processes that are started ahead of time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from backlogctl.fanout.relay.pool import Spares, count_processes
from backlogctl.fanout.relay.records import HUNG, Watchdog


def test_spares_wait_are_taken_once_and_end_with_who_started_them(tmp_path: Path) -> None:
    spares = Spares(tmp_path / "relay.log")
    spares.fill(2)
    first, second = spares.take(), spares.take()
    assert first.pid != second.pid
    assert (first.poll(), second.poll()) == (None, None)
    for child in (first, second):
        assert child.stdin is not None
        child.stdin.close()  # as when the runner is killed
        assert child.wait(120.0) == 70
        assert child.stdout is not None
        child.stdout.close()
    assert (tmp_path / "relay.log").read_text() == ""


def test_a_spare_that_died_is_not_taken_and_those_nobody_took_end(tmp_path: Path) -> None:
    spares = Spares(tmp_path / "relay.log")
    spares.fill(1)
    spares._children[0].kill()
    dead = spares._children[0]
    dead.wait(120.0)
    new = spares.take()
    assert new.pid != dead.pid
    spares._children.append(new)
    spares.close()
    assert new.returncode is not None


@pytest.mark.parametrize(("partitions", "wanted", "count"), [(3, None, 3), (0, None, 1), (9, 2, 2)])
def test_never_more_processes_than_partitions(
    partitions: int, wanted: int | None, count: int
) -> None:
    assert count_processes(partitions, wanted) == count


# A call of the client that hangs ends the process; one that only takes long does not.

_HANGING = """
import threading, time
from backlogctl.fanout.relay.records import Watchdog

watchdog = Watchdog(late=0.2)


def call(seconds, limit):
    with watchdog.watching(f"a call of {seconds} s", limit):
        time.sleep(seconds)


threads = [threading.Thread(target=call, args=each) for each in ((0.5, 1.0), (60.0, 0.3))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_a_call_that_hangs_ends_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HANGING], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == HUNG
    assert done.stderr == "the client did not come back from: a call of 60.0 s\n"


def test_calls_that_come_back_in_time_do_not() -> None:
    ended: list[int] = []
    watchdog = Watchdog(late=0.1, end=ended.append)
    for _ in range(8):
        with watchdog.watching("a call", 0.1):
            time.sleep(0.08)
    time.sleep(0.3)
    assert ended == []
