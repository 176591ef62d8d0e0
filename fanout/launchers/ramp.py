"""More consumers in steps, so that what they write to survives."""

from __future__ import annotations

import time
from collections.abc import Callable

from backlog.clock import Deadline
from backlog.config import Ramp
from fanout.launchers.interface import CheckStop, Fleet, Launcher
from fanout.launchers.manual import ManualLauncher

_TICK = 0.05


def ramp_up(
    launcher: Launcher,
    fleet: Fleet,
    count: int,
    ramp: Ramp,
    check_stop: CheckStop,
    on_step: Callable[[int], None],
    *,
    max_consumers: int | None = None,
) -> int:
    """Starts consumers from what runs up to `count`, `ramp.step` at a time.

    A step begins `ramp.every` after the one before it began, or once that has ended. People are
    asked once, for all of them.

    Args:
        on_step: called after each step with how many run.
        max_consumers: never more than this.

    Returns:
        How many were asked for: `count`, or `max_consumers`.

    Raises:
        BacklogError: what the launcher or `check_stop` raises.
    """
    wanted = count if max_consumers is None else min(count, max_consumers)
    running = min(launcher.count_running(fleet) or 0, wanted)
    step = wanted if isinstance(launcher, ManualLauncher) else ramp.step
    while True:
        check_stop()
        pause = Deadline(ramp.every.total_seconds())
        running = min(running + step, wanted)
        launcher.scale(fleet, running, check_stop)
        on_step(running)
        if running == wanted:
            return wanted
        while not pause.expired:
            check_stop()
            time.sleep(pause.remaining(_TICK))
