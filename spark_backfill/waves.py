"""Injects a staged recovery in waves of at most one chunk per slot (protocol P3).

The driver's side: which chunk goes when, the canary, the rate and the brakes. What makes a chunk
commit exactly once is in `transactional.py`; nothing here has to be right for that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from backlog.clock import Deadline
from backlog.errors import (
    BacklogError,
    HangingTransaction,
    KafkaFailure,
    PlanStale,
    ProducerFenced,
    Refused,
)
from backlog.kafka.clients import make_admin
from backlog.kafka.ledger_topic import (
    COORDINATOR_SECONDS,
    CommittedChunk,
    LedgerSnapshot,
    check_ledger,
    find_strangers,
    read_committed_chunks,
)
from backlog.manifest import Manifest
from backlog.values import Chunk
from spark_backfill.brakes import Brakes, NoBrakes, Progress
from spark_backfill.canary import await_group_past, read_canary_back
from spark_backfill.crashpoints import reach
from spark_backfill.runners import ChunkRunner, ChunkTask, LostWorker, SparkChunkRunner
from spark_backfill.targets import check_target, require_replicas
from spark_backfill.transactional import (
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_PREFIX,
    PATIENCE,
    TRANSACTION_TIMEOUT_MS,
    WriterSettings,
    fence_slots,
    require_same_hash,
)
from spark_backfill.writer import ChunkResult, Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OnChunk = Callable[[ChunkResult], None]
OnProgress = Callable[[Progress], None]

# An open transaction holds back every read_committed reader: a slow pace ends here.
MAX_TRANSACTION_SECONDS = 4.0
_LOST_WORKERS = 2


@dataclass(frozen=True, slots=True)
class InjectionJob:
    """One approved and staged recovery; `properties` hold secrets and are not in its repr.

    Attributes:
        topic_id, partitions: of the target topic when the plan was made.
        directory: the recovery's staging directory, `<staging>/<recovery id>`.
        ledger: the Kafka ledger when the plan was made.
        start_offsets: the target topic's ends when the plan was made (`record_target_ends`).
        group: of the stream; where it has members it must commit past the canary.
        messages_per_second: over all slots; None for as fast as it goes.
        canary_wait: seconds for the group to commit past the canary.
        patience: seconds for which a chunk is tried again while brokers are away.
    """

    recovery_id: str
    topic: str
    topic_id: str
    partitions: int
    plan_hash: str
    manifest: Manifest
    directory: Path
    properties: Mapping[str, str] = field(repr=False)
    ledger: LedgerSnapshot
    start_offsets: Mapping[int, int]
    group: str | None = None
    messages_per_second: int | None = None
    prefix: str = DEFAULT_PREFIX
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    canary_wait: float = 60.0
    patience: float = PATIENCE

    def writer_settings(self, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> WriterSettings:
        """What the executors need of it."""
        return WriterSettings(
            properties=dict(self.properties),
            topic=self.topic,
            recovery_id=self.recovery_id,
            plan_hash=self.plan_hash,
            ledger=self.ledger,
            prefix=self.prefix,
            transaction_timeout_ms=self.transaction_timeout_ms,
            max_message_bytes=max_message_bytes,
            patience=self.patience,
        )


@dataclass(frozen=True, slots=True)
class InjectionResult:
    """Every staged message is committed; `skipped` ones were so before this run."""

    injected: int
    skipped: int
    waves: int
    seconds: float


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
        self._injected = self._skipped = self._waves = 0
        self._began = time.monotonic()

    def run(self) -> InjectionResult:
        self._check_ground()
        self._skip_committed()
        self._send_canary()
        while pending := [slot for slot, chunks in self._left.items() if chunks]:
            self._brakes.check(self._progress())
            self._send_wave(self._choose(pending))
        return InjectionResult(
            self._injected, self._skipped, self._waves, time.monotonic() - self._began
        )

    def _check_ground(self) -> None:
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
        strangers = find_strangers(records, job.ledger, recovery=job.recovery_id, topic=job.topic)
        if strangers:
            raise PlanStale(
                f"recovery {strangers[0].recovery} has injected messages into this topic since the "
                "plan was made; nothing was sent",
                subject=f"topic {job.topic}",
                hint="cancel this recovery and plan again",
            )
        own = {(r.slot, r.chunk): r for r in records if r.recovery == job.recovery_id}
        for slot, chunks in self._left.items():
            while chunks and (record := own.get((slot, chunks[0].number))):
                chunk = chunks.popleft()
                require_same_hash(record, chunk, f"topic {job.topic}[{slot}]")
                self._note(
                    ChunkResult(slot, chunk.number, chunk.count, Outcome.SKIPPED), count=True
                )
        if self._skipped:
            self._report()

    def _read_ledger(self) -> list[CommittedChunk]:
        job = self._job
        try:
            return read_committed_chunks(job.properties, job.ledger, job.topic, wait=0.0)
        except HangingTransaction:
            # Most likely the open transaction of a runner of ours that was killed: fencing ends
            # it at once, where waiting takes until the coordinator times it out.
            fence_slots(
                job.properties,
                job.prefix,
                job.topic,
                self._left,
                transaction_timeout_ms=job.transaction_timeout_ms,
            )
        wait = job.transaction_timeout_ms / 1000.0 + COORDINATOR_SECONDS
        return read_committed_chunks(job.properties, job.ledger, job.topic, wait=wait)

    def _send_canary(self) -> None:
        job = self._job
        canary = [chunk for chunk in job.manifest.chunks if chunk.canary]
        if not canary or not any(self._left.values()):
            return
        slot = canary[0].slot
        canary = sorted((c for c in canary if c.slot == slot), key=lambda c: c.number)
        while self._left[slot] and self._left[slot][0].canary:
            self._brakes.check(self._progress())
            self._send_wave([slot])
        start = job.start_offsets.get(slot, 0)
        end = read_canary_back(
            job.properties, job.topic, job.recovery_id, job.directory, canary, start
        )
        if job.group:
            await_group_past(
                job.properties,
                job.group,
                job.topic,
                slot,
                end,
                job.canary_wait,
                lambda: self._brakes.check(self._progress()),
            )

    def _choose(self, pending: list[int]) -> list[int]:
        """Slots of the next wave. With a rate only as many as fit into one transaction's time."""
        rate = self._job.messages_per_second
        if rate is None:
            return pending
        budget, chosen = rate * MAX_TRANSACTION_SECONDS, list[int]()
        # The slots with the most left go first, so that none of them is late at the end.
        for slot in sorted(pending, key=lambda s: -len(self._left[s])):
            budget -= self._left[slot][0].count
            if chosen and budget < 0:
                break
            chosen.append(slot)
        return chosen

    def _send_wave(self, slots: list[int]) -> None:
        started = time.monotonic()
        self._check_target()
        tasks = [self._make_task(slot, len(slots)) for slot in slots]
        before = self._injected
        self._run_tasks(tasks)
        self._waves += 1
        self._report()
        rate = self._job.messages_per_second
        if rate is not None:
            self._wait_until(started + (self._injected - before) / rate)

    def _check_target(self) -> None:
        """Whoever recreated the topic in the middle must not get the rest.

        In mid-run a broker that restarts is waited for.
        """
        job, limit = self._job, Deadline(self._job.patience)
        while True:
            try:
                check_target(self._admin, job.topic, job.topic_id, job.partitions)
                return
            except KafkaFailure as error:
                if not error.retryable or limit.expired:
                    raise
            time.sleep(0.5)

    def _make_task(self, slot: int, width: int) -> ChunkTask:
        chunk, rate = self._left[slot][0], self._job.messages_per_second
        pace = None
        if rate is not None:
            # Evenly inside the wave, but never so slowly that the transaction stays open for
            # long; what is missing to the rate is waited for between the waves.
            pace = max(rate / width, chunk.count / MAX_TRANSACTION_SECONDS)
        return ChunkTask(self._job.directory, chunk, self._sessions.get(slot, ""), pace)

    def _run_tasks(self, tasks: list[ChunkTask]) -> None:
        for attempt in range(_LOST_WORKERS + 1):
            try:
                outcomes = self._runner.run_wave(tasks)
                break
            except LostWorker:
                if attempt == _LOST_WORKERS:
                    raise
                # The outcome of its chunks is unknown: all of the wave starts from step 1.
                tasks = [ChunkTask(t.directory, t.chunk, "", t.pace) for t in tasks]
        for outcome in outcomes:
            if outcome.result is not None:
                self._left[outcome.result.slot].popleft()
                self._sessions[outcome.result.slot] = outcome.result.session
                self._note(outcome.result, count=True)
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        if errors:
            raise self._explain(min(errors, key=_rank))

    def _explain(self, error: BacklogError) -> BacklogError:
        """A write that timed out may have a reason that only the cluster's metadata tells."""
        if isinstance(error, KafkaFailure) and error.retryable:
            topics = [self._job.topic, self._job.ledger.topic]
            try:
                require_replicas(self._admin, topics, Deadline(10.0))
            except BacklogError as reason:
                return reason if not isinstance(reason, KafkaFailure) else error
        return error

    def _note(self, result: ChunkResult, *, count: bool) -> None:
        if result.outcome is Outcome.SKIPPED:
            self._skipped += result.count
        else:
            self._injected += result.count
        self._slots[result.slot] = self._slots.get(result.slot, 0) + result.count
        if self._on_chunk is not None:
            reach("p3.7.copy.before")
            self._on_chunk(result)
            reach("p3.7.copy.after")

    def _progress(self) -> Progress:
        seconds = max(1e-9, time.monotonic() - self._began)
        total = self._job.manifest.count
        rate = self._injected / seconds
        left = total - self._injected - self._skipped
        return Progress(
            injected=self._injected,
            skipped=self._skipped,
            total=total,
            wave=self._waves,
            rate=rate,
            eta_seconds=left / rate if rate > 0 else None,
            slots=dict(self._slots),
        )

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._progress())

    def _wait_until(self, due: float) -> None:
        while (early := due - time.monotonic()) > 0 and any(self._left.values()):
            time.sleep(min(early, 0.5))
            self._brakes.check(self._progress())


def _rank(error: BacklogError) -> int:
    """Which of several errors of a wave is told: the one that says most about what to do."""
    if isinstance(error, ProducerFenced):
        return 0
    return 1 if isinstance(error, Refused) else 2 if not error.retryable else 3
