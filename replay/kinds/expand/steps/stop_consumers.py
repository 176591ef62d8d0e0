"""Step 4: the stream's own consumers are stopped, really (protocol P4.3)."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.kafka.admin import committed_offsets, set_group_offsets
from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from replay.around.stopping import find_begin
from replay.kinds.expand.canary_look import CanaryLook, find_first
from replay.kinds.expand.context import ExpandContext


class StopConsumers(Step[ExpandContext]):
    """Stops them through the launcher, and waits until the group says so too."""

    name = "stop_consumers"

    def validate(self, context: ExpandContext) -> None:
        """The configuration says how they are stopped.

        Raises:
            UsageError: it no longer does.
        """
        _ = context.launcher

    def start(self, context: ExpandContext) -> None:
        """Stops them; the group is empty and its commits have not moved for a while.

        Raises:
            GroupActive: it did not get empty; names its members.
            GroupStillCommits: somebody commits without being a member.
            CanaryFailed: the recovery's first consumer does not do as it should.
        """
        context.stop_originals(context.starts)
        reach("p4.3.stopped")
        # While there is nothing to do but wait: the canary's relays and its consumer get ready. It
        # finds an empty topic.
        context.session.make_ready(context.partitions)
        look = CanaryLook(find_first(context))
        with look.judging():
            context.launch(1)
            context.await_quiet(look.look)

    def complete(self, context: ExpandContext) -> None:
        """Every partition has a committed offset: the plan's start where there was none."""
        group, topic = context.recovery.group, context.recovery.topic
        numbers = range(context.partitions)
        commits = committed_offsets(context.admin, group, topic, numbers, Deadline(30.0))
        noted = context.find_stopped_at()
        missing = {number: noted[number] for number, at in commits.items() if at is None}
        if missing:
            set_group_offsets(context.admin, group, topic, missing, Deadline(30.0))
        begun = {n: find_begin(noted[n], commit) for n, commit in context.read_commits().items()}
        context.details[self.name] = {"committed": {str(n): at for n, at in begun.items()}}
