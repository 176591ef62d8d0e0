"""`backlogctl` as on another host, whose clock is wrong: `python -m tests.kit.shifted run ...`.

The process's own view only: librdkafka, and processes that it starts, have the machine's clock.
"""

from __future__ import annotations

import os
import platform
import runpy
import socket
import time
from datetime import timedelta

from backlogctl import clock

MODULE = "tests.kit.shifted"
HOST, SHIFT = "SHIFTED_HOST", "SHIFTED_SECONDS"  # in the environment: the name, how far ahead
RUNS = "SHIFTED_RUNS"  # another module in the place of `backlogctl`


def shift() -> None:
    """Before anything else is imported: names are bound then."""
    host, seconds = os.environ[HOST], float(os.environ[SHIFT])
    read_time, utc_now = time.time, clock.utc_now
    time.time = lambda: read_time() + seconds
    clock.utc_now = lambda: utc_now() + timedelta(seconds=seconds)
    socket.gethostname = platform.node = lambda: host


if __name__ == "__main__":
    shift()
    runpy.run_module(os.environ.get(RUNS, "backlogctl.replay.cli"), None, "__main__", True)
