"""The Kafka ledger: never under-read, and refused when it is not the plan's."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from backlogctl.clock import Deadline
from backlogctl.errors import ClusterUnreachable, HangingTransaction, PlanStale, Refused
from backlogctl.kafka.admin import create_topic, describe_topic, list_offsets
from backlogctl.kafka.clients import make_producer
from backlogctl.manifests import read_chunk
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.injection import waves
from backlogctl.spark_backfill.injection.ledger_topic import (
    check_ledger,
    ensure_ledger_topic,
    find_foreign_chunks,
    read_committed_chunks,
    read_visible,
    snapshot_ledger,
)
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.spark_backfill.injection.transactional import TransactionalWriter
from tests.conftest import MakeTopic
from tests.kafka_tools import delete_topic
from tests.spark_backfill.injection.conftest import MakeScenario
from tests.spark_backfill.injection.doing import (
    assert_same_set,
    await_condition,
    inject_here,
    open_transaction,
)


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
        writer._commit(producer, first, read_chunk(job.directory, first), None)
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
