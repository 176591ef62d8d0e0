"""The whole way with a real Spark: inject by executors, verify by reading back."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from backlogctl.errors import Paused, PlanStale, Refused, StagingError, VerificationFailed
from backlogctl.kafka.clients import make_producer
from backlogctl.manifests import read_chunk, write_chunk
from backlogctl.spark_backfill.injection.job import InjectionJob
from backlogctl.spark_backfill.injection.transactional import ChunkResult, CommitOutcome
from backlogctl.spark_backfill.injection.verification import VerificationResult, verify_injection
from backlogctl.spark_backfill.injection.waves import SparkChunkRunner, inject, inject_with
from tests.crash.scenario import make_table
from tests.spark_backfill.injection.conftest import MakeScenario
from tests.spark_backfill.injection.doing import assert_same_set, inject_here, open_transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify_job(spark: SparkSession, job: InjectionJob, **changes: Any) -> VerificationResult:
    """Verifies a job of the tests."""
    settings: dict[str, Any] = {
        "properties": job.properties,
        "topic": job.topic,
        "topic_id": job.topic_id,
        "partitions": job.partitions,
        "manifest": job.manifest,
        "directory": job.directory,
        "start_offsets": job.start_offsets,
    }
    return verify_injection(spark, **{**settings, **changes})


def test_spark_injects_once_and_verification_proves_it(
    spark: SparkSession, scenario: MakeScenario
) -> None:
    job = scenario(canary=True, chunks=2).job
    results: list[ChunkResult] = []
    result = inject(spark, job, on_chunk=results.append)
    assert (result.injected, result.skipped) == (315, 0)
    assert all(r.last_offset is not None for r in results)
    assert inject(spark, job).skipped == 315
    assert_same_set(job)
    proof = verify_job(spark, job)
    assert proof.is_exact
    assert (proof.staged, proof.found, proof.matched) == (315, 315, 315)
    proof.require_exact("topic")
    assert json.loads(json.dumps(proof.to_json()))["exact"] is True


def test_an_executor_that_is_killed_in_mid_chunk_changes_nothing(
    spark: SparkSession, scenario: MakeScenario
) -> None:
    job = scenario(slots=2).job
    directory, target = str(job.directory), job.manifest.chunks[0].path

    class Killing(SparkChunkRunner):
        """The first wave loses its Python worker while a transaction is open."""

        killed = False

        def run_wave(self, tasks: Any) -> Any:
            if not self.killed:
                self.killed = True
                settings = self._settings

                def die(_: Any) -> Any:
                    from backlogctl.spark_backfill.injection.transactional import (
                        TransactionalWriter,
                    )

                    writer = TransactionalWriter(settings)
                    producer = writer._make_producer(0)
                    producer.init()
                    producer.begin()
                    chunk = job.manifest.chunks[0]
                    producer.produce(0, read_chunk(job.directory, chunk), None)
                    producer.flush()
                    os.kill(os.getpid(), signal.SIGKILL)

                from backlogctl.spark_backfill.failures import translating
                from backlogctl.spark_backfill.injection.waves import LostWorker

                with translating("write", subject="a wave", kind=LostWorker):
                    self._spark.sparkContext.parallelize([1], 1).map(die).collect()
            return super().run_wave(tasks)

    assert target
    assert directory
    assert inject_with(Killing(spark, job.writer_settings()), job).injected == 200
    assert_same_set(job)


def test_errors_of_executors_arrive_as_they_are(
    spark: SparkSession, scenario: MakeScenario
) -> None:
    job = scenario(slots=1).job
    path = job.directory / job.manifest.chunks[1].path
    path.write_bytes(b"damaged")
    results: list[ChunkResult] = []
    with pytest.raises(StagingError) as caught:
        inject(spark, job, on_chunk=results.append)
    assert caught.value.subject == str(path)
    assert [r.outcome for r in results] == [CommitOutcome.INJECTED]  # what was committed is told
    with pytest.raises(StagingError):
        verify_job(spark, job)


def test_speculation_is_refused(spark: SparkSession, scenario: MakeScenario) -> None:
    job = scenario(slots=1, chunks=1).job

    class Fast:
        conf = {"spark.speculation": "true"}  # noqa: RUF012

    with pytest.raises(Refused, match="speculation"):
        SparkChunkRunner(Fast(), job.writer_settings())  # type: ignore[arg-type]


def test_fault_37_verification_finds_what_is_missing_doubled_different_or_unexpected(
    spark: SparkSession, scenario: MakeScenario
) -> None:
    job = scenario(slots=2, chunks=1, messages=20).job
    inject_here(job)
    rows = read_chunk(job.directory, job.manifest.chunks[0]).to_pylist()
    producer = make_producer(job.properties)

    def send(row: dict[str, Any], **changes: bytes) -> None:
        headers: Any = {h["name"]: h["value"] for h in row["headers"]}
        producer.produce(
            job.topic, row["value"], row["key"], 0, headers=list({**headers, **changes}.items())
        )

    # A second copy counts, whichever recovery sent it.
    foreign = {"backlog-recovery-id": b"r-20261121-0009"}
    send(rows[0], **foreign)
    # Messages of nobody, and another recovery's own, are not looked at.
    producer.produce(job.topic, b"live", b"key", 0)
    send(rows[0], **foreign, **{"backlog-message-id": b"another"})
    assert producer.flush(60) == 0
    # Aborted ones neither, of this recovery even.
    with open_transaction(job.properties, job.topic, 1) as stranger:
        headers: Any = [(h["name"], h["value"]) for h in rows[1]["headers"]]
        stranger.produce(job.topic, b"aborted", b"key", 1, headers=headers)
        assert stranger.flush(60) == 0
    more = make_table(job.topic, 0, ["never sent"], job.recovery_id)
    extra = write_chunk(job.directory, 0, 7, more)
    changed = read_chunk(job.directory, job.manifest.chunks[1]).to_pylist()
    changed[0]["value"] = b"another"
    changed[1]["headers"][0]["value"] = b"another"
    changed[2]["key"] = None if changed[2]["key"] is not None else b""
    import pyarrow as pa

    other = write_chunk(job.directory, 1, 8, pa.Table.from_pylist(changed[:-1], schema=more.schema))
    manifest = replace(job.manifest, chunks=(job.manifest.chunks[0], extra, other))
    result = verify_job(spark, job, manifest=manifest)
    assert not result.is_exact
    assert (result.missing, result.doubled, result.different, result.unexpected) == (1, 1, 3, 1)
    assert result.matched == 19 + 16
    assert result.ids["doubled"] == (rows[0]["message_id"],)
    assert result.ids["missing"] == tuple(more["message_id"].to_pylist())
    assert result.ids["unexpected"] == (changed[-1]["message_id"],)
    with pytest.raises(
        VerificationFailed, match=r"1 missing.*1 doubled.*3 different.*1 unexpected"
    ):
        result.require_exact(f"topic {job.topic}")


def test_fault_07_an_open_transaction_over_injected_messages_pauses_verification(
    spark: SparkSession, scenario: MakeScenario
) -> None:
    job = scenario(slots=1, chunks=1).job
    assert SparkChunkRunner(spark, job.writer_settings()).parallelism == 2
    with open_transaction(job.properties, job.topic, 0):
        inject_here(job)
        with pytest.raises(Paused, match="somebody's open transaction hides"):
            verify_job(spark, job, hidden_wait=0.5)
    with open_transaction(job.properties, job.topic, 0):
        # It lies above ours, which are at 1 to 50.
        assert verify_job(spark, job, known_ends={0: 51}, hidden_wait=0.5).is_exact
    assert verify_job(spark, job).is_exact


def test_fault_37_nothing_injected_is_not_a_success(
    spark: SparkSession, scenario: MakeScenario
) -> None:
    job = scenario(slots=1, chunks=3, messages=50).job
    result = verify_job(spark, job)
    assert (result.missing, result.matched) == (150, 0)
    assert len(result.ids["missing"]) == 100
    with pytest.raises(VerificationFailed):
        result.require_exact("topic")


def test_verification_refuses_another_topic(spark: SparkSession, scenario: MakeScenario) -> None:
    job = scenario(slots=1, chunks=1).job
    with pytest.raises(PlanStale):
        verify_job(spark, job, topic_id="another")
