"""Named points at which the crash harness kills the process; they do nothing otherwise.

`BACKLOG_CRASH_AT=p3.5.commit.before` kills the whole process group with SIGKILL at the first time
that point is reached, `BACKLOG_CRASH_AT=p3.5.commit.before:2` at the second. The count is of one
process. Points stand before and after each numbered step of the injection (protocol P3).
"""

from __future__ import annotations

import os
import signal
from collections import Counter

VARIABLE = "BACKLOG_CRASH_AT"

POINTS = (
    "p3.1.producer.before",
    "p3.1.producer.after",
    "p3.2.init.before",
    "p3.2.init.after",
    "p3.3.scan.before",
    "p3.3.scan.after",
    "p3.4.decide.before",
    "p3.4.decide.after",
    "p3.5.begin.before",
    "p3.5.begin.after",
    "p3.5.produce.middle",
    "p3.5.produce.after",
    "p3.5.record.after",
    "p3.5.flush.after",
    "p3.5.commit.before",
    "p3.5.commit.after",
    "p3.6.abort.before",
    "p3.6.abort.after",
    "p3.7.copy.before",
    "p3.7.copy.after",
)

_reached: Counter[str] = Counter()


def reach(name: str) -> None:
    """Says that the point `name` is reached; ends the process group where the harness asks so."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    point, _, times = wanted.partition(":")
    if point == name:
        _reached[name] += 1
        if _reached[name] == int(times or 1):
            os.killpg(os.getpgrp(), signal.SIGKILL)
