"""Both topics of an expansion and how far it has come: what plan, ledger and brokers say."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from backlog.clock import Deadline
from backlog.errors import PlanStale
from backlog.kafka.admin import committed_offsets
from backlog.kafka.standing import read_standing
from backlog.ledger import TemporaryTopic
from fanout.decided import find_undecided
from fanout.relay.commits import CommitWithMetadata, read_positions
from fanout.unread import find_unread
from replay.around.stopping import StoppingContext
from replay.kinds.expand.copies import refuse_other_copy
from replay.kinds.expand.plan import ExpandPlan

Answer = TypeVar("Answer")

ASK_SECONDS = 10.0  # then it is said that the brokers are away
_ABSENT_SECONDS = 5.0
_PAUSE_SECONDS = 0.3


@dataclass
class ExpandTopics(StoppingContext[ExpandPlan]):
    """What the steps of an expansion ask; nothing here changes anything but the record."""

    @property
    def again(self) -> str:
        """What to do where the source is another topic now."""
        return (
            f"`backlogctl cancel {self.recovery.id}` drains what is copied and restores the "
            "layout; then plan again"
        )

    @property
    def starts(self) -> Mapping[int, int]:
        """Where the relay of a partition begins that has no commit."""
        return {row.partition: row.start for row in self.plan.partitions}

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

    def is_complete(self, step: str) -> bool:
        """From the ledger: a crash does not make a step start anew."""
        if step == "drain" and not self.is_complete("cut_over"):
            # Between them the backlog may have grown again: nobody has read since.
            return False
        return super().is_complete(step)

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
