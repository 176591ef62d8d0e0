"""How fast consumers are that nobody has watched yet: a plan looks for itself, for a while."""

from __future__ import annotations

import time

from backlog.clock import Deadline
from backlog.config import Stream
from backlog.kafka.admin import read_group_state
from backlog.kafka.clients import make_admin
from monitoring.pace import Pace, measure_pace
from replay.around.observation import note_stream
from replay.kinds.expand.backlog import read_own_history
from replay.recovery.kind import Say
from replay.recovery.workspace import Workspace

# Consumers commit every 5 s by themselves: three of those tell a speed.
ENOUGH_SECONDS = 15.0
LONGEST_SECONDS = 25.0
_LOOK_EACH = 2.5


def watch_pace(workspace: Workspace, stream: Stream, say: Say) -> None:
    """Samples a stream until its samples tell how fast its consumers are, 25 s at most.

    Where the group has no members there is nothing to wait for, and where `watch` has looked long
    enough nothing is done.
    """
    admin = make_admin(workspace.properties(stream))
    limit, told = Deadline(LONGEST_SECONDS), False
    while True:
        note_stream(workspace, stream)
        if not read_group_state(admin, stream.group, Deadline(30.0)).is_active:
            return
        if _is_enough(measure_pace(read_own_history(workspace, stream), running=True)):
            return
        if limit.expired:
            return
        if not told:
            say(
                "nobody has watched this stream of late: looking for "
                f"{ENOUGH_SECONDS:.0f} to {LONGEST_SECONDS:.0f} s how fast its consumers are"
            )
            told = True
        time.sleep(limit.remaining(_LOOK_EACH))


def _is_enough(pace: Pace) -> bool:
    return bool(pace.consumed) and pace.seconds >= ENOUGH_SECONDS
