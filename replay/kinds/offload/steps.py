"""Step 1: topic, configuration, place and other groups are as the plan has them (protocol P5.1)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from backlogctl.clock import Deadline
from backlogctl.errors import PlanStale, VerificationFailed
from backlogctl.formats import format_bytes, format_plural
from backlogctl.kafka.admin import (
    delete_records,
    describe_topic,
    list_offsets,
    list_topic_readers,
    set_group_offsets,
)
from backlogctl.kafka.groups import read_standing
from backlogctl.replay.consumers.fleet import (
    CONSUMERS_MISSING,
    await_movement,
    find_begin,
    say_by_hand,
)
from backlogctl.replay.consumers.stopped_group import put_back_commits
from backlogctl.replay.engine.archives import name_owner
from backlogctl.replay.engine.brakes import HELD, PausedBecause, check_requests
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.kinds.offload.context import (
    ASK_SECONDS,
    FENCED,
    SEGMENTS_STAY,
    OffloadContext,
)
from backlogctl.replay.kinds.offload.gaps import (
    note_plain,
    prepare_group,
    record_discarded,
    record_expired,
    refuse_skipped,
    stage_discarded,
)
from backlogctl.replay.kinds.offload.plan import ALLOW_NOTHING, ALLOW_UNKNOWN, FORWARD
from backlogctl.replay.kinds.offload.planning import (
    FINGERPRINT,
    find_cut_groups,
    look_at_place,
    read_disks,
    refuse_cutting,
    refuse_freeing_nothing,
    refuse_losing,
    refuse_undeletable,
    refuse_unfit,
)
from backlogctl.values import OffsetRange, Step
from backlogctl_delivery.crashpoints import reach

if TYPE_CHECKING:
    from backlogctl.archive_manifest import ArchiveManifest
    from backlogctl.spark_backfill.archive.job import ArchiveJob, ArchiveProgress

_SECONDS = 60.0


class CheckSource(Step[OffloadContext]):
    """Looks at everything the plan was made on."""

    name = "check_source"

    def validate(self, context: OffloadContext) -> None:
        """Faults 15, 16, 60; the configuration; before anybody is stopped also the archive's place
        and the other groups.

        Raises:
            PlanStale: something is no longer what the plan was made on.
            Refused: a guard says no.
        """
        plan = context.plan
        context.require_planned(FINGERPRINT)
        limit = Deadline(_SECONDS)
        refuse_undeletable(describe_topic(context.admin, plan.topic, limit))
        if not context.goes_forward:
            refuse_losing(context.stream, discard=plan.place is None, allowed=plan.allowed)
        if not context.was_started("stop_consumers"):
            _require_fitting(context, limit)

    def start(self, context: OffloadContext) -> None:
        """Spark starts, and reaches the archive's place, before anybody is stopped for it.

        Raises:
            SparkFailure: it does not start.
            ForeignArchive: another recovery's archive lies there.
            StagingError: the place cannot be reached.
        """
        context.give_segment_ms_back()  # a run may have been killed before it did
        if context.plan.place is None or context.was_started("stop_consumers"):
            return
        from backlogctl.spark_backfill.archive.place import ArchivePlace
        from backlogctl.spark_backfill.archive.verification import refuse_foreign

        context.say("starting Spark")
        place = ArchivePlace(context.spark, context.location)
        refuse_foreign(place, place.list_files(), name_owner(context.recovery))


def _require_fitting(context: OffloadContext, limit: Deadline) -> None:
    """Between plan and run disks fill, and other groups come."""
    plan, topic = context.plan, context.plan.topic
    numbers = range(plan.partition_count)
    ends = list_offsets(context.admin, topic, numbers, "latest", "read_committed", limit)
    readers = list_topic_readers(context.admin, topic, limit)
    cut = find_cut_groups(readers, plan.group, context.read_lows(), ends)
    place = plan.place
    if place is not None:
        log_dirs = read_disks(context.workspace, context.stream)
        place = look_at_place(place.location, plan.bytes, log_dirs)
    now = plan.model_copy(
        update={
            "cut_groups": cut,
            "others_unknown": readers.say_unknown(plan.group),
            "place": place,
        }
    )
    refuse_unfit(now)


# Step 2: the stream's own consumers are stopped, really (protocol P5.2).


class StopConsumers(Step[OffloadContext]):
    """Stops them through the launcher, and waits until the group says so too."""

    name = "stop_consumers"

    def validate(self, context: OffloadContext) -> None:
        """They can be stopped, as far as can be seen.

        Raises:
            BacklogError: they cannot; or the configuration no longer says how.
        """
        if not context.was_started(self.name):
            context.launcher.check(context.originals, None, 0)

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
        put_back_commits(context)
        noted = context.find_stopped_at()
        begun = {n: find_begin(noted[n], commit) for n, commit in context.read_commits().items()}
        context.details[self.name] = {"committed": {str(n): at for n, at in begun.items()}}


# Step 3: the fence, each partition's last stable offset, set once (protocol P5.3).


class Fence(Step[OffloadContext]):
    """Never above the last stable offset: an open transaction would lose its messages."""

    name = "fence"

    def start(self, context: OffloadContext) -> None:
        """Puts it on record; a later run goes by what is on record.

        Raises:
            GroupActive, Refused: the group is not where its consumers were stopped.
            EndsBehind, LogTruncated: the ends are not to be trusted.
        """
        context.require_stopped_there()
        if not context.fence:
            group, topic = context.recovery.group, context.recovery.topic
            numbers = range(context.partitions)
            note_plain(context)
            ended = context.end_last_segments()
            limit = Deadline(ASK_SECONDS)
            found = read_standing(context.admin, group, topic, numbers, limit, require_stable=True)
            _refuse_freeing_nothing(context, ended, found.ends)
            fence = {n: min(at, ended.get(n, at)) for n, at in sorted(found.ends.items())}
            context.record(FENCED, fence={str(n): at for n, at in fence.items()})
        # Where the group stopped, for who compares samples: all beyond it is the offload's.
        context.note_sample()
        reach("p5.3.fenced")
        context.say(f"unread below the fence: {context.say_range()}, at most")


def _refuse_freeing_nothing(
    context: OffloadContext, ended: Collection[int], ends: Mapping[int, int]
) -> None:
    """The plan could not know whether the last segments end."""
    freeing = context.estimate_freed_now(ended, ends)
    if freeing is not None:
        context.say(freeing.told)
        refuse_freeing_nothing(
            freeing,
            context.plan.allowed,
            context.plan.topic,
            "run again, it tries again; cancelled, the consumers start again, and a new plan with "
            f"`--allow {ALLOW_NOTHING}` goes on with it",
        )


# Step 4: what is unread below the fence is archived and read back (protocol P5.4).


class Archive(Step[OffloadContext]):
    """Nothing in Kafka is changed."""

    name = "archive"

    def start(self, context: OffloadContext) -> None:
        """Archives, or goes on where an earlier run was stopped; nothing where it is discarded.

        Raises:
            GroupActive, Refused: the group is not where its consumers were stopped.
            PausedBecause: the archive's place is full, or somebody asked.
        """
        context.require_stopped_there()
        if context.plan.place is None:
            context.say("discarding: nothing is archived")
            return
        if context.archive is None:
            manifest = _write(context)
            reach("p5.4.archived")
            context.lease.confirm()
            _note(context, manifest)
        context.end_spark()
        reach("p5.4.recorded")

    def complete(self, context: OffloadContext) -> None:
        """How much it is."""
        archive = context.archive
        if archive is not None:
            context.details[self.name] = {"messages": archive.messages, "bytes": archive.bytes}


def _write(context: OffloadContext) -> ArchiveManifest:
    """The whole archive; goes on behind what retention removes meanwhile."""
    context.bar.say("starting Spark")
    context.bar.start()
    spark = context.spark  # runs already, but where an earlier run was killed
    from backlogctl.spark_backfill.archive.place import ArchiveFull, ArchiveLagging
    from backlogctl.spark_backfill.archive.writing import write_archive

    context.bar.say("archiving")
    while True:
        try:
            found = write_archive(
                spark,
                make_job(context),
                look=lambda: check_requests(context),
                confirm=context.lease.confirm,
                on_progress=lambda progress: _show(context, progress),
            )
        except ArchiveLagging as lagging:
            context.lease.confirm()
            for number, (needed, low) in sorted(lagging.moved.items()):
                end = min(low, context.fence[number])
                record_expired(context, OffsetRange(number, needed, end))
        except ArchiveFull as full:
            raise PausedBecause(
                HELD,
                f"{full.message}: {context.location}; what is archived stays",
                subject=f"recovery {context.recovery.id}",
                hint="free space there, then the next run goes on; a cancel starts the consumers "
                "again and throws the archive away. Until then the original consumers stay "
                "stopped, and nobody reads the topic",
            ) from full
        else:
            context.bar.say("archived and read back")
            context.bar.stop()
            return found


def make_job(context: OffloadContext) -> ArchiveJob:
    """What is to be archived."""
    from backlogctl.spark_backfill.archive.job import ArchiveJob

    plan, recovery = context.plan, context.recovery
    each = None if plan.bytes is None or not plan.unread else plan.bytes / plan.unread
    return ArchiveJob(
        recovery_id=recovery.id,
        stream=recovery.stream,
        cluster=recovery.cluster,
        topic=recovery.topic,
        topic_id=plan.topic_id,
        group=recovery.group,
        partitions=plan.partition_count,
        plan_hash=recovery.plan_hash,
        made_by=str(find_identity()),
        location=context.location,
        ranges=context.ranges,
        properties=context.properties,
        bytes_per_message=each,
        gone=context.list_gone(),
    )


def _show(context: OffloadContext, progress: ArchiveProgress) -> None:
    context.bar.move(progress.offsets, rate=progress.rate or 0.0, eta=progress.eta_seconds)


def _note(context: OffloadContext, manifest: ArchiveManifest) -> None:
    recovery = context.recovery
    context.workspace.ledger.archives.record(
        recovery.id,
        stream=recovery.stream,
        cluster=recovery.cluster,
        topic=recovery.topic,
        topic_id=context.plan.topic_id,
        location=context.location,
        manifest_sha256=manifest.sha256(),
        messages=manifest.count,
        bytes=manifest.bytes,
        ranges=manifest.ranges,
    )
    context.say(
        f"{format_plural(manifest.count, 'message')} are archived and were read back, "
        f"{format_bytes(manifest.bytes)} in {context.location}"
    )


# Step 5: the group goes on at the fence; from here on it goes forward (protocol P5.5).


class MoveGroup(Step[OffloadContext]):
    """Only what is archived and verified, or discarded by name, is passed over."""

    name = "move_group"

    def start(self, context: OffloadContext) -> None:
        """Gaps first, then the offsets, then the gaps wait in the archive.

        Raises:
            GroupActive, Refused: somebody is in the group, or moved it; a log was cut back.
            PlanStale: the topic is another one.
            KafkaFailure: a partition was refused.
            StagingError: the archive is not there as it was recorded.
        """
        context.check_topic()
        context.require_archive()
        context.require_log()
        begun, targets = context.begun, context.targets
        ours = {number: frozenset((at, targets[number])) for number, at in begun.items()}
        context.require_still(ours)
        context.lease.confirm()
        reach("p5.5.confirmed")
        if not context.goes_forward:
            context.decide(FORWARD)
        context.closing = True  # a request to pause or cancel changes nothing now
        reach("p5.5.forward")
        record_discarded(context)
        reach("p5.5.gaps")
        context.require_still(ours)
        context.lease.confirm()
        wanted = {number: at for number, at in targets.items() if at > begun[number]}
        group, topic = context.recovery.group, context.recovery.topic
        if wanted:
            set_group_offsets(context.admin, group, topic, wanted, Deadline(ASK_SECONDS))
        reach("p5.5.moved")
        stage_discarded(context)
        context.note_sample()  # before the logs begin there, too
        reach("p5.5.staged")

    def complete(self, context: OffloadContext) -> None:
        """Where it stands now."""
        context.details[self.name] = {
            "committed": {str(number): at for number, at in context.targets.items()}
        }


# Step 6: what is archived, verified and behind the group is deleted (protocol P5.6).


class DeleteRecords(Step[OffloadContext]):
    """Never above the fence, and never for a group that was not named."""

    name = "delete_records"

    def start(self, context: OffloadContext) -> None:
        """Looks at everything once more, right before.

        Raises:
            Refused: the group is before the fence again, another group would lose messages, or a
                log was cut back.
            PlanStale: the topic is another one.
            StagingError: the archive is not there as it was recorded.
            KafkaFailure: a partition was refused.
        """
        context.closing = True
        context.check_topic()
        lows, fence = context.read_lows(), context.fence
        wanted = {number: at for number, at in fence.items() if lows[number] < at}
        if wanted:
            context.require_archive()
            context.require_log()
            put_back_commits(context)
            _require_behind(context)
            _require_uncut(context, lows)
            context.note_bytes(wanted)
            context.lease.confirm()
            reach("p5.6.before")
            delete_records(context.admin, context.recovery.topic, wanted, Deadline(ASK_SECONDS))
        reach("p5.6.deleted")

    def complete(self, context: OffloadContext) -> None:
        """Where the logs begin now."""
        lows = context.read_lows()
        context.details[self.name] = {"log_start": {str(n): at for n, at in lows.items()}}


def _require_behind(context: OffloadContext) -> None:
    """The group's committed offsets are at the fence or behind it, read now."""
    fence = context.fence
    short = {n: c.offset for n, c in context.read_commits().items() if c.offset < fence[n]}
    if short:
        told = ", ".join(f"partition {n} at {at:,}" for n, at in sorted(short.items()))
        raise PlanStale(
            f"somebody set its committed offsets back before what is to be deleted: {told}; "
            "nothing was deleted",
            subject=f"group {context.recovery.group} on topic {context.recovery.topic}",
            hint="find out who; a cancel starts the consumers again and deletes nothing",
        )


def _require_uncut(context: OffloadContext, lows: dict[int, int]) -> None:
    """No group but those that the plan names loses anything."""
    plan = context.plan
    readers = list_topic_readers(context.admin, plan.topic, Deadline(ASK_SECONDS))
    cut = find_cut_groups(readers, plan.group, lows, context.fence)
    unknown = readers.say_unknown(plan.group)
    lost = {item.group: format_plural(item.messages, "message") for item in cut}
    refuse_cutting(
        cut,
        plan.allowed_groups,
        "" if ALLOW_UNKNOWN in plan.allowed else unknown,
        topic=plan.topic,
        hint="then the next run goes on. A cancel starts the consumers again and deletes nothing; "
        "a new plan with {words} cuts them",
    )
    if lost:
        context.record("other groups are cut", groups=lost)


# Step 7: the group's own consumers are started again (protocol P5.7).


class Restore(Step[OffloadContext]):
    """They go on where the group stands."""

    name = "restore"

    def start(self, context: OffloadContext) -> None:
        """Starts them.

        Raises:
            BacklogError: they could not be started: says how to do it by hand.
        """
        context.closing = True
        with context.leftovers.noting(SEGMENTS_STAY):
            context.give_segment_ms_back()
        if context.was_started("stop_consumers"):
            prepare_group(context)
            with context.leftovers.noting(CONSUMERS_MISSING):
                context.start_originals()
        reach("p5.7.started")
        fleet = context.originals
        by_hand = f"group {fleet.group}: {context.launcher.describe(fleet)}; "
        by_hand += "a topic's setting: `kafka-configs.sh --alter`"
        context.leftovers.refuse(say_by_hand(context, by_hand))


# Step 8: the logs begin at the fence, the group is behind it, the archive is there, and what was
# freed (protocol P5.6 and 7).


class Verify(Step[OffloadContext]):
    """Reads it all back."""

    name = "verify"

    def start(self, context: OffloadContext) -> None:
        """Reads, compares, watches the group.

        Raises:
            VerificationFailed: says what differs, or what somebody set the group past; or nothing
                was freed.
            StagingError: the archive is not there as it was recorded.
        """
        context.closing = True
        context.require_archive()
        _check_offsets(context)
        moves = None if context.leaves_consumers else _watch_group(context)
        archive = context.archive
        freed, expired = context.measure_freed(), sum(gone.count for gone in context.list_gone())
        found: dict[str, Any] = {
            "archived": 0 if archive is None else archive.messages,
            "archive_bytes": 0 if archive is None else archive.bytes,
            # What retention removed in front of the archive was not taken off by the offload.
            "offsets": sum(item.count for item in context.ranges) - expired,
            "expired": expired,
            "moves": moves,
            "freed_bytes": freed,
        }
        context.details[self.name] = {
            **found,
            "log_start": {str(n): at for n, at in context.read_lows().items()},
        }
        context.found["verified"] = found
        context.found["counts"] = found
        refuse_skipped(context)
        _judge_freed(context, freed)
        reach("p5.8.verified")


def _check_offsets(context: OffloadContext) -> None:
    fence, lows = context.fence, context.read_lows()
    commits = {number: commit.offset for number, commit in context.read_commits().items()}
    wrong = [
        f"the log of partition {n} starts at {lows[n]:,} instead of {at:,}"
        for n, at in fence.items()
        if lows[n] < at
    ] + [
        f"the group is at {commits[n]:,} in partition {n}, before the fence {at:,}"
        for n, at in fence.items()
        if commits[n] < at
    ]
    if wrong:
        raise VerificationFailed(
            "; ".join(wrong),
            subject=f"topic {context.recovery.topic}",
            hint="somebody set the group's offsets back, or the brokers lost the deletion; the "
            "archive is kept",
        )


def _watch_group(context: OffloadContext) -> bool:
    """Whether it moves. What does not is told: all else is done."""
    try:
        await_movement(context)
    except VerificationFailed as failed:
        context.say(f"{failed.subject}: {failed.message}")
        return False
    return True


def _judge_freed(context: OffloadContext, freed: int | None) -> None:
    """An offload that frees nothing is none, unless somebody has allowed it by name."""
    planned = context.plan.freeing.told
    if freed is not None:
        context.say(
            f"at least {format_bytes(freed)} are freed; planned was: {planned}. The disks have it "
            "when brokers delete the files, a minute later by default (`file.delete.delay.ms`)"
        )
    if freed == 0 and ALLOW_NOTHING not in context.plan.allowed:
        raise VerificationFailed(
            f"the brokers freed nothing of it within their own interval; planned was: {planned}",
            subject=f"topic {context.recovery.topic}",
            hint="look whether a transaction is open for long (`backlogctl transactions list`) and "
            "at the brokers' logs; run again, it measures again; cancelled, it is closed as it is",
        )


# The steps of an offload, in their order (protocol P5).

STEPS: tuple[Step[OffloadContext], ...] = (
    CheckSource(),
    StopConsumers(),
    Fence(),
    Archive(),
    MoveGroup(),
    DeleteRecords(),
    Restore(),
    Verify(),
)
# What `cancel` does from the move of the group on: it goes forward.
FORWARD_STEPS: tuple[Step[OffloadContext], ...] = (
    MoveGroup(),
    DeleteRecords(),
    Restore(),
    Verify(),
)
# And before it.
BACK: tuple[Step[OffloadContext], ...] = (Restore(),)
