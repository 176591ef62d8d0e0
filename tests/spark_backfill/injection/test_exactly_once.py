"""Protocol P3 under faults, on a real broker: the set that a read_committed reader sees."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from backlogctl.errors import KafkaFailure, LeaseHeld, PlanStale, ProducerFenced, Refused
from backlogctl.kafka.admin import list_offsets
from backlogctl.manifests import read_chunk, write_chunk
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.injection.brakes import CombinedBrakes, InjectionProgress
from backlogctl.spark_backfill.injection.job import measure_chunk
from backlogctl.spark_backfill.injection.ledger_topic import read_committed_chunks
from backlogctl.spark_backfill.injection.producing import AttemptError, SlotProducer
from backlogctl.spark_backfill.injection.transactional import (
    ChunkMessages,
    ChunkResult,
    CommitOutcome,
    OutcomeUnknown,
    TransactionalWriter,
    fence_slots,
)
from tests.crash.forking import kill_process
from tests.crash.runner import WIRE, read_copies, read_words, start_runner
from tests.crash.scenario import make_scenario, make_table
from tests.kit.transactions import limit_rates
from tests.spark_backfill.injection.conftest import MakeScenario
from tests.spark_backfill.injection.doing import assert_same_set, await_condition, inject_here
from tests.spark_backfill.world import await_decided

pytestmark = pytest.mark.usefixtures("client")


def test_every_message_is_committed_once_and_a_second_run_sends_nothing(
    scenario: MakeScenario, client: str
) -> None:
    job = scenario().job
    results: list[ChunkResult] = []
    first = inject_here(job, on_chunk=results.append)
    assert (first.injected, first.skipped) == (300, 0)
    assert {bool(r.not_wire) for r in results} == {client != WIRE}
    assert {r.outcome for r in results} == {CommitOutcome.INJECTED}
    assert [r.last_offset for r in results if r.slot == 0] == [49, 100]
    again: list[ChunkResult] = []
    second = inject_here(job, on_chunk=again.append)
    assert (second.injected, second.skipped) == (0, 300)
    assert {(r.slot, r.number) for r in again} == {(r.slot, r.number) for r in results}
    assert_same_set(job)
    records = read_committed_chunks(job.properties, job.ledger, job.topic)
    assert {(r.slot, r.chunk, r.sha256, r.count) for r in records} == {
        (c.slot, c.number, c.sha256, c.count) for c in job.manifest.chunks
    }
    assert {(r.recovery, r.plan_hash) for r in records} == {(job.recovery_id, job.plan_hash)}


def test_a_slot_goes_on_with_its_producer_and_only_with_that_one(scenario: MakeScenario) -> None:
    job = scenario(slots=1, chunks=3).job
    settings = job.writer_settings()
    first, second, third = job.manifest.chunks
    tables = {c.number: read_chunk(job.directory, c) for c in job.manifest.chunks}
    one, other = TransactionalWriter(settings), TransactionalWriter(settings)
    a = one.write(first, tables[0])
    b = other.write(second, tables[1], after=a.session)
    assert b.session != a.session
    # The producer that `one` kept is fenced by now; the driver says that it is not the last.
    c = one.write(third, tables[2], after=b.session)
    assert (c.outcome, c.attempts) == (CommitOutcome.INJECTED, 1)
    assert c.session not in (a.session, b.session)
    assert_same_set(job)


def test_a_request_that_is_repeated_after_its_commit_finds_the_chunk_committed(
    scenario: MakeScenario,
) -> None:
    # Spark runs a task again in the same worker when the answer of the first try got lost.
    job = scenario(slots=1, chunks=2).job
    first, second = job.manifest.chunks
    writer = TransactionalWriter(job.writer_settings())
    after = writer.write(first, read_chunk(job.directory, first)).session
    table = read_chunk(job.directory, second)
    assert writer.write(second, table, after=after).outcome is CommitOutcome.INJECTED
    assert writer.write(second, table, after=after).outcome is CommitOutcome.SKIPPED
    assert_same_set(job)


def test_fault_02_a_runner_that_was_stopped_writes_nothing_when_it_wakes_up(
    kafka: EmbeddedKafka, tmp_path: Path, client: str
) -> None:
    # Stopped with its transaction open for long enough that the coordinator has ended it.
    scenario = make_scenario(
        kafka.bootstrap, tmp_path, messages=200, messages_per_second=150, slots=2
    )
    sleeper = start_runner(tmp_path, client=client)
    assert sleeper.pid is not None
    try:
        topic = scenario.job.topic
        await_condition(
            lambda: sum(list_offsets(scenario.properties, topic, [0, 1], "latest").values()) > 0
        )
        os.killpg(sleeper.pid, signal.SIGSTOP)
        second = inject_here(scenario.job)
        assert second.injected + second.skipped == 800
        await_decided(kafka.bootstrap, topic, 2)
        ends = list_offsets(scenario.properties, topic, [0, 1], "latest")
        os.killpg(sleeper.pid, signal.SIGCONT)
        sleeper.join(200)
        assert sleeper.exitcode in (0, 1)  # everything skipped, or fenced
        assert list_offsets(scenario.properties, topic, [0, 1], "latest") == ends
    finally:
        kill_process(sleeper)
    assert_same_set(scenario.job)


def test_fault_02_a_producer_that_was_fenced_before_its_first_message_stops(
    scenario: MakeScenario,
) -> None:
    job = scenario(slots=1, chunks=1).job

    class Overtaken(TransactionalWriter):
        def _commit(self, producer: SlotProducer, sent: ChunkMessages) -> float:
            inject_here(job)
            return super()._commit(producer, sent)

    with pytest.raises(ProducerFenced):
        inject_here(job, writer=Overtaken)
    assert_same_set(job)


def test_fault_02_a_runner_that_wakes_up_late_asks_for_its_lease_before_it_takes_the_slot(
    scenario: MakeScenario,
) -> None:
    job = scenario(slots=1, chunks=2, transaction_timeout_ms=1500).job
    first, second = job.manifest.chunks
    # Nothing ends the other one's transactions, however slow it is.
    other = TransactionalWriter(replace(job.writer_settings(), transaction_timeout_ms=60_000))
    sessions: list[str] = []

    class Stopped(TransactionalWriter):
        """Stopped with its transaction open, while another runner replaces it."""

        def _produce_record(self, producer: SlotProducer, sent: ChunkMessages) -> None:
            time.sleep(1.6)
            sessions.append(other.write(first, read_chunk(job.directory, first)).session)
            super()._produce_record(producer, sent)

    class Lease:
        """Lost as soon as the other runner has it."""

        def look(self, progress: InjectionProgress) -> str:
            if sessions:
                raise LeaseHeld("another runner has taken over")
            return ""

    with pytest.raises(LeaseHeld):
        inject_here(job, CombinedBrakes([Lease()]), writer=Stopped)
    # The other one still has the slot, and goes on.
    done = other.write(second, read_chunk(job.directory, second), after=sessions[0])
    assert (done.outcome, done.attempts) == (CommitOutcome.INJECTED, 1)
    assert_same_set(job)


class LostAnswer(TransactionalWriter):
    """The first commit succeeds, and its answer never arrives."""

    commits = 0

    def _commit(self, producer: SlotProducer, sent: ChunkMessages) -> float:
        seconds = super()._commit(producer, sent)
        self.commits += 1
        if self.commits == 1:
            raise AttemptError(KafkaFailure("timed out", retryable=True), abortable=False)
        return seconds


def test_fault_03_a_commit_that_timed_out_but_had_committed_is_skipped(
    scenario: MakeScenario,
) -> None:
    job = scenario().job
    results: list[ChunkResult] = []
    result = inject_here(job, writer=LostAnswer, on_chunk=results.append)
    assert (result.injected, result.skipped) == (250, 50)
    assert (results[0].outcome, results[0].attempts) == (CommitOutcome.SKIPPED, 2)
    assert_same_set(job)


class LostCommit(TransactionalWriter):
    """The first commit request never arrives, and neither does the abort."""

    tried = False

    def _commit(self, producer: SlotProducer, sent: ChunkMessages) -> float:
        if self.tried:
            return super()._commit(producer, sent)
        self.tried = True
        producer.begin()
        producer.produce(sent.chunk.slot, sent.table, sent.pace)
        self._produce_record(producer, sent)
        producer.flush()
        raise AttemptError(KafkaFailure("timed out", retryable=True), abortable=False)


def test_fault_04_a_commit_that_timed_out_and_was_aborted_is_sent_again(
    scenario: MakeScenario,
) -> None:
    job = scenario().job
    results: list[ChunkResult] = []
    assert inject_here(job, writer=LostCommit, on_chunk=results.append).injected == 300
    assert (results[0].outcome, results[0].attempts) == (CommitOutcome.INJECTED, 2)
    assert_same_set(job)


def test_fault_05_a_transaction_that_the_coordinator_times_out_starts_from_step_1(
    scenario: MakeScenario,
) -> None:
    job = scenario(slots=1, transaction_timeout_ms=1500).job

    class Slow(TransactionalWriter):
        slow = True

        def _produce_record(self, producer: SlotProducer, sent: ChunkMessages) -> None:
            super()._produce_record(producer, sent)
            if self.slow:
                self.slow = False
                producer.flush()
                # The first messages of the topic, and the abort marker: one more offset.
                end = sent.table.num_rows + 1
                await_condition(
                    lambda: list_offsets(job.properties, job.topic, [0], "latest")[0] == end
                )

    results: list[ChunkResult] = []
    assert inject_here(job, writer=Slow, on_chunk=results.append).injected == 100
    assert [r.outcome for r in results] == [CommitOutcome.INJECTED, CommitOutcome.INJECTED]
    assert_same_set(job)


def test_fault_06_an_abort_that_is_refused_means_a_new_producer(scenario: MakeScenario) -> None:
    job = scenario(slots=1).job

    class AbortedBefore(TransactionalWriter):
        """The transaction is over already when the writer wants to abort it."""

        failed = False

        def _produce_record(self, producer: SlotProducer, sent: ChunkMessages) -> None:
            if not self.failed:
                self.failed = True
                producer.abort()
                raise AttemptError(KafkaFailure("failed", retryable=True), abortable=True)
            super()._produce_record(producer, sent)

    assert inject_here(job, writer=AbortedBefore).injected == 100
    assert_same_set(job)


def test_fault_10_a_transaction_timeout_above_the_brokers_is_refused(
    scenario: MakeScenario,
) -> None:
    job = scenario(transaction_timeout_ms=20 * 60 * 1000).job
    with pytest.raises(Refused, match=r"transaction\.max\.timeout\.ms"):
        inject_here(job)
    assert sum(list_offsets(job.properties, job.topic, range(3), "latest").values()) == 0


def test_fault_11_the_broker_restarts_in_mid_run(tmp_path: Path, client: str) -> None:
    with EmbeddedKafka.start(tmp_path / "kafka") as kafka:
        scenario = make_scenario(
            kafka.bootstrap, tmp_path, chunks=6, messages=200, messages_per_second=900
        )
        runner = start_runner(tmp_path, client=client)
        try:
            await_condition(lambda: len(read_copies(tmp_path)) >= 3)
            kafka.kill()
            kafka.restart()
            runner.join(200)
            assert runner.exitcode == 0, read_words(tmp_path)
        finally:
            kill_process(runner)
        assert_same_set(scenario.job)


def test_fault_14_a_message_too_large_for_the_topic_leaves_no_partial_chunk(
    scenario: MakeScenario,
) -> None:
    job = scenario(
        slots=1, chunks=1, messages=60, size=600, config={"max.message.bytes": "3000"}
    ).job
    # Each fits and a batch of them would not: the client has to cut them by the topic's limit.
    settings = job.writer_settings(3000)
    chunk = job.manifest.chunks[0]
    table = read_chunk(job.directory, chunk)
    assert TransactionalWriter(settings).write(chunk, table).count == 60
    assert_same_set(job)
    large = make_table(job.topic, 0, [random.Random(1).randbytes(3000).hex()], job.recovery_id)
    chunk = write_chunk(job.directory, 0, 1, large)
    with pytest.raises(KafkaFailure, match="MSG_SIZE_TOO_LARGE") as caught:
        TransactionalWriter(settings).write(chunk, large)
    assert not caught.value.retryable
    # The broker's own refusal, where the client was not told the limit, is the same.
    with pytest.raises(KafkaFailure, match="MSG_SIZE_TOO_LARGE"):
        TransactionalWriter(job.writer_settings()).write(chunk, large)
    assert_same_set(job)


def test_fault_68_an_overlapping_recovery_that_wakes_up_late_sends_nothing(
    scenario: MakeScenario,
) -> None:
    first = scenario(recovery_id="r-20261121-0001").job
    second = scenario(
        recovery_id="r-20261121-0002",
        topic=first.topic,
        ledger=first.ledger.topic,
        snapshot=first.ledger,
    ).job
    chunk = first.manifest.chunks[0]
    table = read_chunk(first.directory, chunk)
    assert inject_here(second).injected == 300
    # A zombie inside an executor: its driver's checks are long past, nothing of it is fenced.
    with pytest.raises(PlanStale, match="r-20261121-0002"):
        TransactionalWriter(first.writer_settings()).write(chunk, table)
    with pytest.raises(PlanStale, match="r-20261121-0002"):
        inject_here(first)
    assert_same_set(second)


def test_a_cancelled_recovery_that_wakes_up_late_sends_nothing(scenario: MakeScenario) -> None:
    job = scenario().job
    settings = job.writer_settings()
    writer = TransactionalWriter(settings)
    first = next(c for c in job.manifest.chunks if c.slot == 0)
    done = writer.write(first, read_chunk(job.directory, first))
    fence_slots(
        job.properties,
        job.prefix,
        job.topic,
        range(3),
        recovery_id=job.recovery_id,
        ledger=job.ledger,
    )
    second = next(c for c in job.manifest.chunks if c.slot == 0 and c.number == 1)
    with pytest.raises(ProducerFenced):
        writer.write(second, read_chunk(job.directory, second), after=done.session)
    with pytest.raises(Refused, match="cancelled"):
        TransactionalWriter(settings).write(second, read_chunk(job.directory, second))
    # It is no stranger to a new plan.
    records = read_committed_chunks(job.properties, job.ledger, job.topic)
    assert [(r.slot, r.chunk) for r in records] == [(0, 0)]


def test_a_chunk_in_the_ledger_with_another_hash_is_refused(scenario: MakeScenario) -> None:
    job = scenario(slots=1, chunks=1).job
    inject_here(job)
    other = make_table(job.topic, 0, ["other"], job.recovery_id)
    chunk = write_chunk(job.directory, 0, 0, other)
    with pytest.raises(PlanStale, match="another hash"):
        TransactionalWriter(job.writer_settings()).write(chunk, other)


# Brokers let a burst of ten seconds through, then nothing for as long as it was too large.


def test_fault_174_what_a_quota_took_is_told(scenario: MakeScenario, unique: str) -> None:
    job = scenario(slots=1, chunks=1, messages=330, size=600).job
    job = replace(job, properties=limit_rates(job.properties, unique, producer_byte_rate=50_000.0))
    progress: list[InjectionProgress] = []
    results: list[ChunkResult] = []
    done = inject_here(job, on_chunk=results.append, on_progress=progress.append)
    assert done.injected == 330
    assert 0 < results[0].throttled <= results[0].seconds
    assert progress[-1].throttling == done.throttling
    assert "brokers throttled it for" in done.throttling.describe("it")


@pytest.mark.parametrize("share", [None, 0.9])
def test_an_injection_that_keeps_to_a_share_is_never_throttled(
    scenario: MakeScenario, unique: str, client: str, share: float | None
) -> None:
    job = scenario(slots=2, chunks=9, messages=20, size=600).job
    mine = limit_rates(job.properties, unique, producer_byte_rate=50_000.0)
    rate = None if share is None else share * 50_000.0
    done = inject_here(replace(job, properties=mine, bytes_per_second=rate))
    assert (done.injected, done.throttling.throttled > 0) == (360, share is None)
    if rate is not None:
        assert 0.8 * sum(map(measure_chunk, job.manifest.chunks)) / rate < done.seconds


def test_fault_174_a_quota_that_no_chunk_fits_is_told(scenario: MakeScenario, unique: str) -> None:
    job = scenario(slots=1, chunks=1, messages=400, size=600, transaction_timeout_ms=2000).job
    job = replace(job, properties=limit_rates(job.properties, unique, producer_byte_rate=50_000.0))
    (chunk,) = job.manifest.chunks
    with pytest.raises(OutcomeUnknown) as caught:
        TransactionalWriter(job.writer_settings()).write(chunk, read_chunk(job.directory, chunk))
    assert "brokers throttled this client for" in caught.value.error.message
    assert "client quotas" in caught.value.error.hint
