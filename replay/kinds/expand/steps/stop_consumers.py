"""Step 4: the stream's own consumers are stopped, really (protocol P4.3)."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.crashpoints import reach
from backlog.kafka.admin import committed_offsets, set_group_offsets
from backlog.step import Step
from fanout.relay.commits import CommitWithMetadata
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
        context.launcher.stop(context.originals, context.look)
        # At once when it is empty: a run may be killed before the group is quiet. A later run finds
        # what was done to the group since then, and does not take it for its consumers' own.
        context.await_empty()
        if not context.find_stopped_at():
            context.note_stopped_at()
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


def find_begin(noted: int, commit: CommitWithMetadata) -> int:
    """Where a partition's group has stopped: further than it was noted only by a reader's own
    commit, which carries a leader epoch (KIP-320). One without is somebody's reset."""
    return max(noted, commit.offset) if commit.epoch is not None else noted


def start_originals(context: ExpandContext) -> None:
    """Starts the stream's own consumers, as many as in normal times."""
    context.launcher.scale(context.originals, context.consumers.replicas, context.look)
