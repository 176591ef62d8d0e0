"""Step 3: the fence, each partition's last stable offset, set once (protocol P5.3)."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.kafka.standing import read_standing
from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from replay.kinds.offload.context import ASK_SECONDS, FENCED, OffloadContext


class Fence(Step[OffloadContext]):
    """Never above the last stable offset: an open transaction would lose its messages."""

    name = "fence"

    def start(self, context: OffloadContext) -> None:
        """Puts it on record; a later run goes by what is on record.

        Raises:
            GroupActive, Refused: the group is not where its consumers were stopped.
            EndsBehind, LogTruncated: the ends are not to be trusted.
        """
        context.require_stopped_there()
        if not context.fence:
            group, topic = context.recovery.group, context.recovery.topic
            numbers, limit = range(context.partitions), Deadline(ASK_SECONDS)
            found = read_standing(context.admin, group, topic, numbers, limit, require_stable=True)
            context.record(FENCED, fence={str(n): at for n, at in sorted(found.ends.items())})
        # Where the group stopped, for who compares samples: all beyond it is the offload's.
        context.note_sample()
        reach("p5.3.fenced")
        context.say(f"unread below the fence: {context.say_range()}, at most")
