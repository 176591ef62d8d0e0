"""Both topics of an expansion and how far it has come: what plan, ledger and brokers say."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from backlog.clock import Deadline
from backlog.errors import PlanStale, Refused
from backlog.kafka.admin import committed_offsets
from backlog.kafka.clients import Admin, make_admin
from backlog.kafka.standing import read_standing
from backlog.ledger import TemporaryTopic
from fanout.decided import find_undecided
from fanout.relay.commits import CommitWithMetadata, read_all, read_positions
from fanout.unread import find_unread
from replay.kinds.expand.plan import ExpandPlan
from replay.kinds.expand.source import is_source, refuse_other_copy, refuse_other_source
from replay.recovery.context import RunContext

Answer = TypeVar("Answer")

ASK_SECONDS = 10.0  # then it is said that the brokers are away
_ABSENT_SECONDS = 5.0
_PAUSE_SECONDS = 0.3
# The same each time: what they look at may have changed since.
_NEVER_COMPLETE = ("check_source",)
STOPPED_AT = "its consumers were stopped"


@dataclass
class ExpandTopics(RunContext[ExpandPlan]):
    """What the steps of an expansion ask; nothing here changes anything but the record."""

    @property
    def partitions(self) -> int:
        """Partitions of the source topic, as planned."""
        return self.plan.partition_count

    @property
    def temporary_topic(self) -> str:
        """The temporary topic's name."""
        return self.plan.temporary.topic

    @property
    def temporary_partitions(self) -> int:
        return self.plan.temporary.partitions

    @property
    def recovery_group(self) -> str:
        """The group that reads the temporary topic."""
        return self.plan.recovery_group

    @property
    def temporary(self) -> TemporaryTopic | None:
        """The temporary topic as the ledger has it; None before it was announced."""
        return self.workspace.ledger.temporary_topics.get(self.recovery.id)

    @property
    def has_temporary(self) -> bool:
        """Whether the temporary topic was created, and is not deleted yet."""
        known = self.temporary
        return known is not None and known.topic_id is not None and known.deleted_at is None

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """Client properties; they hold secrets."""
        return self.workspace.properties(self.stream)

    @cached_property
    def admin(self) -> Admin:
        """An admin client, kept."""
        return make_admin(self.properties)

    def is_complete(self, step: str) -> bool:
        """From the ledger: a crash does not make a step start anew."""
        if step == "drain" and not self.is_complete("cut_over"):
            # Between them the backlog may have grown again: nobody has read since.
            return False
        found = self.workspace.ledger.steps.get(self.recovery.id, step)
        return step not in _NEVER_COMPLETE and found is not None and found.is_complete

    def was_started(self, step: str) -> bool:
        """Whether the step was ever started."""
        return self.workspace.ledger.steps.get(self.recovery.id, step) is not None

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """What the brokers answer to it; a run waits for those that are away."""
        return question()

    def read_source_lag(self) -> int:
        """Offsets left in the source; the temporary topic may be gone."""
        return self._count_left(self.recovery.group, self.recovery.topic, self.partitions)

    def read_temporary_lag(self) -> int:
        """Offsets left in the temporary topic; the source may be gone."""
        return self._count_left(
            self.recovery_group, self.temporary_topic, self.temporary_partitions
        )

    def _count_left(self, group: str, topic: str, partitions: int) -> int:
        numbers = range(partitions)
        found = self.ask(
            lambda: read_standing(self.admin, group, topic, numbers, Deadline(ASK_SECONDS))
        )
        return sum(found.lag.values())

    def read_handled(self) -> int:
        """Offsets of the temporary topic that its group has committed past."""
        numbers = range(self.temporary_partitions)
        group, topic = self.recovery_group, self.temporary_topic
        done = self.ask(
            lambda: committed_offsets(self.admin, group, topic, numbers, Deadline(ASK_SECONDS))
        )
        return sum(at or 0 for at in done.values())

    def find_unread(self) -> dict[int, int]:
        """Temporary partitions with unread data records, by reading them."""
        return self.ask(
            lambda: find_unread(
                self.admin,
                self.properties,
                self.temporary_topic,
                self.recovery_group,
                self.temporary_partitions,
            )
        )

    def find_undecided(self) -> dict[int, int]:
        """Temporary partitions where an open transaction hides what is behind it."""
        return self.ask(
            lambda: find_undecided(self.admin, self.temporary_topic, self.temporary_partitions)
        )

    def is_drained(self) -> bool:
        """Whether nothing of the temporary topic is unread, or hidden by an open transaction."""
        return not (self.find_undecided() or self.find_unread())

    def find_commit(self, partition: int) -> int:
        """Where the original group is."""
        commits = committed_offsets(
            self.admin, self.recovery.group, self.recovery.topic, [partition], require_stable=True
        )
        return commits[partition] or 0

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

    def note_stopped_at(self) -> None:
        """Puts on record where the consumers left the group, the plan's start where they committed
        nothing: nobody guards it now, and what somebody else does to it is told by this."""
        starts = {row.partition: row.start for row in self.plan.partitions}
        group, topic = self.recovery.group, self.recovery.topic
        commits = committed_offsets(
            self.admin, group, topic, range(self.partitions), Deadline(30.0), require_stable=True
        )
        found = {number: starts[number] if at is None else at for number, at in commits.items()}
        self.record(STOPPED_AT, committed={str(n): at for n, at in found.items()})

    def read_commits(self, *, stable: bool = True) -> dict[int, CommitWithMetadata]:
        """The original group's commits; not `stable`: without what is undecided."""
        group, topic, numbers = self.recovery.group, self.recovery.topic, range(self.partitions)
        try:
            return read_all(self.admin, group, topic, list(numbers), Deadline(60.0), stable=stable)
        except Refused:
            self.check_topic()  # commits go with their topic: then that is what to say
            raise

    def read_positions(self, *, stable: bool = True) -> dict[int, CommitWithMetadata]:
        """The relays' own positions and counters, of partitions of which something was relayed."""
        return read_positions(
            self.admin,
            self.recovery_group,
            self.recovery.topic,
            list(range(self.partitions)),
            self.recovery.id,
            Deadline(60.0),
            stable=stable,
        )

    def check_topic(self) -> None:
        """The source topic is the one of the plan; raises PlanStale where it is not."""
        refuse_other_source(self.admin, self.plan, self.recovery.id)

    def check_copy(self) -> None:
        """The temporary topic, once it was made, is that one; raises PlanStale where it is not."""
        known = self.temporary
        if known is not None and known.topic_id is not None and known.deleted_at is None:
            refuse_other_copy(self.admin, self.plan, self.recovery.id, known.topic_id)

    def has_copy(self) -> bool:
        """Whether the temporary topic is there, and the one that was made.

        A broker that is behind may not know it for a moment: it must be gone for a while.
        """
        limit = Deadline(_ABSENT_SECONDS)
        while True:
            try:
                self.check_copy()
                return self.has_temporary
            except PlanStale:
                if limit.expired:
                    return False
            time.sleep(_PAUSE_SECONDS)

    def has_source(self) -> bool:
        """Whether the source is still the topic that was planned, perhaps with more partitions."""
        return is_source(self.admin, self.plan)
