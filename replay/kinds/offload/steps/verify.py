"""Step 8: the logs begin at the fence, the group is behind it, the archive is there, and what was
freed (protocol P5.6 and 7).
"""

from __future__ import annotations

import time
from typing import Any

from backlog.clock import Deadline
from backlog.errors import VerificationFailed
from backlog.numbers import format_bytes
from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from replay.around.movement import await_movement
from replay.kinds.offload.context import BYTES_BEFORE, OffloadContext
from replay.kinds.offload.skipping import refuse_skipped

# Brokers look for segments to delete every `log.retention.check.interval.ms`, 5 min by default.
FREED_SECONDS = 20.0
_POLL_SECONDS = 0.5


class Verify(Step[OffloadContext]):
    """Reads it all back."""

    name = "verify"

    def start(self, context: OffloadContext) -> None:
        """Reads, compares, watches the group.

        Raises:
            VerificationFailed: says what differs, or what somebody set the group past.
            StagingError: the archive is not there as it was recorded.
        """
        context.closing = True
        context.require_archive()
        _check_offsets(context)
        moves = None if context.leaves_consumers else _watch_group(context)
        archive = context.archive
        freed, expired = _measure_freed(context), sum(gone.count for gone in context.list_gone())
        found: dict[str, Any] = {
            "archived": 0 if archive is None else archive.messages,
            "archive_bytes": 0 if archive is None else archive.bytes,
            # What retention removed in front of the archive was not taken off by the offload.
            "offsets": sum(item.count for item in context.ranges) - expired,
            "expired": expired,
            "moves": moves,
            "freed_bytes": freed,
        }
        context.details[self.name] = {
            **found,
            "log_start": {str(n): at for n, at in context.read_lows().items()},
        }
        context.found["verified"] = found
        context.found["counts"] = found
        refuse_skipped(context)
        reach("p5.8.verified")


def _check_offsets(context: OffloadContext) -> None:
    fence, lows = context.fence, context.read_lows()
    commits = {number: commit.offset for number, commit in context.read_commits().items()}
    wrong = [
        f"the log of partition {n} starts at {lows[n]:,} instead of {at:,}"
        for n, at in fence.items()
        if lows[n] < at
    ] + [
        f"the group is at {commits[n]:,} in partition {n}, before the fence {at:,}"
        for n, at in fence.items()
        if commits[n] < at
    ]
    if wrong:
        raise VerificationFailed(
            "; ".join(wrong),
            subject=f"topic {context.recovery.topic}",
            hint="somebody set the group's offsets back, or the brokers lost the deletion; the "
            "archive is kept",
        )


def _watch_group(context: OffloadContext) -> bool:
    """Whether it moves. What does not is told: all else is done."""
    try:
        await_movement(context)
    except VerificationFailed as failed:
        context.say(f"{failed.subject}: {failed.message}")
        return False
    return True


def _measure_freed(context: OffloadContext) -> int | None:
    """Bytes that the topic takes less than before, once brokers deleted its segments; None where
    that is unknown."""
    events = context.workspace.ledger.events.list(context.recovery.id)
    before: int | None = next((e.detail["bytes"] for e in events if e.action == BYTES_BEFORE), None)
    if before is None:
        return None
    limit = Deadline(FREED_SECONDS)
    while True:
        now, log_dirs = context.read_topic_bytes()
        if now is None:
            context.say(f"how much was freed is unknown: {log_dirs.reason}")
            return None
        if now < before or limit.expired:
            break
        context.look()
        time.sleep(_POLL_SECONDS)
    freed = max(0, before - now)
    context.say(
        f"{format_bytes(freed)} are freed so far: the topic took {format_bytes(before)}, and takes "
        f"{format_bytes(now)}; brokers delete segments a little later, and keep the last one of "
        "each partition"
    )
    return freed
