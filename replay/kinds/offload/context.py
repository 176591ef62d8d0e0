"""What the steps of an offload work with: the fence, the archive, Spark, the group."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure, LeaseHeld, PlanStale, Refused
from backlogctl.fanout.disk import FreedTally, PartitionBacklog, find_local_part
from backlogctl.fanout.segments import (
    ROLL_MS,
    SEGMENT_MS,
    end_segments,
    give_segment_ms_back,
    lower_segment_ms,
    name_roll_transactional_id,
    read_segment_ms,
)
from backlogctl.formats import format_plural
from backlogctl.kafka.admin import (
    describe_topic,
    list_offsets,
    read_group_state,
)
from backlogctl.kafka.errors import GroupActive
from backlogctl.kafka.groups import LogTruncated, read_standing
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.ledger.archives import ArchiveRecord
from backlogctl.monitoring.doctor.facts import read_brokers
from backlogctl.replay.consumers.fleet import StoppingContext
from backlogctl.replay.consumers.stopped_group import put_back_commits
from backlogctl.replay.engine.archives import open_spark
from backlogctl.replay.kinds.offload.describe import describe_freeing, list_numbers
from backlogctl.replay.kinds.offload.plan import EXPIRED, FORWARD, OffloadPlan, PlannedFreeing
from backlogctl.replay.kinds.offload.planning import read_disks
from backlogctl.replay.observe.stream import note_stream
from backlogctl.replay.present.layout import Bar
from backlogctl.values import OffsetRange
from backlogctl_delivery.crashpoints import reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Whether an archive's files are there with their sizes: cheap, and asked right before a deletion.
#
# Spark, which reads object stores, is started only for those.


def check_files(context: OffloadContext, record: ArchiveRecord) -> None:
    """The manifest is the recorded one, and each of its files is there with its size.

    Raises:
        StagingError: names what is missing or changed.
    """
    from backlogctl.spark_backfill.archive.place import ArchivePlace
    from backlogctl.spark_backfill.archive.verification import check_place, read_manifest_of

    place = ArchivePlace(lambda: context.spark, record.location)
    manifest = read_manifest_of(place, record.manifest_sha256)
    check_place(place, manifest, rehash=False).require_good(place.location)


FENCED = "the fence is set"
PLAIN = "what was not written in transactions"
SEGMENTS_LOWERED, SEGMENTS_BACK = "segment.ms is lowered", "segment.ms is given back"
SEGMENTS_STAY = "the topic's segment.ms could not be given back"
BYTES_BEFORE = "bytes before the deletion"
ASK_SECONDS = 60.0
# Beyond the brokers' own interval.
FREED_SECONDS = 20.0
_CHECK_MS = 300_000  # Kafka's `log.retention.check.interval.ms` where it is not known
_POLL_SECONDS = 0.5


@dataclass
class OffloadContext(StoppingContext[OffloadPlan]):
    """One run of one offload."""

    _stack: ExitStack = field(default_factory=ExitStack)
    _owns_spark: bool = False

    def open(self) -> None:
        """Ctrl-C stops between two batches."""
        self._stack.enter_context(self.interrupts.deferred())

    def close(self, error: BaseException | None) -> None:
        """Ends the bar, and Spark where this run started it."""
        try:
            if "bar" in self.__dict__:
                self.bar.stop()
            self.end_spark()
        finally:
            self._stack.close()

    # The fence.

    @property
    def fence(self) -> dict[int, int]:
        """By partition, the last stable offset when the consumers were stopped: nothing at or
        above it is archived or deleted. Empty until it is set; then it never changes."""
        for event in self.workspace.ledger.events.list(self.recovery.id):
            if event.action == FENCED:
                return {int(number): at for number, at in event.detail["fence"].items()}
        return {}

    @property
    def targets(self) -> dict[int, int]:
        """Where the group goes on: at the fence, or behind it where it was already."""
        begun = self.begun
        return {number: max(begun[number], at) for number, at in self.fence.items()}

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """What is archived, or discarded: what the group has not read below the fence."""
        begun, fence = self.begun, self.fence
        pairs = ((number, begun[number], at) for number, at in sorted(fence.items()))
        return tuple(OffsetRange(number, start, end) for number, start, end in pairs if start < end)

    @property
    def goes_forward(self) -> bool:
        """Whether it is past what can be taken back."""
        events = self.workspace.ledger.events.list(self.recovery.id)
        return any(event.action == FORWARD for event in events)

    def check_topic(self) -> None:
        """Raises PlanStale where the topic is not the one of the plan. Once it goes forward,
        partitions that were added stop nothing: no step touches them."""
        if not (self.goes_forward and self.has_source()):
            super().check_topic()

    def find_left_at(self) -> dict[int, int]:
        """Where it was moved to; until that is done, where its consumers were stopped."""
        return self.targets if self.is_complete("move_group") else self.begun

    def list_gone(self) -> tuple[OffsetRange, ...]:
        """What retention removed in front of the archive, as runs have seen it."""
        return tuple(
            OffsetRange(event.detail["partition"], event.detail["start"], event.detail["end"])
            for event in self.workspace.ledger.events.list(self.recovery.id)
            if event.action == EXPIRED
        )

    # The group.

    def require_still(self, allowed: Mapping[int, frozenset[int]]) -> None:
        """The group has no members, and its commits are where they may be.

        Args:
            allowed: by partition, the offsets that are ours.

        Raises:
            GroupActive: names its members.
            PlanStale: somebody else set or committed its offsets (faults 66, 69).
        """
        group, topic = self.recovery.group, self.recovery.topic
        state = read_group_state(self.admin, group, Deadline(ASK_SECONDS))
        if state.is_active:
            names = ", ".join(str(member) for member in state.members) or f"it is {state.state}"
            raise GroupActive(
                f"somebody started consumers of it while they were to be stopped: {names}",
                subject=f"group {group}",
                hint="stop them, then run it again",
            )
        put_back_commits(self)
        commits = self.read_commits()
        moved = {n: at.offset for n, at in commits.items() if at.offset not in allowed[n]}
        if moved:
            told = ", ".join(
                f"partition {n} from {min(allowed[n]):,} to {at:,}"
                + ("" if commits[n].epoch is None else " (by a consumer)")
                for n, at in sorted(moved.items())
            )
            raise PlanStale(
                f"somebody moved its committed offsets while its consumers were stopped: {told}",
                subject=f"group {group} on topic {topic}",
                hint="find out who; a cancel "
                + (
                    "finishes what can be and starts the consumers again"
                    if self.goes_forward
                    else "starts the consumers again and throws the archive away; then plan again"
                ),
            )

    def require_stopped_there(self) -> None:
        """The group is where its consumers were stopped, and nobody is in it."""
        self.require_still({number: frozenset((at,)) for number, at in self.begun.items()})

    def require_log(self) -> None:
        """The logs reach to the fence: what was read, and archived, is what is there.

        Raises:
            PlanStale: a log was cut back, by an unclean leader election.
            EndsBehind: whether it was is unknown yet.
        """
        group, topic, numbers = self.recovery.group, self.recovery.topic, range(self.partitions)
        limit = Deadline(ASK_SECONDS)
        try:
            read_standing(self.admin, group, topic, numbers, limit, written=self.fence)
        except LogTruncated as cut:
            raise PlanStale(
                f"{cut.message}; nothing was moved or deleted",
                subject=cut.subject,
                hint="offsets below the fence may be given to other messages now. Look at the "
                "brokers' logs for a truncation; a cancel starts the consumers again and deletes "
                "nothing",
            ) from cut

    def read_lows(self) -> dict[int, int]:
        """Where the logs begin."""
        topic, numbers = self.recovery.topic, range(self.partitions)
        return list_offsets(self.admin, topic, numbers, "earliest", deadline=Deadline(ASK_SECONDS))

    def note_sample(self) -> None:
        """A sample of the stream: what the group read up to its stop, and the move to the fence,
        are told apart by it. One that fails decides nothing."""
        with suppress(BacklogError):
            note_stream(self.workspace, self.stream)

    # The archive.

    @property
    def location(self) -> str:
        """The archive's place."""
        if self.plan.place is None:
            raise Refused("it archives nothing", subject=f"recovery {self.recovery.id}")
        return self.plan.place.location

    @property
    def archive(self) -> ArchiveRecord | None:
        """The archive that is whole and on record; None before, and where there is none."""
        return self.workspace.ledger.archives.find(self.recovery.id)

    def require_archive(self) -> None:
        """What is to be deleted is archived, on record, and its files are there.

        Raises:
            Refused: it is not on record.
            StagingError: files are missing or have other sizes.
        """
        if self.plan.place is None:
            return

        record = self.archive
        if record is None:
            raise Refused(
                "its archive is not on record, so nothing is deleted",
                subject=f"recovery {self.recovery.id}",
                hint="run it again: it goes on with it",
            )
        check_files(self, record)

    @cached_property
    def bar(self) -> Bar:
        """How many messages are archived."""
        return Bar(self.console, sum(item.count for item in self.ranges))

    @cached_property
    def spark(self) -> SparkSession:
        """Spark, started at the first use."""
        from pyspark import SparkContext

        from backlogctl.spark_backfill.spark.kafka_options import make_java_options

        make_java_options(self.properties)  # refuses what it could not use
        self._owns_spark = SparkContext._active_spark_context is None
        name = f"backlogctl run {self.recovery.id}"
        return open_spark(self.workspace, self.location, name)

    def end_spark(self) -> None:
        """Spark is not held longer than it is needed; one that others use stays."""
        found = self.__dict__.pop("spark", None)
        if found is not None and self._owns_spark:
            found.stop()

    # The segments.

    @property
    def plain(self) -> Mapping[int, int] | None:
        """Up to where partitions were known not to be written in transactions, before the offload
        wrote its own marker; None until that is on record."""
        for event in self.workspace.ledger.events.list(self.recovery.id):
            if event.action == PLAIN:
                return {int(number): at for number, at in event.detail["ends"].items()}
        return None

    def end_last_segments(self) -> Mapping[int, int]:
        """Ends the last segment of each partition, so that all below the fence is freed; the topic
        has its own `segment.ms` again when this returns.

        Returns:
            Of partitions where that is sure, the offset to cut at, or behind.

        Raises:
            ClusterUnreachable, KafkaFailure: also where the setting could not be given back: then
                the next run, or a cancel, does it.
        """
        topic = self.recovery.topic
        try:
            self._lower_segment_ms()
            prefix = self.workspace.config.kafka_ledger.transactional_prefix
            ended = end_segments(
                self.properties,
                self.admin,
                topic,
                range(self.partitions),
                name_roll_transactional_id(prefix, topic),
                look=self.look,
                say=self.say,
            )
            reach("p5.3.ended")
        except LeaseHeld:
            raise  # another runner is at it
        except BacklogError as error:
            with suppress(BacklogError):
                self.give_segment_ms_back()
            if isinstance(error, KafkaFailure) and not error.retryable:
                self.say(f"{error.message}: the last segments are not ended")
                return {}
            raise
        self.give_segment_ms_back()
        return ended

    def _lower_segment_ms(self) -> None:
        in_force, own = read_segment_ms(self.admin, self.recovery.topic)
        if in_force > ROLL_MS:
            self.record(SEGMENTS_LOWERED, old=own)  # first: a run may be killed at any moment
            self.say(
                f"ending the last segments: {SEGMENT_MS} of topic {self.recovery.topic} is "
                f"{ROLL_MS} for some seconds, and was {'unset' if own is None else own}"
            )
            lower_segment_ms(self.admin, self.recovery.topic)
            reach("p5.3.lowered")

    def give_segment_ms_back(self) -> None:
        """As it was before a run lowered it, whichever run that was.

        Raises:
            ClusterUnreachable, KafkaFailure: it stays on record; call again.
        """
        changes = (SEGMENTS_LOWERED, SEGMENTS_BACK)
        events = self.workspace.ledger.events.list(self.recovery.id)
        last = next((e for e in reversed(events) if e.action in changes), None)
        if last is None or last.action == SEGMENTS_BACK:
            return
        topic, old = self.recovery.topic, last.detail["old"]
        if left := give_segment_ms_back(self.admin, topic, self.plan.topic_id, old):
            self.say(left)
        self.record(SEGMENTS_BACK)

    # The disks.

    def note_bytes(self, partitions: Collection[int]) -> None:
        """What the replicas take that get smaller now, the first time."""
        events = self.workspace.ledger.events.list(self.recovery.id)
        if any(event.action == BYTES_BEFORE for event in events):
            return
        found = read_disks(self.workspace, self.stream)
        replicas: dict[str, dict[str, int]] = {}
        for (broker, partition), size in found.replica_bytes.items():
            if partition in partitions and size:
                replicas.setdefault(str(broker), {})[str(partition)] = size
        self.record(BYTES_BEFORE, replicas=replicas, why=found.reason)

    def estimate_freed_now(
        self, ended: Collection[int], ends: Mapping[int, int]
    ) -> PlannedFreeing | None:
        """What a deletion up to these ends frees; None where it is all, since each partition's
        last segment has ended."""
        if not (left := set(ends) - set(ended)):
            return None
        topic, lows, limit = self.recovery.topic, self.read_lows(), Deadline(ASK_SECONDS)
        highs = list_offsets(self.admin, topic, ends, "latest", deadline=limit)
        found, log_dirs = (
            describe_topic(self.admin, topic, limit),
            read_disks(self.workspace, self.stream),
        )
        return describe_freeing(
            find_local_part(log_dirs, self.properties, found, limit),
            found,
            [PartitionBacklog(n, at - lows[n], lows[n], highs[n]) for n, at in ends.items()],
            ended,
            f"those of partitions {list_numbers(left)} were not seen to end",
        )

    def measure_freed(self) -> int | None:
        """Bytes that brokers have freed since then, at least; None where that is unknown. Waits
        until each replica got smaller, or brokers have looked for what is to be deleted."""
        events = self.workspace.ledger.events.list(self.recovery.id)
        before = next((e.detail for e in events if e.action == BYTES_BEFORE), None)
        if before is None:
            return None
        sizes = {
            (int(broker), int(partition)): size
            for broker, found in before["replicas"].items()
            for partition, size in found.items()
        }
        tally, limit = FreedTally(sizes), Deadline(self._find_check_seconds() + FREED_SECONDS)
        is_known, reason = False, before["why"]
        while sizes:
            now = read_log_dirs(self.properties, self.recovery.topic, Deadline(ASK_SECONDS))
            is_known, reason = is_known or now.brokers is not None, now.reason
            tally.note(now.replica_bytes)
            if tally.is_everywhere or limit.expired:
                break
            self.look()
            time.sleep(_POLL_SECONDS)
        if not is_known:
            self.say(f"how much was freed is unknown: {reason or 'no broker told its size'}")
            return None
        if tally.is_hidden:
            self.say("how much was freed is unknown: producers have written more than that since")
            return None
        return tally.freed

    def _find_check_seconds(self) -> float:
        """How often brokers look for segments to delete."""
        try:
            brokers = read_brokers(self.admin, Deadline(ASK_SECONDS))
            checks = brokers.read_numbers("log.retention.check.interval.ms")
        except KafkaFailure:
            checks = []
        return max(checks, default=_CHECK_MS) / 1000

    def say_range(self) -> str:
        """`1,000 offsets of 3 partitions`."""
        ranges = self.ranges
        total = sum(item.count for item in ranges)
        return f"{format_plural(total, 'offset')} of {format_plural(len(ranges), 'partition')}"
