"""Step 2: the stream's own consumers are stopped, really (protocol P5.2)."""

from __future__ import annotations

from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from replay.around.stopping import find_begin
from replay.kinds.offload.context import OffloadContext


class StopConsumers(Step[OffloadContext]):
    """Stops them through the launcher, and waits until the group says so too."""

    name = "stop_consumers"

    def validate(self, context: OffloadContext) -> None:
        """The configuration says how they are stopped.

        Raises:
            UsageError: it no longer does.
        """
        _ = context.launcher

    def start(self, context: OffloadContext) -> None:
        """Stops them; the group is empty and its commits have not moved for a while.

        Raises:
            GroupActive: it did not get empty; names its members.
            GroupStillCommits: somebody commits without being a member.
        """
        context.say("stopping the group's consumers")
        context.stop_originals({row.partition: row.committed for row in context.plan.partitions})
        reach("p5.2.stopped")
        context.await_quiet()
        reach("p5.2.quiet")

    def complete(self, context: OffloadContext) -> None:
        """Where they left the group."""
        noted = context.find_stopped_at()
        begun = {n: find_begin(noted[n], commit) for n, commit in context.read_commits().items()}
        context.details[self.name] = {"committed": {str(n): at for n, at in begun.items()}}
