"""Watches the recovery's consumers: starts them again, and reports where they stand still."""

from __future__ import annotations

import time

from backlog.errors import KafkaFailure
from backlog.numbers import format_plural
from replay.kinds.expand.context import ExpandContext

LOOK_SECONDS = 5.0
STALL_SECONDS = 60.0


class StallWatch:
    """Watches what is left in the temporary topic; made when its consumers run."""

    def __init__(self, context: ExpandContext) -> None:
        self._context = context
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._left = -1
        self._moved_at = self._told_at = time.monotonic()
        self._explained_at = -STALL_SECONDS

    def look(self) -> None:
        """Starts consumers that are all gone; says each minute where nothing is handled."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        context = self._context
        self._look_at_consumers(now)
        try:
            left = context.read_temporary_lag()
        except KafkaFailure:
            return  # a broker is away: the next look shows it
        if left != self._left:
            self._left, self._moved_at, self._told_at = left, now, now
        elif left and now - self._told_at >= STALL_SECONDS:
            self._told_at = now
            self._describe_stall(now - self._moved_at)

    def _look_at_consumers(self, now: float) -> None:
        context = self._context
        if context.launcher.count_running(context.fleet) == 0:
            context.say("none of the recovery's consumers runs: they are started again")
            context.launch(count_wanted(context))
            return
        if now - self._explained_at < STALL_SECONDS:
            return
        ended = context.launcher.explain(context.fleet)
        if ended is not None:
            self._explained_at = now
            context.say(f"a consumer of the recovery does not stay, and is started again: {ended}")

    def _describe_stall(self, seconds: float) -> None:
        context = self._context
        unread = context.find_unread()
        if not unread:
            return
        places = ", ".join(f"{number} from {offset}" for number, offset in sorted(unread.items()))
        context.say(
            f"nothing was handled for {seconds:.0f} s. Unread in {context.temporary_topic}: "
            f"{format_plural(len(unread), 'partition')} ({places}). Look at the consumers' logs in "
            f"{context.fleet.directory}; a message that they cannot handle must be committed past"
        )


def count_wanted(context: ExpandContext) -> int:
    """How many consumers are to run on the temporary topic, with the cap."""
    wanted = context.plan.consumers
    cap = context.consumers.max_consumers
    return wanted if cap is None else min(wanted, cap)
