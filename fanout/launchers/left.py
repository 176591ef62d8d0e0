"""Consumers that are left as they are: a person starts and ends them."""

from __future__ import annotations

from backlog.numbers import format_plural
from backlog.progress import Say
from fanout.launchers.interface import CheckStop, Fleet, Launcher


class LeftLauncher:
    """Says what is left to do, and does nothing; for a launcher that fails."""

    name = "left"

    def __init__(self, real: Launcher, say: Say) -> None:
        self._real = real
        self._say = say

    def scale(self, fleet: Fleet, count: int, check_stop: CheckStop) -> None:
        """Nobody is started; says who is to be."""
        self._say(
            f"start {format_plural(count, 'consumer')} of group {fleet.group} on topic "
            f"{fleet.topic} yourself: {self._real.describe(fleet)}"
        )

    def stop(self, fleet: Fleet, check_stop: CheckStop) -> None:
        """Nobody is ended: the caller looks at the group, and names who is in it."""

    def count_running(self, fleet: Fleet) -> int | None:
        """Not known."""
        return None

    def explain(self, fleet: Fleet) -> str | None:
        """Not known."""
        return None

    def describe(self, fleet: Fleet) -> str:
        return "started and ended by you"
