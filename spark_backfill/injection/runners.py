"""Where the chunks of a wave are written: by Spark's executors, or in this process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from backlog.clock import Deadline
from backlog.errors import BacklogError, KafkaFailure, Refused
from backlog.manifest import read_chunk
from backlog.values import Chunk
from spark_backfill.injection.pacing import WAVE_SECONDS
from spark_backfill.injection.transactional import TransactionalWriter, WriterSettings
from spark_backfill.injection.writer import ChunkResult, ChunkWriter, OutcomeUnknown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """Chunks of one slot in a wave, one after another; see `ChunkWriter.write` for `after`, `pace`.

    No further chunk is begun after `seconds`: pause, cancel and the window are looked at between
    two waves.
    """

    directory: Path
    chunks: tuple[Chunk, ...]
    after: str = ""
    pace: float | None = None
    seconds: float = WAVE_SECONDS

    @property
    def slot(self) -> int:
        """The target partition."""
        return self.chunks[0].slot


@dataclass(frozen=True, slots=True)
class ChunkOutcome:
    """What one chunk of a task came to: a result or an error, which ends the task.

    With `unknown` the chunk may be committed all the same, and is to be written again from step 1
    by whoever holds the recovery's lease.
    """

    slot: int
    result: ChunkResult | None = None
    error: BacklogError | None = None
    unknown: bool = False


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

    @property
    def parallelism(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)

    def run_wave(self, tasks: Sequence[ChunkTask]) -> list[ChunkOutcome]:
        from spark_backfill.failures import list_secrets, translating

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
        result = writer.write(chunk, table, after=after, pace=task.pace)
        return ChunkOutcome(chunk.slot, result=result)
    except OutcomeUnknown as unknown:
        return ChunkOutcome(chunk.slot, error=unknown.error, unknown=True)
    except BacklogError as error:
        # As a value: Spark would turn a raised error into a text with a traceback.
        return ChunkOutcome(chunk.slot, error=error)
