"""Waves, canary, rate and brakes, on a real broker."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from backlogctl.errors import KafkaFailure, Paused, PlanStale, Refused, StagingError
from backlogctl.kafka.admin import create_topic, describe_topic, list_offsets, read_metadata
from backlogctl.kafka.clients import make_consumer
from backlogctl.spark_backfill.injection import job as targets
from backlogctl.spark_backfill.injection.brakes import Brake, CombinedBrakes, InjectionProgress
from backlogctl.spark_backfill.injection.job import MAX_TRANSACTION_SECONDS
from backlogctl.spark_backfill.injection.producing import AttemptError, SlotProducer
from backlogctl.spark_backfill.injection.transactional import (
    ChunkResult,
    CommitOutcome,
    TransactionalWriter,
)
from backlogctl.values import Chunk
from tests.crash.scenario import judge
from tests.kafka_tools import delete_topic
from tests.spark_backfill.injection.conftest import MakeScenario
from tests.spark_backfill.injection.doing import Stop, assert_same_set, await_condition, inject_here


def test_fault_42_the_window_closes_in_mid_run_and_the_next_night_goes_on(
    scenario: MakeScenario,
) -> None:
    job = scenario(chunks=4).job
    night = True

    class Window(Brake):
        def look(self, progress: InjectionProgress) -> str:
            if not night:
                raise Paused("outside the window")
            return ""

    brakes = CombinedBrakes([Window()])
    results: list[ChunkResult] = []

    def close_after_two(progress: InjectionProgress) -> None:
        nonlocal night
        night = progress.wave < 2

    with pytest.raises(Paused):
        inject_here(job, brakes, on_chunk=results.append, on_progress=close_after_two)
    assert sum(r.count for r in results) == 300  # whole chunks only
    with pytest.raises(Paused):
        inject_here(job, brakes)
    night = True
    again = inject_here(job, brakes)
    assert (again.injected, again.skipped) == (300, 300)
    assert_same_set(job)


def test_a_pause_stops_between_two_chunks(scenario: MakeScenario) -> None:
    job = scenario().job
    with pytest.raises(Paused):
        inject_here(job, CombinedBrakes([Stop(1)]))
    assert judge(job).missing == 150
    inject_here(job)
    assert_same_set(job)


def test_the_rate_is_kept_and_no_transaction_stays_open_for_long(scenario: MakeScenario) -> None:
    job = scenario(chunks=2, messages=100, messages_per_second=200).job
    seconds: list[float] = []

    class Paced(TransactionalWriter):
        def _commit(
            self, producer: SlotProducer, chunk: Chunk, table: pa.Table, pace: float | None
        ) -> float:
            assert pace is not None
            seconds.append(chunk.count / pace)
            return super()._commit(producer, chunk, table, pace)

    progress: list[InjectionProgress] = []
    began = time.monotonic()
    inject_here(job, writer=Paced, on_progress=progress.append)
    # 600 messages at 200/s; after the last wave nobody waits.
    assert time.monotonic() - began > 1.5
    # What it sets itself: how long a transaction is open beyond that is the machine's affair.
    assert len(seconds) == 6
    assert max(seconds) <= MAX_TRANSACTION_SECONDS
    assert [p.injected for p in progress] == [300, 600]
    assert progress[0].left == 300
    assert progress[-1].left == 0
    assert_same_set(job)


def test_a_low_rate_takes_fewer_slots_at_once(scenario: MakeScenario) -> None:
    job = scenario(chunks=1, messages=40, messages_per_second=15).job
    progress: list[InjectionProgress] = []

    def stop(at: InjectionProgress) -> None:
        progress.append(at)

    with pytest.raises(Paused):
        inject_here(job, CombinedBrakes([Stop(1)]), on_progress=stop)
    # 15/s for 4 s are 60 messages: one chunk of 40, not three.
    assert [p.injected for p in progress] == [40]


def test_fault_12_below_min_insync_replicas_pauses_with_no_partial_chunk(
    scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A single broker asks for no more replicas than there are: its refusal is played.
    job = scenario(slots=1, config={"min.insync.replicas": "2"}, patience=0.5).job

    class Refusing(TransactionalWriter):
        def _produce_record(self, producer: SlotProducer, chunk: Chunk) -> None:
            error = KafkaFailure("NOT_ENOUGH_REPLICAS", retryable=True)
            raise AttemptError(error, abortable=True)

    def lose_a_replica(*arguments: Any) -> Any:
        metadata = read_metadata(*arguments)
        for topic in metadata.topics.values():
            for partition in topic.partitions.values():
                partition.replicas = [1, 2]
        return metadata

    monkeypatch.setattr(targets, "read_metadata", lose_a_replica)
    quick = replace(job, transaction_timeout_ms=1500)
    with pytest.raises(Paused, match=r"min\.insync\.replicas=2"):
        inject_here(quick, writer=Refusing)
    assert judge(job).missing == 100
    inject_here(job)
    assert_same_set(job)


def test_fault_15_a_topic_that_was_deleted_or_recreated_is_refused(scenario: MakeScenario) -> None:
    job = scenario().job
    delete_topic(job.properties, job.topic)
    with pytest.raises(PlanStale, match="deleted"):
        inject_here(job)
    create_topic(job.properties, job.topic, partitions=3)
    with pytest.raises(PlanStale, match="recreated"):
        inject_here(job)
    assert sum(list_offsets(job.properties, job.topic, range(3), "latest").values()) == 0


def test_fault_15_a_topic_that_is_recreated_in_mid_run_does_not_get_the_rest(
    scenario: MakeScenario,
) -> None:
    job = scenario().job

    def recreate(progress: InjectionProgress) -> None:
        delete_topic(job.properties, job.topic)
        create_topic(job.properties, job.topic, partitions=3)

    with pytest.raises(PlanStale, match="recreated"):
        inject_here(job, on_progress=recreate)
    assert sum(list_offsets(job.properties, job.topic, range(3), "latest").values()) == 0


def test_fault_16_partitions_added_after_the_plan_are_refused(
    scenario: MakeScenario, admin: AdminClient
) -> None:
    job = scenario().job
    admin.create_partitions([NewPartitions(job.topic, 4)])[job.topic].result(30)
    await_condition(lambda: describe_topic(job.properties, job.topic).partitions == 4)
    with pytest.raises(PlanStale, match="4 partitions now"):
        inject_here(job)
    assert sum(list_offsets(job.properties, job.topic, range(4), "latest").values()) == 0


def test_fault_18_old_messages_are_sent_with_the_time_of_now(scenario: MakeScenario) -> None:
    # The original times are years ago; with them retention would delete the messages at once.
    job = scenario(slots=1, chunks=1, config={"retention.ms": "3600000", "segment.ms": "1000"}).job
    before = time.time() * 1000 - 60_000
    inject_here(job)
    consumer = make_consumer(job.properties, group_id="times")
    from confluent_kafka import TopicPartition

    consumer.assign([TopicPartition(job.topic, 0, 0)])
    seen: list[Any] = []

    def read_more() -> bool:
        seen.extend(consumer.consume(50, 0.2))
        return len(seen) >= 50

    await_condition(read_more)
    consumer.close()
    assert all(message.timestamp()[1] >= before for message in seen)
    originals = {dict(message.headers())["backlog-original-time"] for message in seen}
    assert originals == {b"2026-01-01T00:00:00.000000Z"}
    assert_same_set(job)


def test_a_damaged_staged_file_stops_the_run_before_its_chunk(scenario: MakeScenario) -> None:
    job = scenario(slots=1, chunks=2).job
    (job.directory / job.manifest.chunks[1].path).write_bytes(b"damaged")
    with pytest.raises(StagingError):
        inject_here(job)
    assert judge(replace(job, manifest=_only(job, 1))).is_same_set


def _only(job: Any, chunks: int) -> Any:
    return replace(job.manifest, chunks=job.manifest.chunks[:chunks])


def test_a_manifest_of_another_recovery_is_refused(scenario: MakeScenario) -> None:
    job = scenario().job
    with pytest.raises(Refused, match="the manifest is of recovery"):
        inject_here(replace(job, recovery_id="r-20261121-0009"))


def test_secrets_are_not_in_the_repr(scenario: MakeScenario) -> None:
    job = scenario(slots=1, chunks=1).job
    hidden = replace(job, properties={**job.properties, "sasl.password": "hunter2"})
    assert "hunter2" not in repr(hidden)
    assert "hunter2" not in repr(hidden.writer_settings())


def test_skipped_chunks_are_told_as_such(scenario: MakeScenario) -> None:
    job = scenario(slots=1).job
    with pytest.raises(Paused):
        inject_here(job, CombinedBrakes([Stop(1)]))
    results: list[ChunkResult] = []
    inject_here(job, on_chunk=results.append)
    assert [r.outcome for r in results] == [CommitOutcome.SKIPPED, CommitOutcome.INJECTED]
