"""Named points at which the crash tests kill the process; they do nothing otherwise.

`BACKLOG_CRASH_AT=p3.5.commit.before` kills the whole process group with SIGKILL at the first time
that point is reached, `BACKLOG_CRASH_AT=p3.5.commit.before:2` at the second. The count is of one
process. tests/crash/points.py lists the points. Spark's Python workers are in a group of their own:
`BACKLOG_CRASH_GROUP` names the one that is killed with it.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

VARIABLE = "BACKLOG_CRASH_AT"
GROUP = "BACKLOG_CRASH_GROUP"

_reached: Counter[str] = Counter()


def reach(name: str) -> None:
    """Marks the point `name` as reached; kills the process group where a crash test asks for it."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    point, _, times = wanted.partition(":")
    if point == name:
        _reached[name] += 1
        if _reached[name] == int(times or 1):
            own = os.getpgrp()
            for group in dict.fromkeys((int(os.environ.get(GROUP, own)), own)):
                os.killpg(group, signal.SIGKILL)
