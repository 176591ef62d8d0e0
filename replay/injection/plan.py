"""What every plan that sends messages has: what is staged, where it goes, and the brakes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from enum import StrEnum

from backlog.config import StreamLimits
from replay.recovery.plan import Plan, PlanPart
from spark_backfill.injection.snapshots import LedgerSnapshot


class To(StrEnum):
    """Where messages are sent."""

    TOPIC = "topic"  # the stream's own
    OTHER = "other"  # another topic, by name
    REHEARSAL = "rehearsal"  # a side topic that the run makes, and that expires


class PlannedTarget(PlanPart):
    """A topic other than the stream's own. The run makes one whose `topic_id` is None, with
    `partitions`, and keeps its messages for `keep_ms`."""

    to: To
    topic: str
    topic_id: str | None
    partitions: int
    keep_ms: int | None = None


class InjectionPlan(Plan):
    """A plan whose messages are staged, and sent by way of the Kafka ledger.

    Attributes:
        manifest_sha256: of the manifest that names every staged chunk.
        ledger_topic: the Kafka ledger as it was; None where the first run makes it.
        topic_end_offsets: of the target: high watermark by partition: what is injected lies behind
            it.
        transactional_prefix: of the slots' transactional.id; None takes the configuration's.
        deliver: `topic` where the stream says by name that other groups get the messages too.
        target: None where they go to the stream's own topic.
    """

    manifest_sha256: str
    ledger_topic: LedgerSnapshot | None
    transactional_prefix: str | None = None
    topic_end_offsets: Mapping[int, int]
    deliver: str | None = None
    limits: StreamLimits
    target: PlannedTarget | None = None

    def closes(self, gap_id: str) -> bool:
        """Whether it closes a gap that it was planned for, so that it takes it."""
        return True

    @property
    @abstractmethod
    def slots(self) -> tuple[int, ...]:
        """The partitions that get messages: one slot each."""

    @property
    @abstractmethod
    def message_count(self) -> int:
        """Messages that are staged."""

    @property
    @abstractmethod
    def quarantined(self) -> int:
        """What could not be staged."""

    @property
    def target_topic(self) -> str:
        """The topic that gets the messages."""
        return self.topic if self.target is None else self.target.topic

    @property
    def target_id(self) -> str | None:
        """The id of that topic; None where the run makes it."""
        return self.topic_id if self.target is None else self.target.topic_id

    @property
    def target_partitions(self) -> int:
        """How many partitions it has."""
        return self.partition_count if self.target is None else self.target.partitions

    @property
    def delivers(self) -> bool:
        """Whether the stream's group gets the messages."""
        return self.target is None
