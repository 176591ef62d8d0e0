"""Injects a staged recovery in waves: some seconds of chunks of every slot (protocol P3).

The driver's side: which chunk goes when, the canary, the rate and the brakes. What makes a chunk
commit exactly once is in `transactional.py`; nothing here has to be right for that.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from backlogctl.clock import Deadline
from backlogctl.errors import (
    BacklogError,
    HangingTransaction,
    KafkaFailure,
    Paused,
    PlanStale,
    ProducerFenced,
    Refused,
    VerificationFailed,
)
from backlogctl.kafka.clients import make_admin, outlast
from backlogctl.kafka.markers import find_hidden
from backlogctl.kafka.throttling import Throttling
from backlogctl.manifests import read_chunk
from backlogctl.spark_backfill.injection.brakes import (
    Brakes,
    InjectionProgress,
    NoBrakes,
    await_group_past,
    read_canary_back,
)
from backlogctl.spark_backfill.injection.job import (
    WAVE_SECONDS,
    InjectionJob,
    InjectionResult,
    await_ended,
    check_target,
    choose_chunks,
    choose_pace,
    choose_slots,
    count_fitting,
    measure_chunk,
    require_replicas,
)
from backlogctl.spark_backfill.injection.ledger_topic import (
    COORDINATOR_SECONDS,
    CommittedChunk,
    check_ledger,
    find_foreign_chunks,
    find_own_chunks,
    read_committed_chunks,
)
from backlogctl.spark_backfill.injection.newer import (
    LogFollower,
    NewerMessages,
    Overtaken,
    follow_log,
)
from backlogctl.spark_backfill.injection.transactional import (
    DEFAULT_MAX_MESSAGE_BYTES,
    ChunkResult,
    ChunkWriter,
    CommitOutcome,
    OutcomeUnknown,
    TransactionalWriter,
    WriterSettings,
    fence_slots,
    require_same_hash,
    skip_chunk,
)
from backlogctl.values import Chunk
from backlogctl_delivery.crashpoints import reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Where the chunks of a wave are written: by Spark's executors, or in this process.


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """Chunks of one slot in a wave, one after another; see `ChunkWriter.write` for `after`, `pace`
    and `newer`.

    No further chunk is begun after `seconds`: pause, cancel and the window are looked at between
    two waves.
    """

    directory: Path
    chunks: tuple[Chunk, ...]
    after: str = ""
    pace: float | None = None
    seconds: float = WAVE_SECONDS
    newer: NewerMessages | None = None

    @property
    def slot(self) -> int:
        """The target partition."""
        return self.chunks[0].slot


@dataclass(frozen=True, slots=True)
class ChunkOutcome:
    """What one chunk of a task came to: a result or an error, which ends the task.

    With `again` the chunk is to be written again from step 1 by whoever holds the recovery's
    lease: it may be committed all the same, or newer messages came meanwhile.
    """

    slot: int
    result: ChunkResult | None = None
    error: BacklogError | None = None
    again: bool = False


class ChunkRunner(Protocol):
    """Writes the chunks of one wave, each task's of another slot."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at once, at most."""

    def run_wave(self, tasks: Sequence[ChunkTask]) -> list[ChunkOutcome]:
        """An outcome for each chunk that was begun; those of a slot in their order.

        Raises:
            BacklogError: a worker was lost, so the outcome of its chunks is unknown. The wave may
                be run again: what is committed is skipped.
        """

    def close(self) -> None:
        """Closes what it holds."""


class SparkChunkRunner:
    """One Spark job a wave, one task a slot.

    Raises:
        Refused: speculative execution is on; it would run a chunk's task twice at once.
    """

    def __init__(self, spark: SparkSession, settings: WriterSettings) -> None:
        if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
            raise Refused(
                "spark.speculation is on: Spark would write a chunk twice at once",
                subject="spark.conf",
                hint="leave spark.speculation off",
            )
        self._spark, self._settings = spark, settings
        self.parallelism = int(spark.sparkContext.defaultParallelism)

    def run_wave(self, tasks: Sequence[ChunkTask]) -> list[ChunkOutcome]:
        from backlogctl.spark_backfill.failures import list_secrets, translating

        settings = self._settings

        def run_tasks(part: object) -> list[ChunkOutcome]:
            return [
                outcome
                for task in part  # type: ignore[attr-defined]
                for outcome in run_in_worker(settings, task)
            ]

        with translating(
            "write a wave of chunks",
            subject=f"topic {settings.topic}",
            hint="run it again: what is committed is skipped",
            kind=LostWorker,
            secrets=list_secrets(settings.properties),
        ):
            # An RDD of descriptors: the messages go from the staged file to Kafka inside the
            # worker, and never through the JVM.
            outcomes: list[ChunkOutcome] = (
                self._spark.sparkContext.parallelize(list(tasks), len(tasks))
                .mapPartitions(run_tasks)
                .collect()
            )
        return outcomes

    def close(self) -> None:
        """Nothing: the workers' producers end with the workers."""


class LostWorker(KafkaFailure):
    """A Spark worker ended in the middle of a wave."""

    code = "lost_worker"
    retryable = True


# Writers of this worker process. A fork must not use its parent's clients, hence the pid.
_writers: dict[tuple[int, str, str], TransactionalWriter] = {}


def run_in_worker(settings: WriterSettings, task: ChunkTask) -> list[ChunkOutcome]:
    """Writes a task with this worker's writer, which may still hold the slot's producer."""
    key = (os.getpid(), settings.recovery_id, settings.plan_hash)
    if _is_retry():
        # Another worker may have taken the slot over meanwhile: a kept producer is of no use.
        task = replace(task, after="")
    writer = _writers.get(key)
    if writer is None or writer.settings != settings:
        while _writers:
            _writers.popitem()[1].close()
        writer = _writers[key] = TransactionalWriter(settings)
    return run_task(writer, task)


def _is_retry() -> bool:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def run_task(writer: ChunkWriter, task: ChunkTask) -> list[ChunkOutcome]:
    outcomes: list[ChunkOutcome] = []
    after, limit = task.after, Deadline(task.seconds)
    for chunk in task.chunks:
        if outcomes and limit.expired:
            break
        outcome = _run_chunk(writer, task, chunk, after)
        outcomes.append(outcome)
        if outcome.result is None:
            break
        after = outcome.result.session
    return outcomes


def _run_chunk(writer: ChunkWriter, task: ChunkTask, chunk: Chunk, after: str) -> ChunkOutcome:
    try:
        table = read_chunk(task.directory, chunk)
        result = writer.write(chunk, table, after=after, pace=task.pace, newer=task.newer)
        return ChunkOutcome(chunk.slot, result=result)
    except OutcomeUnknown as unknown:
        return ChunkOutcome(chunk.slot, error=unknown.error, again=True)
    except Overtaken as overtaken:
        return ChunkOutcome(chunk.slot, error=overtaken, again=True)
    except BacklogError as error:
        # As a value: Spark would turn a raised error into a text with a traceback.
        return ChunkOutcome(chunk.slot, error=error)


OnChunk = Callable[[ChunkResult], None]
OnProgress = Callable[[InjectionProgress], None]

_LOST_WORKERS = 2
_ROUNDS = 3


def inject(
    spark: SparkSession,
    job: InjectionJob,
    brakes: Brakes | None = None,
    *,
    on_chunk: OnChunk | None = None,
    on_progress: OnProgress | None = None,
) -> InjectionResult:
    """Puts every staged message into the topic, each once, with Spark's executors.

    Safe to call again after any crash, pause or error: chunks that are committed are skipped, and
    reported to `on_chunk` as such, so that a copy of the results is complete.

    Args:
        brakes: asked before each wave; None for none.
        on_chunk: called once for each chunk that is committed, on the driver.
        on_progress: called after each wave.

    Raises:
        Paused: a brake; goes on with the next call.
        PlanStale, Refused: before anything was sent, or between two chunks.
        ProducerFenced: another runner took over.
        VerificationFailed: the canary reads back wrong.
        HangingTransaction, KafkaFailure, StagingError: see `ChunkWriter.write`.
    """
    info = check_target(make_admin(job.properties), job.topic, job.topic_id, job.partitions)
    limit = int(info.config.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))
    runner = SparkChunkRunner(spark, job.writer_settings(limit))
    return inject_with(runner, job, brakes, on_chunk=on_chunk, on_progress=on_progress)


def inject_with(
    runner: ChunkRunner,
    job: InjectionJob,
    brakes: Brakes | None = None,
    *,
    on_chunk: OnChunk | None = None,
    on_progress: OnProgress | None = None,
) -> InjectionResult:
    """`inject` with a runner of the caller's choice."""
    try:
        return _Injection(runner, job, brakes or NoBrakes(), on_chunk, on_progress).run()
    finally:
        runner.close()


class _Injection:
    """The state of one run: what is left of each slot, and how far it is."""

    def __init__(
        self,
        runner: ChunkRunner,
        job: InjectionJob,
        brakes: Brakes,
        on_chunk: OnChunk | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._runner, self._job, self._brakes = runner, job, brakes
        self._on_chunk, self._on_progress = on_chunk, on_progress
        self._admin = make_admin(job.properties)
        self._left: dict[int, deque[Chunk]] = {
            slot: deque(chunks) for slot, chunks in job.manifest.list_slots().items()
        }
        self._sessions: dict[int, str] = {}
        self._slots: dict[int, int] = {}
        self._chunks: dict[int, int] = {}
        self._last_offsets: dict[int, int | None] = {}
        self._follower: LogFollower | None = None
        self._left_out: dict[Chunk, tuple[int, ...]] = {}
        self._is_canary_proved = False
        self._throttling, self._owed = Throttling(), 0.0  # seconds that the wave takes at least
        self._injected = self._skipped = self._waves = 0
        self._began = time.monotonic()

    def run(self) -> InjectionResult:
        job = self._job
        self._check_plan()
        self._skip_committed()
        if any(self._left.values()):
            self._follower = follow_log(
                *(self._admin, job.topic, job.manifest, job.directory, job.follows)
            )
        self._send_canary()
        while any(self._left.values()):
            self._send_wave(choose_slots(self._left, self._job.rate))
        self._follow(is_last=True)
        return InjectionResult(
            *(self._injected, self._skipped, self._waves, time.monotonic() - self._began),
            *(self._count_left_out(), self._throttling),
        )

    def _check_plan(self) -> None:
        job = self._job
        if job.manifest.recovery_id != job.recovery_id or job.manifest.topic != job.topic:
            raise Refused(
                f"the manifest is of recovery {job.manifest.recovery_id} and topic "
                f"{job.manifest.topic}",
                subject=f"recovery {job.recovery_id}",
            )
        check_ledger(self._admin, job.ledger)
        check_target(self._admin, job.topic, job.topic_id, job.partitions)

    def _skip_committed(self) -> None:
        """What the Kafka ledger has already; and nobody else may have written meanwhile."""
        job = self._job
        records = self._read_ledger()
        others = find_foreign_chunks(records, job.ledger, recovery=job.recovery_id, topic=job.topic)
        if others:
            raise PlanStale(
                f"recovery {others[0].recovery} has injected messages into this topic since the "
                "plan was made; nothing was sent",
                subject=f"topic {job.topic}",
                hint="cancel this recovery and plan again",
            )
        own = find_own_chunks(records, job.ledger, job.recovery_id, job.recorded)
        # Nothing else is sent before the canary was read back.
        self._is_canary_proved = any(
            not chunk.canary for chunk in job.manifest.chunks if (chunk.slot, chunk.number) in own
        )
        for slot, chunks in self._left.items():
            while chunks and (record := own.get((slot, chunks[0].number))):
                chunk = chunks.popleft()
                require_same_hash(record, chunk, f"topic {job.topic}[{slot}]")
                self._note(skip_chunk(chunk, record), chunk)
        if self._skipped:
            self._report()
        # Of slots that are through, what is hidden in the topic may be theirs.
        through = dict.fromkeys(slot for slot, chunks in self._left.items() if not chunks)
        self._fence(find_hidden(self._admin, job.topic, through))

    def _fence(self, slots: Iterable[int]) -> None:
        job = self._job
        place, timeout = (job.properties, job.prefix, job.topic, slots), job.transaction_timeout_ms
        fence_slots(*place, ledger=job.ledger, transaction_timeout_ms=timeout)

    def _read_ledger(self) -> list[CommittedChunk]:
        job = self._job
        try:
            return read_committed_chunks(job.properties, job.ledger, job.topic, wait=0.0)
        except HangingTransaction:
            # Most likely the open transaction of a runner of ours that was killed: fencing ends
            # it at once, where waiting takes until the coordinator times it out.
            self._fence(self._left)
        wait = job.transaction_timeout_ms / 1000.0 + COORDINATOR_SECONDS
        return read_committed_chunks(job.properties, job.ledger, job.topic, wait=wait)

    def _send_canary(self) -> None:
        job = self._job
        canary = [chunk for chunk in job.manifest.chunks if chunk.canary]
        if not canary or self._is_canary_proved or not any(self._left.values()):
            return
        slot = canary[0].slot
        canary = sorted((c for c in canary if c.slot == slot), key=lambda c: c.number)
        while self._left[slot] and self._left[slot][0].canary:
            self._send_wave([slot])
        last = self._last_offsets.get(slot)
        try:
            end = read_canary_back(
                *(job.properties, job.topic, job.directory, canary),
                start=job.start_offsets.get(slot, 0),
                end=None if last is None else last + 1,
                wait=job.hidden_wait,
                patience=job.patience,
                look=self._look,
                left_out=self._left_out,
            )
        except (Paused, VerificationFailed):
            self._check_target()  # of a topic that was made anew since, that is why
            raise
        if job.group:
            await_group_past(
                *(job.properties, job.group, job.topic, slot, end, job.canary_wait, self._look),
                patience=job.patience,
            )

    def _send_wave(self, slots: list[int]) -> None:
        room = self._brakes.check(self._progress(slots))
        started, self._owed = time.monotonic(), 0.0
        self._follow()
        tasks = [self._make_task(slot, len(slots)) for slot in slots]
        fit = count_fitting({task.slot: task.chunks for task in tasks}, room)
        self._run_tasks([replace(t, chunks=t.chunks[:n]) for t in tasks if (n := fit[t.slot])])
        self._waves += 1
        self._report()
        self._wait_until(started + self._owed)

    def _check_target(self) -> None:
        """Whoever recreated the topic in the middle must not get the rest.

        In mid-run a broker that restarts is waited for.
        """
        job = self._job
        outlast(
            Deadline(job.patience),
            lambda: check_target(self._admin, job.topic, job.topic_id, job.partitions),
        )

    def _make_task(self, slot: int, width: int) -> ChunkTask:
        rate = self._job.rate
        # A look is good for one chunk: what comes behind it is read within the transaction.
        most = 1 if self._follower is not None else self._job.wave_chunks
        chunks = choose_chunks(self._left[slot], rate, most)
        pace = choose_pace(chunks[0], rate, width, self._runner.parallelism)
        # Tasks wait for cores: the wave as a whole keeps to its time, but each writes one chunk.
        seconds = WAVE_SECONDS * min(1.0, self._runner.parallelism / width)
        session, follower = self._sessions.get(slot, ""), self._follower
        newer = None if follower is None else follower.describe(slot)
        return ChunkTask(self._job.directory, chunks, session, pace, seconds, newer)

    def _follow(self, *, is_last: bool = False) -> None:
        """What came into the topic since the last look; brokers that are away are waited for.

        Raises:
            VerificationFailed: after the last wave, an older state stands behind a newer one.
        """
        follower = self._follower
        if follower is None:
            return
        try:
            outlast(Deadline(self._job.patience), follower.look)
        except PlanStale:
            if not is_last:
                raise
            return  # nothing more is sent, and each transaction has looked
        if is_last:
            follower.require_order(f"topic {self._job.topic}")

    def _count_left_out(self) -> int:
        return sum(map(len, self._left_out.values()))

    def _run_tasks(self, tasks: Sequence[ChunkTask]) -> None:
        """Until every chunk of the wave is committed, for certain.

        A chunk whose outcome is unknown starts from step 1, which takes the slot from whoever has
        it: hence only if the brakes, which look at the lease, let it go on.
        """
        lost, rounds, limit = 0, 0, Deadline(self._job.patience)
        while tasks:
            if rounds:
                room = self._brakes.check(self._progress([task.slot for task in tasks]))
                self._follow()
                fit = count_fitting({t.slot: t.chunks for t in tasks}, room, least=1)
                tasks = [replace(self._make_task(t.slot, len(tasks)), after="",
                                 chunks=t.chunks[:fit[t.slot]]) for t in tasks]  # fmt: skip
            rounds += 1
            self._check_target()
            try:
                outcomes = self._runner.run_wave(tasks)
            except LostWorker:
                lost += 1
                if lost > _LOST_WORKERS:
                    raise
            else:
                tasks = self._take(tasks, outcomes, again=rounds < _ROUNDS or not limit.expired)
                self._await_ended(outcomes)

    def _await_ended(self, outcomes: Sequence[ChunkOutcome]) -> None:
        """What is open where a chunk was overtaken may be newer, or nothing."""
        slots = [one.slot for one in outcomes if isinstance(one.error, Overtaken)]
        job, look = self._job, self._look
        await_ended(self._admin, job.topic, slots, job.hidden_wait, look=look)

    def _take(
        self, tasks: Sequence[ChunkTask], outcomes: Sequence[ChunkOutcome], *, again: bool
    ) -> list[ChunkTask]:
        """Writes down what is committed; returns the tasks to try `again`, where that helps."""
        done: Counter[int] = Counter()
        for outcome in outcomes:
            if outcome.result is not None:
                done[outcome.slot] += 1
                chunk = self._left[outcome.result.slot].popleft()
                self._sessions[outcome.result.slot] = outcome.result.session
                self._note(outcome.result, chunk)
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        known = [o.error for o in outcomes if o.error is not None and not o.again]
        if errors and (known or not again):
            raise self._explain(min(known or errors, key=_rank))
        failed = {outcome.slot for outcome in outcomes if outcome.error is not None}
        return [
            replace(task, chunks=task.chunks[done[task.slot] :])
            for task in tasks
            if task.slot in failed
        ]

    def _explain(self, error: BacklogError) -> BacklogError:
        """A write that timed out may have a reason that only the cluster's metadata shows."""
        if isinstance(error, KafkaFailure) and error.retryable:
            topics = [self._job.topic, self._job.ledger.topic]
            try:
                require_replicas(self._admin, topics, Deadline(10.0))
            except BacklogError as reason:
                return reason if not isinstance(reason, KafkaFailure) else error
        return error

    def _note(self, result: ChunkResult, chunk: Chunk) -> None:
        if result.left_out:
            self._left_out[chunk] = result.left_out
        if result.outcome is CommitOutcome.SKIPPED:
            self._skipped += result.count
        else:
            self._injected += result.count
            self._throttling += Throttling(result.throttled, result.seconds)
            size = result.size * result.attempts
            self._owed += self._job.rate.count_seconds(result.count, size)
        self._slots[result.slot] = self._slots.get(result.slot, 0) + result.count
        self._chunks[result.slot] = self._chunks.get(result.slot, 0) + 1
        self._last_offsets[result.slot] = result.last_offset
        if self._on_chunk is not None:
            reach("p3.7.copy.before")
            self._on_chunk(result)
            reach("p3.7.copy.after")

    def _progress(self, slots: Sequence[int] = ()) -> InjectionProgress:
        return InjectionProgress(
            injected=self._injected,
            skipped=self._skipped,
            total=self._job.manifest.count - self._count_left_out(),
            wave=self._waves,
            slots=dict(self._slots),
            chunks=dict(self._chunks),
            next={slot: measure_chunk(self._left[slot][0]) for slot in slots},
            throttling=self._throttling,
        )

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._progress())

    def _wait_until(self, due: float) -> None:
        while (early := due - time.monotonic()) > 0 and any(self._left.values()):
            time.sleep(min(early, 0.5))
            self._look()

    def _look(self) -> None:
        self._brakes.check(self._progress())


def _rank(error: BacklogError) -> int:
    """Orders the errors of a wave: the first is the one that says most about what to do."""
    if isinstance(error, ProducerFenced):
        return 0
    return 1 if isinstance(error, Refused) else 2 if not error.retryable else 3
