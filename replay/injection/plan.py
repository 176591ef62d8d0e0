"""What every plan that sends messages has: what is staged, where it goes, and the brakes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from backlogctl.config import Config, Stream, StreamLimits
from backlogctl.formats import format_bytes, format_duration, format_moment, format_plural
from backlogctl.replay.engine.plan import Plan, PlannedDisk, PlanPart
from backlogctl.replay.engine.values import Fact, Tone
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.values import Quota

if TYPE_CHECKING:
    from backlogctl.kafka.rights import Right

# The word that lets a plan go on where the Kafka ledger cannot be trusted.

ALLOW_LEDGER = "ledger"


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


READ_BACK = "read back"  # a line of the record: all that was sent was read


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
        first_time, last_time: of the messages, in the normal form; None where they have none.
        pace: messages a second of the stream's last recovery; None where that is not known.
        disk: whether the brokers' disks have room for all of it; None where it was not asked.
        quota: what brokers grant for writing, as it was planned; None where no share of it was
            asked for.
        size: bytes that the staged messages take at most.
    """

    manifest_sha256: str
    ledger_topic: LedgerSnapshot | None
    transactional_prefix: str | None = None
    topic_end_offsets: Mapping[int, int]
    deliver: str | None = None
    limits: StreamLimits
    target: PlannedTarget | None = None
    first_time: str | None = None
    last_time: str | None = None
    pace: float | None = None
    disk: PlannedDisk | None = None
    quota: Quota | None = None
    size: int = 0

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
    def sends_to(self) -> tuple[To, str]:
        """The topic that gets the messages, and which one that is."""
        return (To.TOPIC if self.target is None else self.target.to), self.target_topic

    def estimate_seconds(self) -> float | None:
        """How long the work takes, without waits; None where nothing tells how fast it goes."""
        speeds = (self.limits.messages_per_second, self.pace)
        seconds = [self.message_count / speed for speed in speeds if speed]
        if self.quota and self.quota.rate and (share := self.limits.share):
            seconds.append(self.size / (share * self.quota.rate))
        return max(1.0, *seconds) if seconds else None

    @property
    def delivers(self) -> bool:
        """Whether the stream's group gets the messages."""
        return self.target is None


# What every plan that sends messages says in the same words.


def format_staged(chunks: int, size: int) -> str:
    """`3 chunks, 1.2 MB`."""
    return f"{format_plural(chunks, 'chunk')}, {format_bytes(size)}"


def list_terms(plan: InjectionPlan) -> tuple[Fact, ...]:
    """Which times the messages are of, when they are sent, how long that takes, and what can be
    taken back."""
    facts = []
    if plan.first_time is not None and plan.last_time is not None:
        first, last = map(format_moment, (plan.first_time, plan.last_time))
        facts.append(Fact("times", f"of the messages: {first} to {last}"))
    facts.append(Fact("put back", format_schedule(plan), decides=True))
    if plan.disk is not None:
        tone: Tone = "" if plan.disk.enough else "warn" if plan.disk.enough is None else "bad"
        facts.append(Fact("disk", plan.disk.told, tone, decides=True))
    stays = "what is put back cannot be taken out of the topic again"
    if plan.target is not None and plan.target.to is To.REHEARSAL:
        stays = "its topic is deleted, with all that it got"
    facts.append(Fact("undo", f"`backlogctl cancel` stops it at any time; {stays}", decides=True))
    return tuple(facts)


def format_schedule(plan: InjectionPlan) -> str:
    """The window and the brakes, and about how long the work takes."""
    brakes = []
    if plan.off_peak is not None:
        brakes.append(f"{plan.off_peak}, as many nights as needed")
    rate, pace = plan.limits.messages_per_second, plan.pace
    seconds = plan.estimate_seconds()
    took = "" if seconds is None else format_duration(seconds)
    share, quota = plan.limits.share, plan.quota
    if share is not None:
        unasked = "at most a share of the quota, which the run asks for (`limits.quota_share`)"
        brakes.append(quota.describe(share) if quota else unasked)
    if rate:
        brakes.append(f"at most {rate:,} messages/s: about {took} of work")
    elif share is not None and quota and quota.rate:
        brakes.append(f"about {took} of work")
    elif pace:
        brakes.append(f"about {took} of work, at {pace:,.0f} messages/s as the last recovery went")
    if plan.delivers and (lag := plan.limits.max_live_lag):
        brakes.append(f"waits while the live group is more than {lag:,} behind")
    told = ", ".join(brakes) or "at any time, as fast as it goes"
    return told if seconds else f"{told}; how long that takes is not known before the first run"


# What a recovery that sends messages must be allowed on the cluster.


def list_sending(
    config: Config,
    stream: Stream,
    recovery_id: str,
    plan: InjectionPlan | None,
    sends_to: tuple[To, str],
    letters: str | None = None,
) -> tuple[Right, ...]:
    """See, read dead letters, and write to the target and to the Kafka ledger, both in transactions
    of our prefix.

    Args:
        plan: one that was made on a Kafka ledger needs no right to create that.
        sends_to: the topic that gets the messages, and which one that is.
        letters: the topic of dead letters that it sends.
    """
    from backlogctl.replay.observe.rights import select_rights

    ledger = config.kafka_ledger
    known = plan.ledger_topic if plan else None
    to, target = sends_to
    # A rehearsal's topic is not there yet: its rights come with its prefix.
    puts = {To.TOPIC: ["put"], To.OTHER: ["put", "other"], To.REHEARSAL: ["rehearse"]}
    parts = ["see", "send", *puts[to]]
    if letters is not None:
        parts += ["letters"]
    if known is None:
        parts += ["create"]
    return select_rights(
        *(" ".join(parts), stream, recovery_id),
        prefix=(plan and plan.transactional_prefix) or ledger.transactional_prefix,
        ledger=known.topic if known else ledger.topic,
        target=target,
        source=letters or "",
    )


def list_possible(config: Config, stream: Stream, recovery_id: str) -> tuple[Right, ...]:
    """What a recovery that is not planned yet may need: a rehearsal too."""
    ledger = config.kafka_ledger
    from backlogctl.replay.observe.rights import select_rights

    return select_rights(
        *("see put send create rehearse", stream, recovery_id, "rehearse"),
        prefix=ledger.transactional_prefix,
        ledger=ledger.topic,
        target=stream.topic,
    )
