"""A runner of an injection in a process group of its own, that can be killed at any point."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.kafka.clients import make_producer
from backlogctl.spark_backfill.injection import transactional
from backlogctl.spark_backfill.injection.ledger_topic import make_record
from backlogctl.spark_backfill.injection.producing import AttemptError, SlotProducer
from backlogctl.spark_backfill.injection.transactional import (
    ChunkMessages,
    ChunkResult,
    ChunkWriter,
    TransactionalWriter,
    WriterSettings,
)
from backlogctl.spark_backfill.injection.waves import ChunkOutcome, ChunkTask, inject_with, run_task
from backlogctl_delivery.crashpoints import reach
from tests.crash.forking import start_process
from tests.crash.scenario import load_job


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


class BrokenWriter(TransactionalWriter):
    """The protocol broken on purpose: the ledger record is outside of the transaction."""

    def _commit(self, producer: SlotProducer, sent: ChunkMessages) -> float:
        producer.begin()
        producer.produce(sent.chunk.slot, sent.table, sent.pace)
        producer.flush()
        seconds = producer.commit()
        reach("p3.5.commit.after")
        settings, ledger = self.settings, self.settings.ledger
        key, value = make_record(
            *(settings.recovery_id, settings.topic, settings.plan_hash),
            *(sent.chunk, sent.chunk.slot),
        )
        place = ledger.place(settings.topic, sent.chunk.slot)
        plain = make_producer(settings.properties)
        plain.produce(ledger.topic, value, key, place)
        assert plain.flush(90) == 0
        return seconds


class StumblingWriter(TransactionalWriter):
    """Its first transaction fails before the commit, as one does that a broker refuses."""

    stumbled = False

    def _commit(self, producer: SlotProducer, sent: ChunkMessages) -> float:
        if not self.stumbled:
            self.stumbled = True
            producer.begin()
            producer.produce(sent.chunk.slot, sent.table, sent.pace)
            raise AttemptError(KafkaFailure("stumbled", retryable=True), abortable=True)
        return super()._commit(producer, sent)


WIRE, RECORD = CLIENTS = ("wire", "record")
WRITERS: dict[str, type[TransactionalWriter]] = {
    "transactional": TransactionalWriter,
    "broken": BrokenWriter,
    "stumbling": StumblingWriter,
}


def start_runner(
    directory: Path, *, crash_at: str = "", writer: str = "transactional", client: str = WIRE
) -> BaseProcess:
    """Starts a runner of the scenario in `directory`; `crash_at` as BACKLOG_CRASH_AT."""
    log = directory / f"runner-{time.monotonic_ns()}.log"
    return start_process(_run, directory, writer, client, crash_at=crash_at, log=log)


def take_client(client: str, patch: pytest.MonkeyPatch) -> None:
    """What this process injects with: whole batches, or librdkafka message by message."""
    if client == RECORD:
        patch.setattr(f"{transactional.__name__}.explain_absence", lambda _: "as a test says")


def read_words(directory: Path) -> str:
    """What the runners of the scenario said, and what they failed with."""
    told = sorted([*directory.glob("runner-*.log"), *directory.glob("error-*.json")])
    return "\n".join(f"{path.name}: {path.read_text()}" for path in told)


def read_copies(directory: Path) -> list[tuple[int, int, str]]:
    """(slot, number, outcome) as runners reported them: what SQL would hold."""
    path = directory / "copies.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(json.loads(line)) for line in lines]


def _run(directory: Path, writer: str, client: str) -> None:
    take_client(client, pytest.MonkeyPatch())
    job = load_job(directory)
    settings: WriterSettings = job.writer_settings()

    def copy(result: ChunkResult) -> None:
        with (directory / "copies.jsonl").open("a") as file:
            file.write(json.dumps([result.slot, result.number, result.outcome]) + "\n")

    try:
        inject_with(LocalChunkRunner(WRITERS[writer](settings)), job, on_chunk=copy)
    except BacklogError as error:
        failure: dict[str, Any] = error.to_json()
        (directory / f"error-{os.getpid()}.json").write_text(json.dumps(failure))
        sys.exit(error.exit_code)
