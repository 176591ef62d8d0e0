"""What the steps of an injection work with: staged messages, Spark, the gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import Refused, VerificationFailed
from backlogctl.formats import format_bytes
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.kafka.room import measure_room
from backlogctl.manifests import Manifest, read_manifest
from backlogctl.monitoring.watch.disks import WINDOW, estimate_growth, make_readings
from backlogctl.replay.engine.kind import RunContext, Workspace
from backlogctl.replay.engine.plan import PlannedDisk, find_identity
from backlogctl.replay.injection.plan import READ_BACK, InjectionPlan
from backlogctl.replay.present.layout import Bar
from backlogctl.spark_backfill.injection.job import measure_chunk
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.values import Gap, GapState, LedgerEvent, RecoveryState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlogctl.ledger import Ledger
    from backlogctl.ledger.chunks import ChunkRecord


# Whether the brokers' disks have space for what is to be put back.

_SECONDS = 10.0


def check_room(
    workspace: Workspace, plan: InjectionPlan, manifest: Manifest
) -> tuple[PlannedDisk, list[str]]:
    """What is needed of the tightest disk, what it has, how it fills meanwhile; and what an
    approver is warned of: the run looks again before each wave, and waits where it gets tight.

    A rehearsal's topic is not there yet: its replicas are taken to lie as the stream's do.
    """
    stream = workspace.config.stream(plan.stream)
    topic = plan.topic if plan.target_id is None else plan.target_topic
    found = read_log_dirs(workspace.properties(stream), topic, Deadline(_SECONDS))
    readings = workspace.ledger.disks
    readings.add(make_readings(stream.cluster, found, topic))
    room = measure_room(found, plan.limits.floor)
    wanted = {
        slot: sum(map(measure_chunk, chunks)) for slot, chunks in manifest.list_slots().items()
    }
    disk = room.find_tightest(wanted)
    if disk is None:
        told = f"whether there is room is unknown: {room.unknown}"
        return PlannedDisk(needed=None, usable=None, enough=None, told=told), [told]
    needed, took = room.count_need(disk, wanted), plan.estimate_seconds()
    recent = readings.history(stream.cluster, utc_now() - WINDOW)
    grown, growth = estimate_growth(recent, disk.broker, took)
    enough: bool | None = needed + (grown or 0) <= disk.spare
    told = f"at most {format_bytes(needed)} are needed, and {disk}; {growth}"
    warnings = []
    if not enough:
        warnings.append(
            f"the messages may take {format_bytes(needed)} where {disk}: the run waits before "
            "that is used up, and goes on when there is room"
        )
    if enough and room.unknown:
        enough, told = None, f"{told}; {room.unknown}"
    if enough and grown is None:
        enough = None  # it is, as long as nobody else writes
    return PlannedDisk(needed=needed, usable=disk.usable, enough=enough, told=told), warnings


@dataclass
class InjectionContext(RunContext[InjectionPlan]):
    """One run of one recovery that sends messages."""

    ledger_topic: LedgerSnapshot | None = None

    @cached_property
    def bar(self) -> Bar:
        """How many messages are put back."""
        return Bar(self.console, self.plan.message_count)

    @cached_property
    def target_id(self) -> str:
        """The id of the topic that gets the messages.

        Raises:
            Refused: the run has not made it yet.
        """
        target = self.plan.target
        if target is None:
            return self.plan.topic_id
        if target.topic_id is not None:
            return target.topic_id
        made = self.workspace.ledger.temporary_topics.get(self.recovery.id)
        if made is None or made.topic_id is None:
            raise Refused(
                "it is not made yet",
                subject=f"topic {target.topic}",
                hint="the run makes it",
            )
        return made.topic_id

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """Client properties of the stream's cluster, secrets revealed."""
        return self.workspace.properties(self.stream)

    @property
    def directory(self) -> Path:
        """Where the staged messages lie."""
        return self.workspace.staging_of(self.recovery.id)

    @cached_property
    def manifest(self) -> Manifest:
        """The staged messages, exactly those of the plan.

        Raises:
            StagingError: they are missing or changed.
        """
        return read_manifest(self.directory, self.plan.manifest_sha256)

    @cached_property
    def spark(self) -> SparkSession:
        """Spark, started at the first use."""
        from backlogctl.spark_backfill.spark.kafka_options import make_java_options
        from backlogctl.spark_backfill.spark.session import open_session

        make_java_options(self.properties)  # refuses what it could not use
        self.bar.say("starting Spark")
        config, name = self.workspace.config, f"backlogctl run {self.recovery.id}"
        return open_session(config.spark, name, staging=config.staging.dir)

    def open(self) -> None:
        """Shows the bar."""
        self.bar.start()

    def close(self, error: BaseException | None) -> None:
        """Leaves the bar as it is."""
        self.bar.stop()

    def advance_gaps(self, to: GapState, before: Iterable[GapState]) -> None:
        """Moves the recovery's gaps that are in a state of `before`; later ones stay."""
        ledger = self.workspace.ledger
        allowed = set(before)
        ids = [
            gap_id
            for gap_id in ledger.recoveries.gap_ids(self.recovery.id)
            if ledger.gaps.get(gap_id).state in allowed
        ]
        if ids:
            ledger.gaps.advance(ids, to, recovery_id=self.recovery.id, actor=str(find_identity()))


def find_misread(ledger: Ledger, plan: InjectionPlan, gap_ids: Iterable[str]) -> list[str]:
    """The cancelled recoveries of the same gaps that have sent messages which did not read back as
    staged. None of which all that was sent is lost again: that is sent anew."""
    gaps, lost = set(gap_ids), ledger.gaps.list(plan.stream)
    others = [
        one.id
        for one in ledger.recoveries.list(plan.stream, [RecoveryState.CANCELLED])
        if one.plan["topic_id"] == plan.topic_id
        and gaps.intersection(ledger.recoveries.gap_ids(one.id))
    ]
    return [
        one
        for one in others
        if _is_misread(ledger.events.list(one))
        and not all(_is_within(chunk, lost) for chunk in ledger.chunks.list(one) if chunk.sent)
    ]


def _is_misread(events: Sequence[LedgerEvent]) -> bool:
    """Whether what it sent itself did not read back: the newest reading of all of it decides."""
    readings = [event.detail["exact"] for event in events if event.action == READ_BACK]
    if readings:
        return not readings[-1]
    return any(event.detail.get("code") == VerificationFailed.code for event in events)


def _is_within(chunk: ChunkRecord, gaps: Iterable[Gap]) -> bool:
    first, last = chunk.first_offset, chunk.last_offset
    if first is None or last is None:
        return False
    return any(
        gap.partition == chunk.chunk.slot
        and gap.start is not None
        and gap.end is not None
        and gap.start <= first
        and last < gap.end
        for gap in gaps
    )
