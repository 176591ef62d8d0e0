"""Transactions of a relay that have ended, and whose marker is missing (KAFKA-20734)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka import KafkaError, KafkaException

from backlogctl.clock import Deadline
from backlogctl.errors import HangingTransaction
from backlogctl.fanout.relay.commits import Counters, read_positions, write_counters
from backlogctl.fanout.relay.interface import RECORD, WIRE, RelayTask, SourceRange
from backlogctl.fanout.relay.session import fence_relays
from backlogctl.fanout.relay.worker import make_relay_engine
from backlogctl.kafka import markers
from backlogctl.kafka.markers import ProducerIdAndEpoch
from backlogctl.kafka.transactions import abort_transaction, read_open_transactions
from backlogctl.wire.produce import Membership, WireProducer
from tests.fanout.relay.conftest import MakeWorld
from tests.fanout.relay.doing import RelayWorld, check_copied, fill, relay
from tests.kit.kafka import wait_until
from tests.kit.transactions import open_raw, unverified, write_hanging


@contextmanager
def taken_over(task: RelayTask) -> Iterator[WireProducer]:
    """As a relay of partition 0 does it."""
    with open_raw(task.properties) as client:
        producer = WireProducer(client, task.transactional_id(0), task.transaction_timeout_ms)
        producer.init_transactions(60)
        yield producer
        producer.close()


def take_over(task: RelayTask) -> ProducerIdAndEpoch:
    """Its next transaction."""
    with taken_over(task) as producer:
        return producer.producer


@contextmanager
def pending(task: RelayTask, offset: int) -> Iterator[ProducerIdAndEpoch]:
    """A transaction that commits this offset, and its coordinator does not know of it; aborted at
    the end: else nobody could read the log of commits any more."""
    groups = (task.group, task.recovery_group)
    position = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": write_counters(Counters(task.recovery_id), 10),
    }

    try:
        with taken_over(task) as producer, unverified(task.properties):
            producer._add_offsets = lambda *_: None  # type: ignore[method-assign]
            for group in groups:
                # The broker takes the setting a moment after it has said so.
                send = partial(producer.send_offsets, Membership(group), task.source, position)
                wait_until(partial(succeeds, send), what="the commit is taken")
            left = producer.producer
        yield left
    finally:
        with taken_over(task) as producer:
            producer._write_markers((), is_commit=False, groups=groups)


def leave(world: RelayWorld, of: ProducerIdAndEpoch, partition: int, sequence: int = 0) -> None:
    write_hanging(
        *(world.properties, world.target),
        partition=partition,
        producer_id=of.id,
        epoch=of.epoch,
        sequence=sequence,
    )


def count_open(world: RelayWorld) -> int:
    places = range(world.target_partitions)
    return len(read_open_transactions(world.properties, world.target, places, Deadline(60.0)))


def test_fault_183_what_a_relay_aborted_is_not_committed_by_the_next(
    make_world: MakeWorld,
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 200})
    with here.guarded() as task:
        relay(make_relay_engine(WIRE), task, [SourceRange(0, 0, 50)])
        left = take_over(task)
        for place in (3, 7):
            leave(here, left, place)
        relay(make_relay_engine(WIRE), task, here.ranges())
    assert count_open(here) == 0
    assert check_copied(here) == []


def test_fault_183_what_a_relay_committed_is_not_aborted_by_the_next(
    make_world: MakeWorld,
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 200})
    with here.guarded(order="round_robin") as task:
        relay(make_relay_engine(WIRE), task, [SourceRange(0, 0, 50)])
        at = read_positions(
            *(here.admin, task.recovery_group, here.source, [0], task.recovery_id, Deadline(60.0))
        )
        last = at[0].counters(task.recovery_id).producer
        assert last is not None
        # More of the same transaction, which its commit of the source's offset says is committed.
        leave(here, last, 3, sequence=5)
        relay(make_relay_engine(WIRE), task, here.ranges())
    assert count_open(here) == 0
    assert len(here.read_target()) == 205


def test_fault_183_closing_ends_what_a_relay_left_open(make_world: MakeWorld) -> None:
    """An expansion that closes, is cancelled or is set back has no next relay that would."""
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 200})
    with here.guarded(order="round_robin") as task:
        relay(make_relay_engine(WIRE), task, [SourceRange(0, 0, 50)])
        at = read_positions(
            *(here.admin, task.recovery_group, here.source, [0], task.recovery_id, Deadline(60.0))
        )
        last = at[0].counters(task.recovery_id).producer
        assert last is not None
        leave(here, last, 3, sequence=5)
        fence_relays(WIRE, task, [0], ends=True)
        assert count_open(here) == 0
        assert len(here.read_target()) == 55
        leave(here, take_over(task), 7)
        assert count_open(here) == 1
        fence_relays(WIRE, task, [0], ends=True)
        assert count_open(here) == 0
        assert len(here.read_target()) == 55
        leave(here, take_over(task), 7)
        with pytest.raises(HangingTransaction):  # of librdkafka's nobody knows which one it is
            fence_relays(RECORD, task, [0], ends=True)
        for engine in (WIRE, RECORD):  # set back, what is in the temporary topic is not needed
            fence_relays(engine, replace(task, target=f"{task.target}.gone"), [0], ends=False)
        fence_relays(WIRE, task, [0], ends=True)


def test_fault_183_a_position_that_has_no_marker_either_is_aborted(
    make_world: MakeWorld,
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 200})
    with here.guarded() as task, pending(task, 20) as left:
        leave(here, left, 3)
        relay(make_relay_engine(WIRE), task, here.ranges())
    assert count_open(here) == 0
    assert check_copied(here) == []
    assert here.commits() == {0: 200}


def test_fault_183_a_transaction_that_has_its_marker_in_some_places_is_not_judged(
    make_world: MakeWorld,
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 200})
    with here.guarded(order="round_robin") as task:
        relay(make_relay_engine(WIRE), task, [SourceRange(0, 0, 50)])
        with pending(task, 60) as left:
            leave(here, left, 3)
            # Elsewhere it has one; whether it says commit or abort is not asked.
            leave(here, left, 4)
            end_on_its_partition(here, 4)
            with pytest.raises(HangingTransaction, match="whether it was committed is not known"):
                relay(make_relay_engine(WIRE), task, here.ranges())


def test_fault_183_the_marker_of_an_offset_is_looked_after(make_world: MakeWorld) -> None:
    here = make_world(partitions=1)
    position = {
        "partition_index": 0,
        "committed_offset": 20,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    task = here.task(b"")
    with taken_over(task) as producer:
        with unverified(task.properties), pytest.MonkeyPatch.context() as patch:
            patch.setattr(producer, "_add_offsets", lambda *_: None)
            send = partial(producer.send_offsets, Membership(task.group), task.source, position)
            wait_until(partial(succeeds, send), what="the commit is taken")
        producer.commit_transaction(60)
    assert here.commits() == {0: 20}


def test_fault_183_the_mend_of_a_commit_is_never_aborted(make_world: MakeWorld) -> None:
    here = make_world(partitions=1)
    with taken_over(here.task(b"")) as producer:
        leave(here, producer.producer, 3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(producer, "_end", fail_late)
            with pytest.raises(KafkaException):
                producer._write_markers([(here.target, 3)], is_commit=True)
        producer.abort_transaction(60)
    assert len(here.read_target()) == 5


def fail_late(**_: object) -> None:
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def succeeds(call: Callable[[float], object]) -> bool:
    with suppress(KafkaException):
        call(60)
        return True
    return False


def test_fault_183_a_commit_that_stays_undecided_is_said(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backlogctl.fanout.relay.wire.INIT_SECONDS", 5.0)
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 200})
    said = "commit of its offset is undecided"
    with (
        here.guarded() as task,
        pending(task, 20),
        pytest.raises(HangingTransaction, match=said),
    ):
        relay(make_relay_engine(WIRE), task, here.ranges())


def end_on_its_partition(world: RelayWorld, partition: int) -> None:
    """As an operator does with Kafka's own tool."""
    (one,) = read_open_transactions(world.properties, world.target, [partition], Deadline(60.0))
    abort_transaction(world.properties, one, Deadline(60.0), even_if_committed=True)


@pytest.mark.parametrize(
    ("can_ask", "said"),
    [(True, "whether it was committed is not known"), (False, r"is open for more than 2\.5 s")],
)
def test_fault_183_librdkafka_refuses_to_go_on_behind_what_is_open(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, can_ask: bool, said: str
) -> None:
    if not can_ask:
        monkeypatch.setattr(markers, "translate_properties", lambda _: (None, "so"))
        monkeypatch.setattr("backlogctl.fanout.relay.records._COORDINATOR_SECONDS", 1.0)
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 200})
    with here.guarded(transaction_timeout_ms=1500) as task:
        leave(here, take_over(task), 3)
        with pytest.raises(HangingTransaction, match=said):
            relay(make_relay_engine(RECORD), task, here.ranges())
