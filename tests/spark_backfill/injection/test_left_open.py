"""Transactions of a slot that have ended, and whose marker is missing (KAFKA-20734).

The broker is given the messages of the transaction and never its marker, as by a coordinator that
takes a partition without a leader for a deleted one.
"""

from __future__ import annotations

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import HangingTransaction
from backlogctl.kafka import markers
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.markers import ProducerIdAndEpoch
from backlogctl.kafka.transactions import read_open_transactions
from backlogctl.manifests import read_chunk
from backlogctl.spark_backfill.injection.job import InjectionJob
from backlogctl.spark_backfill.injection.ledger_topic import read_committed_chunks
from backlogctl.spark_backfill.injection.producing import SlotProducer
from backlogctl.spark_backfill.injection.transactional import (
    CommitOutcome,
    TransactionalWriter,
    fence_slots,
    name_transactional_id,
)
from backlogctl.wire.produce import WireProducer
from tests.crash.runner import RECORD, take_client
from tests.kit.kafka import read_all
from tests.kit.transactions import open_raw, write_hanging
from tests.spark_backfill.injection.conftest import MakeScenario
from tests.spark_backfill.injection.doing import assert_same_set, inject_here


def take_slot(job: InjectionJob, slot: int = 0) -> ProducerIdAndEpoch:
    """As a runner does; its producer's next transaction."""
    with open_raw(job.properties) as client:
        name = name_transactional_id(job.prefix, job.topic, slot)
        producer = WireProducer(client, name, job.transaction_timeout_ms)
        producer.init_transactions(60)
        producer.close()
        return producer.producer


def leave(
    job: InjectionJob, of: ProducerIdAndEpoch, topic: str, partition: int, sequence: int = 0
) -> None:
    """Messages of that transaction, without a marker."""
    write_hanging(
        job.properties,
        topic,
        partition=partition,
        producer_id=of.id,
        epoch=of.epoch,
        sequence=sequence,
    )


def count_open(job: InjectionJob) -> int:
    places = [(job.topic, 0), (job.ledger.topic, job.ledger.place(job.topic, 0))]
    return sum(
        len(read_open_transactions(job.properties, topic, [number], Deadline(60.0)))
        for topic, number in places
    )


@pytest.mark.parametrize("hides_its_record", [False, True])
def test_fault_183_an_aborted_transaction_without_its_marker_is_not_committed_by_the_next(
    scenario: MakeScenario, hides_its_record: bool
) -> None:
    job = scenario(slots=1).job
    left = take_slot(job)
    leave(job, left, job.topic, 0)
    if hides_its_record:
        leave(job, left, job.ledger.topic, job.ledger.place(job.topic, 0))
    assert inject_here(job).injected == 100
    assert count_open(job) == 0
    assert_same_set(job)


def test_fault_183_a_committed_transaction_without_its_marker_is_committed(
    scenario: MakeScenario,
) -> None:
    job = scenario(slots=1).job
    first, second = job.manifest.chunks
    writer = TransactionalWriter(job.writer_settings())
    writer.write(first, read_chunk(job.directory, first))
    committed = read_committed_chunks(job.properties, job.ledger, job.topic)[-1].producer
    assert committed is not None
    # More of the same transaction: its ledger record says that it was committed.
    leave(job, committed, job.topic, 0, sequence=first.count)
    again = TransactionalWriter(job.writer_settings())
    assert again.write(second, read_chunk(job.directory, second)).outcome is CommitOutcome.INJECTED
    assert count_open(job) == 0
    seen = read_all(job.properties, job.topic, [0])
    assert len(seen) == first.count + 5 + second.count


def test_fault_183_a_transaction_that_nobody_can_judge_is_refused(scenario: MakeScenario) -> None:
    job = scenario(slots=1).job
    # Its ledger record is hidden, its messages are not there: aborted, or committed and gone.
    leave(job, take_slot(job), job.ledger.topic, job.ledger.place(job.topic, 0))
    with pytest.raises(HangingTransaction, match="whether it was committed is not known") as caught:
        inject_here(job)
    assert "KAFKA-20734" in caught.value.hint
    assert list_offsets(job.properties, job.topic, [0], "latest") == {0: 0}


def test_fault_183_a_record_that_stands_for_no_message_is_aborted(scenario: MakeScenario) -> None:
    """As of a cancel, or of a chunk all of whose messages were left out."""
    job = scenario(slots=1).job
    first, second = job.manifest.chunks
    TransactionalWriter(job.writer_settings()).write(first, read_chunk(job.directory, first))
    leave(job, take_slot(job), job.ledger.topic, job.ledger.place(job.topic, 0))
    result = inject_here(job)
    assert (result.injected, result.skipped) == (second.count, first.count)
    assert count_open(job) == 0
    assert_same_set(job)


def test_fault_183_a_cancelled_slot_does_not_commit_the_record_that_was_left_open(
    scenario: MakeScenario,
) -> None:
    job = scenario(slots=1).job
    left = take_slot(job)
    leave(job, left, job.topic, 0)
    leave(job, left, job.ledger.topic, job.ledger.place(job.topic, 0))
    fence_slots(
        *(job.properties, job.prefix, job.topic, [0]),
        recovery_id=job.recovery_id,
        ledger=job.ledger,
    )
    assert count_open(job) == 0
    assert read_all(job.properties, job.topic, [0]) == []


@pytest.mark.parametrize(
    ("can_ask", "said"),
    [(True, "whether it was committed is not known"), (False, "is open for more than 20 s")],
)
def test_fault_183_librdkafka_refuses_to_go_on_behind_what_is_open(
    scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch, can_ask: bool, said: str
) -> None:
    if not can_ask:
        monkeypatch.setattr(markers, "translate_properties", lambda _: (None, "so"))
    job = scenario(slots=1, transaction_timeout_ms=1500).job
    take_client(RECORD, monkeypatch)
    monkeypatch.setattr(SlotProducer, "_wait", 20.0)
    first = job.manifest.chunks[0]
    TransactionalWriter(job.writer_settings()).write(first, read_chunk(job.directory, first))
    leave(job, take_slot(job), job.topic, 0)
    with pytest.raises(HangingTransaction, match=said):
        inject_here(job)
    assert len(read_all(job.properties, job.topic, [0])) == first.count
