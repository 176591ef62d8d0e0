"""A call of the client that hangs ends the process; one that only takes long does not."""

from __future__ import annotations

import subprocess
import sys
import time

from backlogctl.fanout.relay.records import HUNG, Watchdog

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
