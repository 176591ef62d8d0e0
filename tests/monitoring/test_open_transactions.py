"""Open transactions in front of a group: how long is too long, who left them, what is lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.clock import Deadline, utc_now
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.transactions import OpenTransaction, TransactionFate, abort_transaction
from backlogctl.ledger import Ledger
from backlogctl.monitoring.doctor.checks import CheckLevel
from backlogctl.monitoring.doctor.group import judge_transactions
from backlogctl.monitoring.metrics.groups import write_groups
from backlogctl.monitoring.offsets.lag import count_lag
from backlogctl.monitoring.offsets.standstills import MOMENT, find_standstills
from backlogctl.monitoring.verdict.judge import PartitionView, Point, judge_partition
from backlogctl.monitoring.verdict.status import GroupStatus, HeldBack, Retention, Verdict
from backlogctl.monitoring.watch.look import look_at_stream
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.monitoring.watch.open_transactions import _choose_patience, make_held
from backlogctl.values import PartitionSample, Sample
from tests.conftest import MakeTopic
from tests.kit.kafka import StreamStub, await_markers, publish, set_offsets_raw
from tests.kit.ledger import NOON
from tests.kit.transactions import leave_open, run_transactions, write_hanging
from tests.monitoring.live_watch import WATCH, look, make_config


def take(seconds: float, lso: int, high: int, committed: int | None = 0, **changed: Any) -> Sample:
    part = PartitionSample(0, 0, committed, lso, high)
    at = NOON + timedelta(seconds=seconds)
    made = Sample("orders", "main", "orders", "service", "topic-id", at, (part,))
    return replace(made, **changed)


# How long is too long.


def test_a_last_stable_offset_that_stands_still_is_an_open_transactions() -> None:
    history = [take(0, 40, 40), take(30, 50, 60), take(60, 50, 90)]
    (one,) = find_standstills(history, take(90, 50, 120, committed=50), "read_committed")
    assert (one.partition, one.offset, one.behind) == (0, 50, 70)
    assert (one.since, one.usual) == (NOON + timedelta(seconds=30), None)
    # Read a moment apart: of each sample, and no more than that.
    (busy,) = find_standstills(history[:2], take(60, 75, 90), "read_committed")
    assert busy.since == NOON + timedelta(seconds=60)
    assert find_standstills(history, take(90, 120, 120), "read_committed") == ()
    again = take(90, 50, 120, topic_id="made anew")
    assert find_standstills(history, again, "read_committed")[0].since == again.taken_at


def test_who_reads_uncommitted_waits_for_nobody() -> None:
    history = [take(0, 50, 60)]
    assert find_standstills(history, take(30, 50, 90, committed=50), "read_uncommitted") == ()
    beyond = take(30, 50, 90, committed=51)
    assert find_standstills(history, beyond, "unknown") == (), "its commit says how it reads"
    assert find_standstills(history, take(30, 50, 90, committed=None), "unknown") == ()


def test_what_producers_usually_take_is_learned() -> None:
    """Transactions of a minute, one after the other, as an exactly-once sink has them."""
    history = [take(20 * n, 10 * (n // 3), 10 * (n // 3) + 5 + n % 3) for n in range(60)]
    (one,) = find_standstills(history, take(1200, 200, 205), "read_committed")
    assert one.usual == timedelta(minutes=1)
    assert one.patience == timedelta(minutes=2)
    assert one.since == NOON + timedelta(seconds=1200)
    hanging = [*history, *(take(1200 + 20 * n, 200, 230) for n in range(8))]
    (late,) = find_standstills(hanging, take(1360, 200, 230), "read_committed")
    assert late.since == NOON + timedelta(seconds=1200)
    assert timedelta(seconds=160) > late.patience == timedelta(minutes=2)


@given(moves=st.lists(st.integers(1, 50), min_size=2, max_size=40), behind=st.integers(0, 20))
def test_an_end_that_moves_between_any_two_samples_never_stands(
    moves: list[int], behind: int
) -> None:
    ends = [sum(moves[:n]) for n in range(len(moves) + 1)]
    samples = [take(30 * n, end, end + behind) for n, end in enumerate(ends)]
    for one in find_standstills(samples[:-1], samples[-1], "unknown"):
        assert one.since == samples[-1].taken_at
        assert one.usual is None


# What it means for the group.

HELD = HeldBack(offset=100, messages=400, since=NOON, seconds_open=600.0)
STANDS = [Point(60.0 * n, 0, 100, 100, 500) for n in range(-10, 1)]
VIEW = PartitionView(0, STANDS, members=True, held=HELD, held_oldest_seconds=600.0)


@pytest.mark.parametrize("ends_in", [None, 86_000.0])
def test_what_lies_behind_is_lost_when_retention_comes_first(ends_in: float | None) -> None:
    view = replace(VIEW, held=replace(HELD, seconds_to_end=ends_in))
    kept = judge_partition(view)
    assert (kept.verdict, kept.lag, kept.seconds_to_loss) == (Verdict.BLOCKED, 0, None)
    hour = replace(view, retention=Retention(time=timedelta(hours=1)))
    losing = judge_partition(hour)
    assert (losing.verdict, losing.loss_by) == (Verdict.LOSING, "time")
    assert losing.seconds_to_loss == losing.seconds_retained == pytest.approx(3000.0)
    assert losing.expected_loss == 400
    assert losing.needed_per_second is None, "no consumer is fast enough"
    week = judge_partition(replace(view, retention=Retention(time=timedelta(days=7))))
    assert (week.verdict, week.seconds_to_loss) == (Verdict.BLOCKED, None)
    assert week.seconds_retained == pytest.approx(7 * 86_400 - 600.0)
    size = replace(view, retention=Retention(bytes=1000), bytes=5000)
    assert judge_partition(size).verdict is Verdict.LOSING


def test_nothing_is_lost_where_its_coordinator_ends_it_before() -> None:
    view = replace(
        VIEW, held=replace(HELD, seconds_to_end=300.0), retention=Retention(time=timedelta(hours=1))
    )
    assert judge_partition(view).verdict is Verdict.BLOCKED


def test_a_group_that_stands_before_it_is_told_as_that_too() -> None:
    stopped = replace(VIEW, points=[replace(p, committed=40) for p in STANDS], members=False)
    assert judge_partition(stopped).verdict is Verdict.STOP
    assert judge_partition(stopped).held == HELD
    assert judge_partition(replace(stopped, lost=3)).course is Verdict.STOP


def test_a_reader_of_unknown_isolation_is_judged_against_both_ends() -> None:
    at_stable = PartitionSample(0, 0, committed=10, lso=10, high=500)
    behind = replace(at_stable, committed=9)
    assert [count_lag(at_stable, how) for how in ("read_committed", "unknown")] == [0, 0]
    assert [count_lag(behind, how) for how in ("read_committed", "unknown")] == [1, 491]
    (one,) = find_standstills([take(0, 10, 500, 10)], take(30, 10, 500, 10), "unknown")
    assert make_held(one, None, NOON, "unknown").is_certain is False
    assert make_held(one, None, NOON, "read_committed").is_certain


# On real brokers.


def test_fault_90_a_hanging_transaction_is_never_nothing_unread(
    properties: dict[str, str], topic: MakeTopic, group: str, unique: str, ledger: Ledger
) -> None:
    """A producer died; 500 messages of others lie behind what it left."""
    name = topic(partitions=1, config={"retention.ms": "91800000"})
    publish(properties, name, {0: 10})
    leave_open(properties, name, f"left-{unique}")
    publish(properties, name, {0: 500})
    set_offsets_raw(properties, group, name, {0: 10})
    stream = StreamStub(name, group)
    status = look(ledger, properties, stream)
    assert (status.verdict, status.lag, status.held) == (Verdict.BLOCKED, 0, 501)
    (part,) = status.partitions
    assert part.held is not None
    assert part.held.transaction is not None
    assert part.held.transaction.transactional_id == f"left-{unique}"
    assert part.seconds_retained is not None
    assert 91_400 < part.seconds_retained <= 91_800
    assert "501 messages lie behind an open transaction since" in status.sentence
    assert f"transactional.id left-{unique}, producer" in status.sentence
    assert "epoch 0, partition 0); its coordinator aborts it at" in status.sentence
    assert "retention reaches them in 1 d 1 h at the earliest" in status.sentence
    assert status.next_commands[0] == "backlogctl transactions list orders"
    lines = write_groups([status])
    assert lines["backlog_transaction_held_messages"].endswith(b'partition="0"} 501\n')
    assert b"backlog_transaction_open_seconds" in lines["backlog_transaction_open_seconds"]
    (finding,) = judge_transactions(status)
    assert (finding.check, finding.level) == ("open-transaction", CheckLevel.LOSES)
    assert "501 messages lie behind an open transaction" in finding.found
    assert finding.commands == ("backlogctl transactions list orders",)

    unsure = look(ledger, properties, replace(stream, isolation="unknown"))
    assert "if the group reads committed data, which is not known" in unsure.sentence
    plain = look(ledger, properties, replace(stream, isolation="read_uncommitted"))
    assert (plain.lag, plain.held) == (501, 0), "nobody holds it back"

    abort_transaction(properties, part.held.transaction)
    await_markers(properties, name, {0: 512})
    free = look(ledger, properties, stream)
    assert (free.lag, free.held) == (501, 0), "with the marker, without what was aborted"
    assert free.verdict is not Verdict.BLOCKED


def test_fault_90_one_that_nobody_will_end_is_told_as_that(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(partitions=1)
    publish(properties, name, {0: 2})
    write_hanging(properties, name, count=1)
    publish(properties, name, {0: 4})
    set_offsets_raw(properties, group, name, {0: 2})
    status = look(ledger, properties, StreamStub(name, group))
    assert status.verdict is Verdict.BLOCKED
    assert (
        "its coordinator does not have it open: it stays until somebody ends it" in status.sentence
    )


def test_fault_90_healthy_transactions_are_no_trouble(
    properties: dict[str, str], topic: MakeTopic, group: str, unique: str, ledger: Ledger
) -> None:
    """Short ones, one after the other, while it is looked: none of them is told."""
    name = topic(partitions=1)
    end = run_transactions(properties, name, f"tx-{unique}", (3, True))
    set_offsets_raw(properties, group, name, {0: end})
    producer = make_producer(properties, transactional_id=f"busy-{unique}")
    producer.init_transactions(90)
    stream = StreamStub(name, group)
    for _ in range(3):
        producer.begin_transaction()
        producer.produce(name, b"v", partition=0)
        producer.flush(90)
        seen = look_at_stream(ledger, stream, properties, WATCH, Deadline(2.0)).status
        assert (seen.verdict, seen.held) == (Verdict.OK, 0)
        producer.commit_transaction(90)


def test_fault_90_the_watch_tells_it_with_the_second_sample(
    properties: dict[str, str], topic: MakeTopic, group: str, unique: str, ledger: Ledger
) -> None:
    name = topic(partitions=1)
    publish(properties, name, {0: 3})
    leave_open(properties, name, f"left-{unique}")
    set_offsets_raw(properties, group, name, {0: 3})
    config = make_config(properties, StreamStub(name, group))
    told: list[Verdict] = []
    stop = Event()

    def note(status: GroupStatus) -> None:
        told.append(status.verdict)
        if told[-1] is Verdict.BLOCKED:
            stop.set()

    watch_streams(config, ledger, timedelta(seconds=2), stop, on_status=note, rounds=30)
    assert told[0] is Verdict.OK, "it may be one that ends in a moment"
    assert told[-1] is Verdict.BLOCKED
    assert len(told) <= 2 + MOMENT / timedelta(seconds=2) + 1


def test_the_transaction_of_a_producer_that_goes_on_may_take_longer() -> None:
    (one,) = find_standstills([], take(0, 10, 20), "unknown")
    now = utc_now()
    alive = OpenTransaction(
        *("orders", 0, 10, 7, 0),
        last_written=now,
        transactional_id="sink",
        fate=TransactionFate.ONGOING,
        started_at=now - timedelta(minutes=1),
        timeout_seconds=3600.0,
    )
    assert _choose_patience(one, alive) == timedelta(minutes=6)
    silent = replace(alive, last_written=now - timedelta(seconds=30))
    assert _choose_patience(one, silent) == MOMENT
