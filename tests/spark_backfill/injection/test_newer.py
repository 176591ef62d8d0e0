"""Fault 94: states of rows that got a newer message, or whose row is gone, since the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from backlogctl.errors import Paused, PlanStale, Refused, VerificationFailed
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_consumer, make_producer
from backlogctl.manifests import read_chunk
from backlogctl.spark_backfill.injection.brakes import CombinedBrakes
from backlogctl.spark_backfill.injection.job import InjectionJob
from backlogctl.spark_backfill.injection.ledger_topic import read_committed_chunks
from backlogctl.spark_backfill.injection.newer import PlannedLog
from backlogctl.spark_backfill.injection.producing import SlotProducer
from backlogctl.spark_backfill.injection.transactional import (
    ChunkMessages,
    ChunkResult,
    TransactionalWriter,
)
from backlogctl_delivery.stamps import MESSAGE_ID, find_header
from tests.kit.kafka import move_log_start
from tests.spark_backfill.injection.conftest import MakeScenario
from tests.spark_backfill.injection.doing import Stop, inject_here, open_transaction

NEWER = b"a newer state"


@pytest.fixture
def job(scenario: MakeScenario) -> InjectionJob:
    """Two partitions with two chunks of 50 each; a canary of 15 in the first."""
    made = scenario(slots=2, canary=True).job
    ends = {p: made.start_offsets.get(p, 0) for p in range(2)}
    return replace(made, follows=PlannedLog(ends, None))


def send(job: InjectionJob, slot: int, keys: Sequence[bytes]) -> None:
    producer = make_producer(job.properties)
    for key in keys:
        producer.produce(job.topic, NEWER, key, slot)
    assert producer.flush(60) == 0


def list_keys(job: InjectionJob, slot: int, number: int) -> list[bytes | None]:
    chunk = next(c for c in job.manifest.chunks if (c.slot, c.number) == (slot, number))
    keys: list[bytes | None] = read_chunk(job.directory, chunk)["key"].to_pylist()
    return keys


def read_last(job: InjectionJob) -> tuple[dict[bytes, bytes | None], int]:
    """The last value of each key, as a read_committed reader has it; and how many are ours."""
    consumer = make_consumer(job.properties, {"enable.partition.eof": True})
    consumer.assign([TopicPartition(job.topic, p, 0) for p in range(job.partitions)])
    last: dict[bytes, bytes | None] = {}
    ours, pending = 0, job.partitions
    while pending:
        for message in consumer.consume(500, 1.0):
            if message.error():
                pending -= 1
                continue
            headers: Any = message.headers()
            ours += find_header(headers, MESSAGE_ID) is not None
            if (key := message.key()) is not None:
                last[key] = message.value()
    consumer.close()
    return last, ours


def test_fault_94_what_got_a_newer_message_is_left_out(job: InjectionJob) -> None:
    keys = [key for key in list_keys(job, 0, 0) + list_keys(job, 0, 3)[:10] if key is not None]
    send(job, 0, keys)
    results: list[ChunkResult] = []
    done = inject_here(job, on_chunk=results.append)
    assert done.left_out == len(keys)
    assert done.injected == job.manifest.count - len(keys)
    last, ours = read_last(job)
    assert all(last[key] == NEWER for key in keys)
    assert ours == done.injected
    # Who runs it again takes the ledger's word: what is left out stays so.
    again = inject_here(job, on_chunk=results.append)
    assert (again.skipped, again.injected, again.left_out) == (done.injected, 0, len(keys))
    records = read_committed_chunks(job.properties, job.ledger, job.topic)
    assert sum(len(one.left_out) for one in records) == len(keys)


def test_fault_94_of_a_canary_whose_rows_all_changed_nothing_is_sent(job: InjectionJob) -> None:
    canary = [c for c in job.manifest.chunks if c.canary]
    keys = [key for c in canary for key in list_keys(job, c.slot, c.number)]
    send(job, 0, [key for key in keys if key is not None])
    done = inject_here(job)
    # What has no key is of no row, and nothing can be newer.
    assert done.left_out == sum(key is not None for key in keys)


def test_fault_94_newer_ones_between_two_waves_are_seen(job: InjectionJob) -> None:
    with pytest.raises(Paused):
        inject_here(job, CombinedBrakes([Stop(4)]))
    keys = [key for key in list_keys(job, 1, 1) if key is not None]
    send(job, 1, keys)
    done = inject_here(replace(job, wave_chunks=1))
    last, ours = read_last(job)
    assert all(last[key] == NEWER for key in keys)
    assert ours == done.injected + done.skipped == job.manifest.count - done.left_out


class Late(TransactionalWriter):
    """A newer message comes after the driver's look, and before the chunk's own."""

    keys: Sequence[bytes] = ()

    def _commit(self, producer: SlotProducer, sent: ChunkMessages) -> float:
        if self.keys and sent.chunk.slot == 1:
            plain = make_producer(self.settings.properties)
            for key in self.keys:
                plain.produce(self.settings.topic, NEWER, key, 1)
            assert plain.flush(60) == 0
            self.keys = ()
        return super()._commit(producer, sent)


def test_fault_94_a_newer_one_between_the_look_and_the_commit(job: InjectionJob) -> None:
    keys = [key for key in list_keys(job, 1, 0)[:4] if key is not None]

    class LateHere(Late):
        def __init__(self, settings: object) -> None:
            super().__init__(settings)  # type: ignore[arg-type]
            self.keys = keys

    done = inject_here(job, writer=LateHere)
    assert done.left_out == len(keys)
    last, ours = read_last(job)
    assert all(last[key] == NEWER for key in keys)
    assert ours == done.injected


def test_fault_94_without_the_look_in_the_transaction_the_order_is_told(job: InjectionJob) -> None:
    """What finds an older state behind a newer one, in the log, was seen to fail."""
    keys = [key for key in list_keys(job, 1, 0)[:4] if key is not None]

    class Blind(Late):
        def __init__(self, settings: object) -> None:
            super().__init__(settings)  # type: ignore[arg-type]
            self.keys = keys

        def _require_newest(self, producer: SlotProducer, sent: ChunkMessages) -> None:
            pass

    with pytest.raises(VerificationFailed, match="3 messages stand behind a newer one"):
        inject_here(job, writer=Blind)


def test_fault_94_one_in_a_transaction_that_is_open_is_waited_for(job: InjectionJob) -> None:
    (key,) = [key for key in list_keys(job, 1, 0)[:1] if key is not None]
    with open_transaction(job.properties, job.topic, 1, timeout_ms=60_000) as stranger:
        stranger.produce(job.topic, NEWER, key, 1)
        assert stranger.flush(60) == 0
        with pytest.raises(Paused, match="hides messages that may be newer"):
            inject_here(replace(job, patience=1.0, hidden_wait=1.0))
        stranger.commit_transaction(30)
    done = inject_here(job)
    assert done.left_out == 1
    assert read_last(job)[0][key] == NEWER


def test_fault_94_one_that_was_aborted_is_none(job: InjectionJob) -> None:
    (key,) = [key for key in list_keys(job, 1, 0)[:1] if key is not None]
    with open_transaction(job.properties, job.topic, 1) as stranger:
        stranger.produce(job.topic, NEWER, key, 1)
        assert stranger.flush(60) == 0
    done = inject_here(job)
    assert done.left_out == 0
    assert read_last(job)[0][key] != NEWER


def test_fault_94_rows_that_are_gone_are_left_out(job: InjectionJob) -> None:
    assert job.follows is not None
    gone = frozenset(key for key in list_keys(job, 1, 1)[:5] if key is not None)
    done = inject_here(replace(job, follows=replace(job.follows, gone=gone)))
    assert done.left_out == len(gone)
    assert not gone & set(read_last(job)[0])


def test_fault_94_by_a_header(scenario: MakeScenario) -> None:
    made = scenario(slots=1, chunks=1).job
    job = replace(made, follows=PlannedLog({0: 0}, "type"))
    producer = make_producer(job.properties)
    producer.produce(job.topic, NEWER, b"any key", 0, headers=[("type", b"OrderPaid")])
    assert producer.flush(60) == 0
    assert inject_here(job).left_out == job.manifest.count


def test_fault_94_across_partitions_there_is_no_order(scenario: MakeScenario) -> None:
    """A newer one that came into another partition behind ours says nothing of ours."""
    made = scenario(slots=2, chunks=1).job
    job = replace(made, follows=PlannedLog({0: 0, 1: 0}, "type"))

    class Between(TransactionalWriter):
        def _commit(self, producer: SlotProducer, sent: ChunkMessages) -> float:
            seconds = super()._commit(producer, sent)
            plain = make_producer(self.settings.properties)
            headers: list[tuple[str, str | bytes | None]] = [("type", b"OrderPaid")]
            plain.produce(self.settings.topic, NEWER, b"k", 1 - sent.chunk.slot, headers=headers)
            assert plain.flush(60) == 0
            return seconds

    inject_here(job, writer=Between)


def test_fault_94_what_nothing_identifies_is_not_sent(scenario: MakeScenario) -> None:
    made = scenario(slots=1, chunks=1).job
    with pytest.raises(Refused, match="staged messages have no header 'order-id'"):
        inject_here(replace(made, follows=PlannedLog({0: 0}, "order-id")))
    assert read_last(made)[1] == 0


def test_fault_94_what_retention_has_removed_unread_is_not_known(job: InjectionJob) -> None:
    send(job, 0, [b"somebody"] * 30)
    move_log_start(job.properties, job.topic, {0: 10})
    before = list_offsets(job.properties, job.topic, range(2), "latest")
    with pytest.raises(PlanStale, match="retention has removed messages that came after the plan"):
        inject_here(job)
    assert list_offsets(job.properties, job.topic, range(2), "latest") == before


def test_events_are_sent_all(scenario: MakeScenario) -> None:
    made = scenario(slots=1, chunks=1).job
    send(made, 0, [key for key in list_keys(made, 0, 0) if key is not None])
    assert inject_here(made).left_out == 0
