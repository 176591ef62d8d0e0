"""Step 1: the topic, the Kafka ledger and the configuration are still those of the plan."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import (
    BacklogError,
    PlanStale,
    Refused,
    StagingChanged,
    StagingError,
    VerificationFailed,
)
from backlogctl.kafka.admin import committed_offsets, describe_topic, list_topic_readers
from backlogctl.kafka.errors import TopicMissing
from backlogctl.kafka.raw_fetch import find_codec
from backlogctl.replay.engine.approval import check_runnable
from backlogctl.replay.engine.brakes import check_brakes, check_requests
from backlogctl.replay.engine.guards import (
    check_configuration,
    check_denied,
    check_denied_topic,
    fingerprint_stream,
)
from backlogctl.replay.injection.context import InjectionContext, find_misread
from backlogctl.replay.injection.ledger import find_planned_log, make_job, open_ledger_topic
from backlogctl.replay.injection.plan import READ_BACK, To
from backlogctl.replay.injection.target import clear_rehearsals, make_rehearsal
from backlogctl.replay.observe.rights import require_rights
from backlogctl.replay.observe.snapshot import take_share
from backlogctl.replay.present.progress import measure_injection
from backlogctl.spark_backfill.injection.ledger_topic import read_committed_chunks
from backlogctl.values import GapState, Step

if TYPE_CHECKING:
    from datetime import datetime

    from backlogctl.spark_backfill.injection.brakes import InjectionProgress
    from backlogctl.spark_backfill.injection.job import InjectionJob
    from backlogctl.spark_backfill.injection.transactional import ChunkResult

_AGAIN = "cancel it, then plan again"


class CheckTarget(Step[InjectionContext]):
    """Looks at everything the plan was made on; makes what is missing."""

    name = "check_target"

    def validate(self, context: InjectionContext) -> None:
        """Faults 15, 16, 64; the configuration; readers who came since.

        Raises:
            PlanStale: something is no longer what the plan was made on.
            Refused: a guard says no.
        """
        plan, stream, workspace = context.plan, context.stream, context.workspace
        hint = _AGAIN
        check_runnable(workspace, context.recovery)
        check_denied(workspace, stream)
        check_configuration(plan, fingerprint_stream(stream, plan.configuration), hint)
        kind = workspace.kind_of(context.recovery)
        rights = kind.list_rights(workspace.config, stream, context.recovery.id, plan)
        require_rights(workspace, stream, rights)
        _require_same(context, plan.topic, plan.topic_id, plan.partition_count, hint)
        target = plan.target
        if target is None:
            _refuse_new_readers(context, hint)
        elif target.topic_id is not None:
            check_denied_topic(workspace, target.topic)
            _require_same(context, target.topic, target.topic_id, target.partitions, hint)

    def start(self, context: InjectionContext) -> None:
        """Checks the Kafka ledger, or makes it, and the topic of a rehearsal."""
        clear_rehearsals(context.workspace, context.stream.name)
        context.ledger_topic = open_ledger_topic(
            context.workspace, context.stream, context.recovery
        )
        target = context.plan.target
        if target is not None and target.to is To.REHEARSAL:
            make_rehearsal(context.workspace, context.stream, context.recovery.id, target)


def _require_same(
    context: InjectionContext, name: str, topic_id: str, partitions: int, hint: str
) -> None:
    subject = f"topic {name}"
    try:
        topic = describe_topic(context.properties, name, Deadline(30))
    except TopicMissing as error:
        raise PlanStale("it is gone", subject=subject, hint=hint) from error
    if topic.topic_id != topic_id:
        raise PlanStale(
            "it was deleted and created again since the plan was made", subject=subject, hint=hint
        )
    if topic.partitions != partitions:
        raise PlanStale(
            f"it has {topic.partitions} partitions, and had {partitions} when the plan was made: "
            "keys belong elsewhere now",
            subject=subject,
            hint=hint,
        )


def _refuse_new_readers(context: InjectionContext, hint: str) -> None:
    """Other groups would get the messages too; those that the plan names were allowed."""
    plan, stream, subject = context.plan, context.stream, f"topic {context.plan.topic}"
    readers = list_topic_readers(context.properties, stream.topic, Deadline(30))
    new = [name for name in readers.list_others(stream.group) if name not in plan.other_groups]
    if new and plan.deliver != "topic":
        raise PlanStale(
            f"groups began to read it since the plan was made: {', '.join(new)}",
            subject=subject,
            hint=hint,
        )
    unknown = readers.say_unknown(stream.group)
    if unknown and not plan.others_unknown and plan.deliver != "topic":
        raise Refused(
            f"whether groups began to read it since the plan was made is unknown: {unknown}",
            subject=subject,
            hint=f"grant that again (`backlogctl acl {plan.kind} {stream.name}` prints what is "
            "needed), then run it again",
        )


# Step 2: the staged messages are those of the plan.


class StageCheck(Step[InjectionContext]):
    """Reads the manifest and checks its hash; each chunk's own hash is checked as it is sent."""

    name = "stage_check"

    def validate(self, context: InjectionContext) -> None:
        """The manifest is the approved one and its files are there.

        Raises:
            StagingError: they are missing or changed.
        """
        manifest = context.manifest
        if (
            manifest.recovery_id != context.recovery.id
            or manifest.topic != context.plan.target_topic
        ):
            raise StagingChanged(
                "the manifest is of another recovery", subject=str(context.directory), hint=_AGAIN
            )
        if manifest.count != context.plan.message_count:
            raise StagingChanged(
                "the manifest and the plan count differently",
                subject=str(context.directory),
                hint=_AGAIN,
            )
        for chunk in manifest.chunks:
            if not (context.directory / chunk.path).is_file():
                raise StagingError(
                    "staged messages are missing",
                    subject=str(context.directory / chunk.path),
                    hint="restore the staging directory; what is lost of it comes with a new plan "
                    "only",
                )

    def start(self, context: InjectionContext) -> None:
        """The gaps are staged."""
        context.workspace.ledger.chunks.add_all(context.recovery.id, context.manifest.chunks)
        context.advance_gaps(GapState.STAGED, [GapState.PLANNED])


# Step 3: canary first, then waves, each chunk once (backlogctl.spark_backfill.injection.waves).

_KEPT = 10_000


def _choose_codec(job: InjectionJob, group: str) -> str:
    """Where nothing tells which one the group reads, "none", which every client does."""
    try:
        committed = committed_offsets(job.properties, group, job.topic, range(job.partitions))
    except BacklogError:
        return "none"
    return find_codec(job.properties, job.topic, committed) or "none"


class Inject(Step[InjectionContext]):
    """Puts every staged message into the topic."""

    name = "inject"

    def validate(self, context: InjectionContext) -> None:
        """A plan without messages is not a success.

        Raises:
            Refused: nothing is staged.
        """
        if not context.manifest.count:
            raise Refused("the plan holds no messages", subject=f"recovery {context.recovery.id}")

    def start(self, context: InjectionContext) -> None:
        """Injects; what an earlier run committed is skipped."""
        spark = context.spark
        from backlogctl.spark_backfill.injection.brakes import (
            Brake,
            CombinedBrakes,
            DiskBrake,
            LiveLagBrake,
        )
        from backlogctl.spark_backfill.injection.waves import inject

        job = make_job(context)
        codec = _choose_codec(job, context.stream.group)
        rate = take_share(context.workspace, context.stream, "writes", context.say)
        follows = find_planned_log(context)
        job = replace(job, compression=codec, follows=follows, bytes_per_second=rate)
        floor = context.plan.limits.floor
        disk = DiskBrake(job.properties, job.topic, floor, context.say)
        brakes: list[Brake] = [_RunBrake(context)]
        if context.plan.delivers and context.plan.limits.max_live_lag is not None:
            brakes.append(
                LiveLagBrake(
                    job.properties,
                    context.stream.group,
                    job.topic,
                    job.partitions,
                    context.plan.limits.max_live_lag,
                )
            )
        context.bar.say("canary")
        tracker = _Tracker(context)
        with context.interrupts.deferred():
            result = inject(
                spark,
                job,
                CombinedBrakes(brakes, disk, on_wait=tracker.note_wait),
                on_chunk=tracker.note_chunk,
                on_progress=tracker.note_progress,
            )
        if told := result.throttling.describe(_WRITERS):
            context.say(told)

    def complete(self, context: InjectionContext) -> None:
        """The gaps' messages are in the topic."""
        context.advance_gaps(GapState.INJECTED, [GapState.PLANNED, GapState.STAGED])


_WRITERS = "what was put back"  # whom brokers throttle


class _RunBrake:
    """The window, requests, Ctrl-C and the lease, as a brake of the waves."""

    def __init__(self, context: InjectionContext) -> None:
        self._context = context

    def look(self, progress: InjectionProgress) -> str:
        """Raises what stops the run; never waits."""
        check_brakes(self._context)
        return ""


class _Tracker:
    """Copies what was committed into SQL, and moves the bar."""

    def __init__(self, context: InjectionContext) -> None:
        self._context = context
        # The page measures the same rate of the ledger's copy.
        self._done: deque[tuple[datetime, int]] = deque(maxlen=_KEPT)
        self._told: set[str] = set()
        self._counts = context.found.setdefault(
            "counts", {"injected": 0, "skipped": 0, "left_out": 0}
        )

    def note_chunk(self, result: ChunkResult) -> None:
        """Called once for each committed chunk; the copy is right after any crash."""
        from backlogctl.spark_backfill.injection.transactional import CommitOutcome

        ledger, recovery_id = self._context.workspace.ledger, self._context.recovery.id
        ledger.chunks.mark_injected(
            *(recovery_id, result.slot, result.number, result.first_offset, result.last_offset),
            len(result.left_out),
        )
        name = "skipped" if result.outcome is CommitOutcome.SKIPPED else "injected"
        self._counts[name] += result.count
        self._counts["left_out"] += len(result.left_out)
        if result.outcome is CommitOutcome.INJECTED:
            self._done.append((utc_now(), result.count))
        if result.not_wire:
            self._tell("writer", f"messages are sent one by one, slower: {result.not_wire}")

    def note_wait(self, why: str) -> None:
        """Called where a brake begins to hold."""
        self._context.bar.say(f"waiting: {why}")
        self._context.say(f"waiting: {why}")

    def note_progress(self, progress: InjectionProgress) -> None:
        """Called after each wave."""
        bar = self._context.bar
        throttled = progress.throttling.describe(_WRITERS)
        if throttled:
            self._tell("throttled", throttled)
        bar.say("injecting, throttled by a quota" if throttled else "injecting")
        done = progress.injected + progress.skipped
        rate = measure_injection(self._done, utc_now())
        bar.move(done, rate=rate or 0.0, eta=progress.left / rate if rate else None)

    def _tell(self, what: str, sentence: str) -> None:
        """Once in a run."""
        if what not in self._told:
            self._told.add(what)
            self._context.say(sentence)


# Step 4: reads everything back; only then is a gap verified.


class Verify(Step[InjectionContext]):
    """Every message id exactly once, bytes and partition as staged (spark_backfill)."""

    name = "verify"

    def start(self, context: InjectionContext) -> None:
        """Reads the target ranges back.

        Raises:
            VerificationFailed: names the ids that are missing, doubled or different, or who sent
                others that were.
            PausedBecause, CancelRequested: somebody asked; the next run reads back again.
        """
        # What was asked for during the last wave, after which nothing looks.
        check_requests(context)
        spark = context.spark
        context.bar.say("reading back")
        from backlogctl.spark_backfill.injection.verification import verify_injection

        job = make_job(context)
        result = verify_injection(
            spark,
            properties=job.properties,
            topic=job.topic,
            topic_id=job.topic_id,
            partitions=job.partitions,
            manifest=job.manifest,
            directory=job.directory,
            start_offsets=job.start_offsets,
            known_ends=_find_ends(context),
            left_out=_find_left_out(job),
            look=lambda: check_requests(context),
        )
        context.found["verified"] = result.to_json()
        context.record(READ_BACK, **result.to_json())
        result.require_exact(f"topic {job.topic}")
        _require_others_exact(context)

    def complete(self, context: InjectionContext) -> None:
        """The gaps are closed."""
        context.advance_gaps(GapState.VERIFIED, [GapState.INJECTED])
        context.bar.say("verified")


def _require_others_exact(context: InjectionContext) -> None:
    """What was left out, as an earlier recovery had sent it, is a part of the same gaps."""
    ledger, recovery_id = context.workspace.ledger, context.recovery.id
    misread = find_misread(ledger, context.plan, ledger.recoveries.gap_ids(recovery_id))
    if misread:
        raise VerificationFailed(
            "all that was sent now reads back as staged; the rest of the same gaps was sent by "
            f"{', '.join(misread)}, and did not",
            subject=f"recovery {recovery_id}",
            hint=f"`backlogctl show {misread[0]}` has which messages; the gaps stay open",
        )


def _find_left_out(job: InjectionJob) -> dict[tuple[int, int], tuple[int, ...]]:
    """By slot and number of a chunk what was not sent of it, as the Kafka ledger says."""
    records = read_committed_chunks(job.properties, job.ledger, job.topic)
    return {
        (one.slot, one.chunk): one.left_out
        for one in records
        if one.recovery == job.recovery_id and one.left_out
    }


def _find_ends(context: InjectionContext) -> dict[int, int]:
    """The offset after the last injected message of each slot whose chunks' offsets are known."""
    chunks = context.workspace.ledger.chunks.list(context.recovery.id)
    ends: dict[int, list[int | None]] = {}
    for record in chunks:
        if record.sent:
            ends.setdefault(record.chunk.slot, []).append(record.last_offset)
    return {
        slot: max(known) + 1
        for slot, offsets in ends.items()
        if len(known := [at for at in offsets if at is not None]) == len(offsets)
    }


# The steps of an injection, in their order.

STEPS: tuple[Step[InjectionContext], ...] = (
    CheckTarget(),
    StageCheck(),
    Inject(),
    Verify(),
)
