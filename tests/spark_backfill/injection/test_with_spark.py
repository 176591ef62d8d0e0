"""Inject by executors and verify by reading back; the Kafka ledger is never under-read."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from backlogctl.clock import Deadline
from backlogctl.errors import (
    ClusterUnreachable,
    HangingTransaction,
    Paused,
    PlanStale,
    Refused,
    StagingError,
    VerificationFailed,
)
from backlogctl.kafka.admin import create_topic, describe_topic, list_offsets
from backlogctl.kafka.clients import make_producer
from backlogctl.manifests import read_chunk, write_chunk
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.injection import verification, waves
from backlogctl.spark_backfill.injection.job import InjectionJob
from backlogctl.spark_backfill.injection.ledger_topic import (
    check_ledger,
    ensure_ledger_topic,
    find_foreign_chunks,
    read_committed_chunks,
    read_visible,
    snapshot_ledger,
)
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.spark_backfill.injection.transactional import (
    ChunkMessages,
    ChunkResult,
    CommitOutcome,
    TransactionalWriter,
)
from backlogctl.spark_backfill.injection.verification import VerificationResult, verify_injection
from backlogctl.spark_backfill.injection.waves import SparkChunkRunner, inject, inject_with
from backlogctl.spark_backfill.spark import topic as spark_topic
from backlogctl_delivery.stamps import MESSAGE_ID, RECOVERY_ID
from tests.conftest import MakeTopic
from tests.crash.scenario import make_table
from tests.kit.kafka import delete_topic
from tests.spark_backfill.injection.conftest import MakeScenario
from tests.spark_backfill.injection.doing import (
    assert_same_set,
    await_condition,
    inject_here,
    open_transaction,
)

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
    spark: SparkSession, scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all is exact nothing is compared by ids: what is aborted, or nobody's, changes that
    as little as another recovery's own message, which is."""
    job = scenario(canary=True, chunks=2).job
    results: list[ChunkResult] = []
    result = inject(spark, job, on_chunk=results.append)
    assert (result.injected, result.skipped) == (315, 0)
    assert all(r.last_offset is not None for r in results)
    assert inject(spark, job).skipped == 315
    assert_same_set(job)
    row = read_chunk(job.directory, job.manifest.chunks[0]).to_pylist()[0]
    headers: Any = {h["name"]: h["value"] for h in row["headers"]}
    with open_transaction(job.properties, job.topic, 0) as stranger:
        stranger.produce(job.topic, row["value"], row["key"], 0, headers=headers)
        assert stranger.flush(60) == 0
    producer = make_producer(job.properties)
    producer.produce(job.topic, row["value"], row["key"], 0)
    assert producer.flush(60) == 0

    def check() -> None:
        proof = verify_job(spark, job)
        assert proof.is_exact
        assert (proof.staged, proof.found, proof.matched) == (315, 315, 315)
        proof.require_exact("topic")
        assert json.loads(json.dumps(proof.to_json()))["exact"] is True

    with monkeypatch.context() as patch:
        patch.setattr(verification, "_compare", None)
        check()
    another = {**headers, RECOVERY_ID: b"r-1", MESSAGE_ID: b"another"}
    producer.produce(job.topic, row["value"], row["key"], 0, headers=another)
    assert producer.flush(60) == 0
    check()


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


def test_what_is_staged_twice_and_there_twice_is_doubled(
    spark: SparkSession, scenario: MakeScenario
) -> None:
    job = scenario(slots=2, chunks=2, messages=20).job
    inject_here(job)
    (*others, chunk) = job.manifest.chunks  # the last of its slot: the log has the plan's order
    producer = make_producer(job.properties)
    for row in read_chunk(job.directory, chunk).to_pylist():
        headers: Any = [(h["name"], h["value"]) for h in row["headers"]]
        producer.produce(job.topic, row["value"], row["key"], row["partition"], headers=headers)
    assert producer.flush(60) == 0
    twice = replace(job.manifest, chunks=(*others, chunk, chunk))
    doubled = verify_job(spark, job, manifest=twice)
    assert (doubled.doubled, doubled.matched) == (20, 60)


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


def test_fault_128_what_cannot_be_read_back_is_not_called_wrong(
    spark: SparkSession, scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = scenario(slots=1, chunks=1).job
    inject_here(job)
    gone = {
        "bootstrap.servers": "127.0.0.1:1",
        "default.api.timeout.ms": "3000",
        "request.timeout.ms": "2000",
    }
    monkeypatch.setattr(verification, "count_exact", lambda *_, **__: None)
    monkeypatch.setattr(spark_topic, "make_java_options", lambda _: gone)
    monkeypatch.setattr(spark_topic, "_POLL_MS", 3_000)
    with pytest.raises(verification.ReadBackFailed, match="could not read the injected") as caught:
        verify_job(spark, job)
    assert caught.value.retryable
    assert "nothing is known to be wrong" in caught.value.hint


def test_verification_refuses_another_topic(spark: SparkSession, scenario: MakeScenario) -> None:
    job = scenario(slots=1, chunks=1).job
    with pytest.raises(PlanStale):
        verify_job(spark, job, topic_id="another")


def test_the_ledger_is_made_once_and_kept_as_it_is(kafka: EmbeddedKafka, unique: str) -> None:
    properties = {"bootstrap.servers": kafka.bootstrap}
    name = f"ledger-{unique}"
    first = ensure_ledger_topic(properties, name)
    assert ensure_ledger_topic(properties, name, partitions=3) == first
    info = describe_topic(properties, name)
    assert (info.partitions, info.config["cleanup.policy"]) == (12, "compact")
    ledger = snapshot_ledger(properties, name)
    assert LedgerSnapshot.from_json(ledger.to_json()) == ledger
    assert ledger.ends == dict.fromkeys(range(12), 0)
    # Twelve slots of a topic never share a partition.
    assert len({ledger.place("orders", slot) for slot in range(12)}) == 12
    assert read_committed_chunks(properties, name, "orders") == []


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_ledger_that_is_not_compacted_is_refused(
    kafka: EmbeddedKafka, topic: MakeTopic, policy: str
) -> None:
    properties = {"bootstrap.servers": kafka.bootstrap}
    name = topic(partitions=1, config={"cleanup.policy": policy})
    with pytest.raises(Refused, match=r"cleanup\.policy"):
        ensure_ledger_topic(properties, name)
    with pytest.raises(Refused, match=r"cleanup\.policy"):
        snapshot_ledger(properties, name)


def test_a_ledger_deleted_or_recreated_is_refused(scenario: MakeScenario) -> None:
    job = scenario().job
    inject_here(job)
    name = job.ledger.topic
    delete_topic(job.properties, name)
    with pytest.raises(PlanStale, match="deleted"):
        inject_here(job)
    # Also where it is deleted after the first look.
    with pytest.raises(PlanStale, match="deleted"):
        read_visible(job.properties, job.ledger, [0])
    create_topic(
        job.properties, name, partitions=12, replication=1, config={"cleanup.policy": "compact"}
    )
    with pytest.raises(PlanStale, match="recreated"):
        inject_here(job)
    # An executor looks for itself, too.
    with pytest.raises(PlanStale, match="recreated"):
        read_visible(job.properties, job.ledger, [0])
    assert_same_set(job)


def test_a_ledger_with_more_partitions_is_refused(
    scenario: MakeScenario, admin: AdminClient
) -> None:
    job = scenario().job
    name = job.ledger.topic
    admin.create_partitions([NewPartitions(name, 13)])[name].result(30)
    await_condition(lambda: describe_topic(job.properties, name).partitions == 13)
    with pytest.raises(PlanStale, match="13 partitions"):
        check_ledger(job.properties, job.ledger)


def test_fault_07_a_hanging_transaction_stops_the_run_and_nothing_is_sent(
    scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = scenario(slots=1, chunks=1, transaction_timeout_ms=1000).job
    place = job.ledger.place(job.topic, 0)
    short = job.writer_settings()
    with open_transaction(job.properties, job.ledger.topic, place):
        with pytest.raises(HangingTransaction, match="nothing was sent") as caught:
            read_visible(job.properties, job.ledger, [place], wait=1.0)
        assert str(place) in str(caught.value)
        assert short.hanging_wait == 16.0
        monkeypatch.setattr(waves, "COORDINATOR_SECONDS", 1.0)
        with pytest.raises(HangingTransaction):
            inject_here(job)
    assert list_offsets(job.properties, job.topic, [0], "latest") == {0: 0}


def test_fault_08_a_record_above_somebodys_open_transaction_is_not_missed(
    scenario: MakeScenario,
) -> None:
    job = scenario(slots=1, chunks=2).job
    place = job.ledger.place(job.topic, 0)
    with open_transaction(job.properties, job.ledger.topic, place) as stranger:
        # The transaction was open before: our own records lie above it, and are hidden.
        settings = job.writer_settings()
        first = job.manifest.chunks[0]
        writer = TransactionalWriter(settings)
        producer = writer._make_producer(0)
        producer.init()
        writer._commit(producer, ChunkMessages(first, read_chunk(job.directory, first)))
        low = list_offsets(job.properties, job.ledger.topic, [place], "latest", "read_committed")
        high = list_offsets(job.properties, job.ledger.topic, [place], "latest")
        assert low[place] == 0 < high[place]
        # When it has ended the record is seen, and skipped.
        threading.Timer(2.0, stranger.abort_transaction, [60]).start()
        result = inject_here(job)
        assert (result.injected, result.skipped) == (50, 50)
        assert_same_set(job)


def test_somebody_elses_record_in_the_ledger_is_refused(scenario: MakeScenario) -> None:
    job = scenario(slots=1, chunks=1).job
    producer = make_producer(job.properties)
    producer.produce(job.ledger.topic, b"hello", b"world", job.ledger.place(job.topic, 0))
    assert producer.flush(60) == 0
    with pytest.raises(Refused, match="not ours"):
        inject_here(job)
    assert list_offsets(job.properties, job.topic, [0], "latest") == {0: 0}


def test_strangers_are_other_recoveries_of_the_topic_since_the_plan(scenario: MakeScenario) -> None:
    job = scenario(slots=1, chunks=1).job
    inject_here(job)
    now = snapshot_ledger(job.properties, job.ledger.topic)
    records = read_committed_chunks(job.properties, now, job.topic)

    def strangers(ledger: LedgerSnapshot, recovery: str, topic: str = job.topic) -> int:
        return len(find_foreign_chunks(records, ledger, recovery=recovery, topic=topic))

    assert strangers(job.ledger, "r-2") == 1
    assert strangers(job.ledger, job.recovery_id) == 0  # its own
    assert strangers(now, "r-2") == 0  # known to its plan
    assert strangers(job.ledger, "r-2", "another topic") == 0


def test_an_unreachable_ledger_is_not_called_a_hanging_transaction() -> None:
    ledger = LedgerSnapshot("ledger", "id", 1, {0: 0})
    with pytest.raises(ClusterUnreachable):
        check_ledger({"bootstrap.servers": "127.0.0.1:1"}, ledger, Deadline(1.0))
