"""A runner of chunks without Spark."""

from __future__ import annotations

from collections.abc import Sequence

from backlogctl.spark_backfill.injection.transactional import ChunkWriter
from backlogctl.spark_backfill.injection.waves import ChunkOutcome, ChunkTask, run_task


class LocalChunkRunner:
    """Writes in this process, one chunk after another."""

    parallelism = 1

    def __init__(self, writer: ChunkWriter) -> None:
        self._writer = writer

    def run_wave(self, tasks: Sequence[ChunkTask]) -> list[ChunkOutcome]:
        """See `ChunkRunner.run_wave`."""
        return [outcome for task in tasks for outcome in run_task(self._writer, task)]

    def close(self) -> None:
        """Closes the producers."""
        self._writer.close()
