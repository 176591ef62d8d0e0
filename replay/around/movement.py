"""Whether the original group goes on, once its consumers are back."""

from __future__ import annotations

import time
from typing import Any

from backlog.clock import Deadline
from backlog.errors import VerificationFailed
from backlog.kafka.admin import committed_offsets, read_group_state
from backlog.kafka.standing import LogTruncated
from fanout.unread import find_unread
from replay.around.stopping import StoppingContext

MOVES_SECONDS = 120.0
_POLL_SECONDS = 0.25


def await_movement(context: StoppingContext[Any]) -> None:
    """The original group has members, and moves or has nothing to read.

    Raises:
        VerificationFailed: it does not; all else is restored.
    """
    group, topic, limit = context.recovery.group, context.recovery.topic, Deadline(MOVES_SECONDS)
    numbers = range(context.partitions)
    before = committed_offsets(context.admin, group, topic, numbers)
    while True:
        context.look()
        now = committed_offsets(context.admin, group, topic, numbers)
        if now != before:
            return
        # Not by the lag: a reader stays before control and aborted records for ever.
        try:
            unread = find_unread(
                context.admin, context.properties, topic, group, context.partitions
            )
        except LogTruncated as lost:
            raise VerificationFailed(lost.message, subject=lost.subject, hint=lost.hint) from lost
        state = read_group_state(context.admin, group, Deadline(30.0))
        if state.is_active and not unread:
            return
        if limit.expired:
            raise VerificationFailed(
                f"it does not move: messages are unread in partitions {sorted(unread)}, and the "
                f"group is {state.state}",
                subject=f"group {group} on topic {topic}",
                hint="look at the consumers' logs; everything else is restored. Run again to "
                "verify, once they work",
            )
        time.sleep(_POLL_SECONDS)
