"""What a run works with that stops the group's own consumers: their group, and who starts them.

For the kinds with the trait `stops_consumers`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from backlog.clock import Deadline
from backlog.config import Consumers
from backlog.errors import Refused, UsageError
from backlog.kafka.admin import committed_offsets
from backlog.kafka.clients import Admin, make_admin
from fanout.launchers import LeftLauncher, make_launcher
from fanout.launchers.interface import Fleet, Launcher, Role
from fanout.quiet import await_empty, await_quiet
from fanout.relay.commits import CommitWithMetadata, read_all
from replay.around.fleets import fleet_of
from replay.around.leftovers import Leftovers
from replay.around.source import is_source, refuse_other_source
from replay.around.ways import LEAVE_CONSUMERS
from replay.recovery.brakes import check_requests
from replay.recovery.cancelling import find_ways
from replay.recovery.context import RunContext
from replay.recovery.kind import PlanT
from replay.telling.layout import Text

STOPPED_AT = "its consumers were stopped"
_REQUESTS_EACH = 0.25
# The same each time: what they look at may have changed since.
_NEVER_COMPLETE = ("check_source",)


@dataclass
class StoppingContext(RunContext[PlanT]):
    """One run of one recovery that keeps the group's own consumers stopped for a while.

    Attributes:
        closing: all is given back now: a request to pause or cancel changes nothing.
        cancelling: that is all there is to do.
        quiet: the original group was watched in this run.
    """

    closing: bool = False
    cancelling: bool = False
    quiet: bool = False
    leftovers: Leftovers = field(default_factory=Leftovers)
    _requests_at: float = 0.0

    @property
    def again(self) -> str:
        """What to do where the topic is another one now; a hint."""
        return f"`backlogctl cancel {self.recovery.id}`, then plan again"

    @property
    def partitions(self) -> int:
        """Partitions of the topic, as planned."""
        return self.plan.partition_count

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """Client properties; they hold secrets."""
        return self.workspace.properties(self.stream)

    @cached_property
    def admin(self) -> Admin:
        """An admin client, kept."""
        return make_admin(self.properties)

    @property
    def consumers(self) -> Consumers:
        """How the stream's consumers are launched.

        Raises:
            UsageError: the configuration no longer says.
        """
        if self.stream.consumers is None:
            raise UsageError(
                "it no longer says how its consumers are started and stopped",
                subject=f"stream {self.stream.name}",
                hint=f"put `streams.{self.stream.name}.consumers` back",
            )
        return self.stream.consumers

    @cached_property
    def launcher(self) -> Launcher:
        """The stream's launcher; one that does nothing where a cancel leaves consumers alone."""
        launcher = make_launcher(self.consumers, self.properties, self.say)
        return LeftLauncher(launcher, self.say) if self.leaves_consumers else launcher

    @property
    def leaves_consumers(self) -> bool:
        """Whether a person starts and ends them."""
        return self.cancelling and LEAVE_CONSUMERS in self.cancel_ways

    @property
    def cancel_ways(self) -> tuple[str, ...]:
        """How the last `cancel` asked for it."""
        return find_ways(self.workspace, self.recovery.id)

    @property
    def originals(self) -> Fleet:
        """The stream's own consumers."""
        return fleet_of(self.workspace, self.stream, Role.ORIGINAL)

    def say(self, text: str) -> None:
        """A sentence for people, and for the record."""
        self.console.print(Text(text), soft_wrap=True)
        self.record("said", message=text)

    def is_complete(self, step: str) -> bool:
        """From the ledger: a crash does not make a step start anew."""
        found = self.workspace.ledger.steps.get(self.recovery.id, step)
        return step not in _NEVER_COMPLETE and found is not None and found.is_complete

    def was_started(self, step: str) -> bool:
        """Whether the step was ever started."""
        return self.workspace.ledger.steps.get(self.recovery.id, step) is not None

    def look(self) -> None:
        """What stops the run: a lost lease, Ctrl-C, and requests unless it is closing."""
        now = time.monotonic()
        if now < self._requests_at:
            return
        self._requests_at = now + _REQUESTS_EACH
        check_requests(self, requests=not self.closing)

    def check_topic(self) -> None:
        """The topic is the one of the plan; raises PlanStale where it is not."""
        refuse_other_source(self.admin, self.plan, self.again)

    def has_source(self) -> bool:
        """Whether it is still the topic that was planned, perhaps with more partitions."""
        return is_source(self.admin, self.plan)

    # The group.

    def stop_originals(self, starts: Mapping[int, int]) -> None:
        """The group's consumers end, and where they left it is on record at once.

        A run may be killed before the group is quiet. A later run finds what was done to the group
        since then, and does not take it for its consumers' own.

        Args:
            starts: where partitions begin that have no commit.
        """
        self.launcher.stop(self.originals, self.look)
        self.await_empty()
        if not self.find_stopped_at():
            self.note_stopped_at(starts)

    def start_originals(self) -> None:
        """Starts the stream's own consumers, as many as in normal times."""
        self.launcher.scale(self.originals, self.consumers.replicas, self.look)

    def await_empty(self) -> None:
        """The original group has no members.

        Raises:
            GroupActive: it did not get empty; names them.
        """
        within = self.consumers.stop_within.total_seconds()
        await_empty(self.admin, self.recovery.group, self.look, within=within)

    def await_quiet(self, look: Callable[[], None] = lambda: None) -> None:
        """The original group is empty, and its commits do not move.

        Args:
            look: called while it waits.

        Raises:
            GroupActive: it did not get empty; names its members.
            GroupStillCommits: somebody commits without being a member.
        """

        def look_at_both() -> None:
            self.look()
            look()

        await_quiet(
            self.properties,
            self.recovery.group,
            self.recovery.topic,
            self.partitions,
            look_at_both,
            within=self.consumers.stop_within.total_seconds(),
        )
        self.quiet = True

    def read_commits(self, *, stable: bool = True) -> dict[int, CommitWithMetadata]:
        """The original group's commits; not `stable`: without what is undecided."""
        group, topic, numbers = self.recovery.group, self.recovery.topic, range(self.partitions)
        try:
            return read_all(self.admin, group, topic, list(numbers), Deadline(60.0), stable=stable)
        except Refused:
            self.check_topic()  # commits go with their topic: then that is what to say
            raise

    @property
    def begun(self) -> dict[int, int]:
        """Where the group was when its consumers were stopped; empty until then."""
        stopped = self.workspace.ledger.steps.get(self.recovery.id, "stop_consumers")
        committed = {} if stopped is None else stopped.detail.get("committed", {})
        # A run may be killed between the two.
        return {int(number): at for number, at in committed.items()} or self.find_stopped_at()

    def find_stopped_at(self) -> dict[int, int]:
        """Where its consumers left the group when they ended, as the first run that stopped them
        saw it."""
        for event in self.workspace.ledger.events.list(self.recovery.id):
            if event.action == STOPPED_AT:
                return {int(number): at for number, at in event.detail["committed"].items()}
        return {}

    def note_stopped_at(self, starts: Mapping[int, int]) -> None:
        """Puts on record where the consumers left the group, `starts` where they committed
        nothing: nobody guards it now, and what somebody else does to it is told by this."""
        group, topic = self.recovery.group, self.recovery.topic
        commits = committed_offsets(
            self.admin, group, topic, range(self.partitions), Deadline(30.0), require_stable=True
        )
        found = {number: starts[number] if at is None else at for number, at in commits.items()}
        self.record(STOPPED_AT, committed={str(n): at for n, at in found.items()})


def find_begin(noted: int, commit: CommitWithMetadata) -> int:
    """Where a partition's group has stopped: further than it was noted only by a reader's own
    commit, which carries a leader epoch (KIP-320). One without is somebody's reset."""
    return max(noted, commit.offset) if commit.epoch is not None else noted
