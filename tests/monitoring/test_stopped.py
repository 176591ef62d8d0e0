"""Streams that are stopped, healthy, overtaken or near their retention."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from backlogctl.clock import Deadline, read_millis, utc_now
from backlogctl.errors import BacklogError, ClusterUnreachable, KafkaFailure
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.ledger import BurndownSample, Ledger
from backlogctl.monitoring.offsets.gaps import OffsetFinding, Suspicion, find_gaps
from backlogctl.monitoring.offsets.history import StreamHistory
from backlogctl.monitoring.offsets.observation import Observation, observe_stream
from backlogctl.monitoring.offsets.sampler import StreamLike, take_sample
from backlogctl.monitoring.verdict.status import UNLIMITED, GroupStatus, Unseen, Verdict
from backlogctl.monitoring.watch import look, loop
from backlogctl.monitoring.watch.loop import Outages, watch_streams
from backlogctl.monitoring.watch.notes import show_takers, with_stopped_warning, with_taken_note
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Certainty, Gap, GapState, Recovery, RecoveryState
from tests.conftest import MakeTopic
from tests.kit.kafka import (
    StreamStub,
    join,
    move_log_start,
    properties_of,
    publish,
    repeating,
    set_offsets_raw,
    wait_until,
)
from tests.kit.ledger import approve, create_recovery, make_gap
from tests.monitoring.live_watch import look as look_once
from tests.monitoring.live_watch import make_config
from tests.monitoring.test_metrics import make_part, make_status

# What a look does where the brokers tell less than it asks.


def test_without_the_right_to_read_settings_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise KafkaFailure("not authorized to read its settings", subject="topic orders")

    monkeypatch.setattr(look, "describe_topic", refuse)
    unseen: list[Unseen] = []
    found = look._read_settings(None, "orders", Deadline(1.0), unseen)  # type: ignore[arg-type]
    assert found is None
    assert look._find_retention(found) is UNLIMITED
    assert [one.what for one in unseen] == ["retention"]

    def leave(*_: Any) -> None:
        raise ClusterUnreachable("no broker answered", subject="cluster", retryable=True)

    monkeypatch.setattr(look, "describe_topic", leave)
    with pytest.raises(ClusterUnreachable):
        look._read_settings(None, "orders", Deadline(1.0), unseen)  # type: ignore[arg-type]


def test_a_timestamp_that_is_none_is_not_known() -> None:
    assert read_millis(1_700_000_000_000) is not None
    assert read_millis(1_700_000_000_000_000) is None, "microseconds"
    assert read_millis(2**63 - 1) is None


S = RecoveryState
TEMPORARY = "orders.recovery.r"


def make_seen(verdict: Verdict = Verdict.OK) -> GroupStatus:
    seen = make_status("order-service", stream="orders", parts=(make_part(0, 100),))
    return replace(seen, verdict=verdict, next_commands=("backlogctl status orders",))


def begin(ledger: Ledger, *steps: str) -> Recovery:
    """An expansion that runs and has begun these steps."""
    made = create_recovery(ledger, "expand", group="order-service", plan_hash="0" * 64)
    approve(ledger, made)
    for step in steps:
        ledger.steps.start(made.id, step)
    return ledger.recoveries.advance(made.id, S.RUNNING, "ada")


def test_without_a_recovery_that_has_stopped_them_it_is_what_it_is(ledger: Ledger) -> None:
    seen = make_seen()
    assert with_stopped_warning(ledger, seen) == seen
    begin(ledger, "check_source")
    assert with_stopped_warning(ledger, seen) == seen


def test_what_a_recovery_has_is_shown_and_not_planned_again(ledger: Ledger) -> None:
    """Another plan would take the place of one that waits for its approval."""
    first = ledger.gaps.record(make_gap(0, 60))
    second = ledger.gaps.record(make_gap(0, 40, partition=1))
    again, gaps = "backlogctl plan rebuild orders", "backlogctl gaps orders"
    lost = replace(make_seen(Verdict.LOST), group="orders-service", next_commands=(again, gaps))
    assert with_taken_note(lost, (first, second)) == lost

    made = create_recovery(ledger, "rebuild", group="orders-service", gaps=[first.id])
    told = with_taken_note(lost, ledger.gaps.list())
    show = f"backlogctl show {made.id}"
    assert told.sentence.endswith(f"at most 60 messages of it in {made.id}, not verified yet")
    assert told.next_commands == (again, gaps, show), "the other one needs a plan"

    ledger.gaps.advance([second.id], GapState.WAIVED, reason="none is needed")
    known = ledger.gaps.list()
    assert with_taken_note(lost, known).next_commands == (show, gaps)
    assert show_takers(known) == (show,)
    ledger.recoveries.advance(made.id, S.REJECTED, "ada")
    assert with_taken_note(lost, ledger.gaps.list()) == lost


def test_nobody_works_on_it(ledger: Ledger) -> None:
    recovery = begin(ledger, "check_source", "stop_consumers")
    told = with_stopped_warning(ledger, make_seen())
    assert told.verdict is Verdict.STOP
    assert told.sentence.startswith(
        f"orders: nothing unread; its consumers are stopped by expand {recovery.id}, which is "
        "running, and on which nobody works"
    )
    assert told.next_commands == (f"backlogctl show {recovery.id}", "backlogctl status orders")
    assert with_stopped_warning(ledger, make_seen(Verdict.LOST)).verdict is Verdict.LOST


def test_what_is_only_in_the_temporary_topic_is_said(ledger: Ledger) -> None:
    recovery = begin(ledger, "check_source", "create_topic", "stop_consumers")
    ledger.temporary_topics.announce(recovery.id, "main", TEMPORARY, 20)
    with ledger.leases.hold(recovery.id):
        told = with_stopped_warning(ledger, make_seen())
        assert told.verdict is Verdict.WARN
        assert f"how many messages are only in {TEMPORARY} is not known" in told.sentence
        ledger.burndown.add(
            BurndownSample(
                recovery_id=recovery.id,
                at=utc_now(),
                step="drain",
                source_lag=5,
                temporary_lag=249_456,
                relayed=300_000,
                handled=50_544,
                consumers=20,
            )
        )
        told = with_stopped_warning(ledger, make_seen())
        assert f"249,456 messages only in {TEMPORARY} at " in told.sentence


def test_a_layout_that_is_restored_is_told_no_more(ledger: Ledger) -> None:
    recovery = begin(ledger, "stop_consumers", "restore")
    ledger.steps.complete(recovery.id, "restore", {})
    seen = make_seen()
    assert with_stopped_warning(ledger, seen) == seen


SAMPLES = 250  # a look in the wrong order is wrong among the first hundred
LOG_STARTS = 100  # fewer, and it was no moving log start that was sampled
LONG = 600.0  # seconds, on a busy machine
FULL = 10_000  # messages that wait to be sent
WRONG_ORDER_TRIES = 20_000


@contextmanager
def run_busy_group(properties: dict[str, str], topic: str, group: str) -> Iterator[list[str]]:
    """A producer, a consumer that commits, and a log start that follows just below its commits."""
    stop, problems = threading.Event(), list[str]()
    committed: dict[int, int] = {}
    ready = threading.Event()

    def produce() -> None:
        producer = make_producer(properties, linger_ms="1")
        number = 0
        while not stop.is_set():
            if len(producer) > FULL:  # the broker has no time for more
                producer.poll(0.1)
                continue
            for partition in range(3):
                producer.produce(topic, b"value", str(number).encode(), partition)
            number += 1
            producer.poll(0.001)
        producer.flush(60)

    def consume() -> None:
        consumer = join(properties, group, topic)
        while not stop.is_set():
            messages = consumer.consume(200, 0.02)
            ends: dict[int, int] = {}
            for message in messages:
                partition, offset = message.partition(), message.offset()
                if message.error() or partition is None or offset is None:
                    problems.append(str(message.error()))
                    continue
                ends[partition] = offset + 1
            if ends:
                offsets = [TopicPartition(topic, p, at) for p, at in ends.items()]
                consumer.commit(offsets=offsets, asynchronous=False)
                committed.update(ends)
                if len(committed) == 3:
                    ready.set()
        consumer.close()

    def expire() -> None:
        admin = make_admin(properties)
        while not ready.wait(0.1) and not stop.is_set():
            pass
        while not stop.is_set():
            wanted = [TopicPartition(topic, p, at) for p, at in committed.items()]
            for future in admin.delete_records(wanted).values():
                future.result(120)

    def guard(work: Callable[[], None]) -> None:
        try:
            work()
        except (BacklogError, KafkaException, AssertionError, TimeoutError) as error:
            problems.append(f"{work.__name__}: {error!r}")

    threads = [threading.Thread(target=guard, args=(w,)) for w in (produce, consume, expire)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: ready.is_set() or problems, 120, "the group commits")
        assert not problems
        yield problems
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)


@pytest.mark.timeout(LONG)
def test_a_healthy_group_under_moving_retention_has_no_gap(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=3)
    stream, admin = StreamStub(name, group), make_admin(properties)
    gaps: list[Gap] = []
    alarms: list[OffsetFinding] = []
    lows: set[int] = set()
    past = StreamHistory()
    with run_busy_group(properties, name, group) as problems:
        started, taken = time.monotonic(), 0
        while taken < SAMPLES or (
            len(lows) <= LOG_STARTS and time.monotonic() < started + LONG / 2
        ):
            taken += 1
            sample = take_sample(stream, admin)
            judged = find_gaps(past, sample)
            past = judged.history
            gaps += judged.gaps
            alarms += [f for f in judged.findings if f.kind is not Suspicion.POSSIBLE_EXPIRED]
            lows.add(sample.partitions[0].low)
        print(f"{taken} samples in {time.monotonic() - started:.1f} s, {len(lows)} log starts")
    assert problems == []
    assert gaps == []
    assert alarms == []
    assert len(lows) > LOG_STARTS, "the log start moved all the time, or this proves nothing"


@pytest.mark.timeout(LONG)
def test_in_the_wrong_order_the_same_group_seems_to_lose(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=3)
    admin = make_admin(properties)
    with run_busy_group(properties, name, group):
        for _ in range(WRONG_ORDER_TRIES):
            committed = verbs.committed_offsets(admin, group, name, range(3))
            low = verbs.list_offsets(admin, name, range(3), "earliest")
            if any((committed[p] or 0) < low[p] for p in range(3)):
                return  # a loss that never happened
    pytest.fail("the wrong order was never wrong: the busy group is not busy enough")


PER_SECOND = 20
STEP = 12_000  # what retention deletes at once


@pytest.mark.timeout(300)
def test_fault_76_what_a_live_consumer_lost_is_in_bounded_gaps(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(partitions=1)
    small: dict[str, Any] = {"batch.num.messages": "20"}  # or one fetch holds all
    publish(properties, name, {0: 40_000}, **small)
    stream, admin = StreamStub(name, group), make_admin(properties)
    read: list[int] = []
    consumer = join(
        *(properties, group, name),
        enable_auto_commit="true",
        auto_commit_interval_ms="1000",
        enable_auto_offset_store="true",
        queued_min_messages="1",
        queued_max_messages_kbytes="1",
        fetch_message_max_bytes="2000",
    )

    def consume() -> None:
        message = consumer.poll(0.1)
        if message is not None and not message.error() and message.offset() is not None:
            read.append(message.offset() or 0)

    past = None
    steps = [STEP, 2 * STEP, 3 * STEP]
    with closing(consumer), repeating(consume, 1 / PER_SECOND):
        began = time.monotonic()
        while time.monotonic() < began + 75:
            seen = observe_stream(ledger, stream, admin, history=past, settle=False)
            past = seen.history
            if steps and time.monotonic() > began + 45 + 9 * (3 - len(steps)):
                move_log_start(properties, name, {0: steps.pop(0)})
            time.sleep(1)
    lost = set(range(min(read), max(read))) - set(read)
    gaps = ledger.gaps.list(stream=stream.name)
    covered = {at for gap in gaps for at in range(gap.start or 0, gap.end or 0)}
    for gap in gaps:
        print(gap.certainty, gap.start, gap.end, gap.reason)
    print(f"lost {len(lost)}, covered {len(lost & covered)}, read {len(read)}")
    assert len(lost) > STEP
    assert lost <= covered
    ranged = [gap for gap in gaps if gap.end is not None]
    assert {gap.certainty for gap in ranged} == {Certainty.BOUNDED}
    assert (look_once(ledger, properties, stream).lost or 0) >= len(lost)


INTERVAL = timedelta(seconds=6)


@pytest.mark.parametrize(("retention", "least", "most"), [("20 s", 5, 30), ("1 h", 2, 3)])
def test_a_stream_near_its_retention_is_sampled_each_second(
    properties: dict[str, str],
    topic: MakeTopic,
    group: str,
    ledger: Ledger,
    retention: str,
    least: int,
    most: int,
) -> None:
    keep = {"20 s": 20, "1 h": 3600}[retention]
    # The short one is over within four intervals; nothing rolls the segment, so nothing is deleted.
    name = topic(config={"retention.ms": str(keep * 1000), "segment.ms": "600000"})
    publish(properties, name, {0: 1})
    set_offsets_raw(properties, group, name, {0: 0})
    config = make_config(properties, StreamStub(name, group))
    result = watch_streams(
        config, ledger, INTERVAL, threading.Event(), on_status=lambda _: None, rounds=2
    )
    assert result.error is None
    assert least <= len(ledger.samples.history("orders")) <= most


def test_one_time_out_is_enough_for_a_cluster(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten streams near their retention, of a cluster that is away, do not hold up the next round."""
    streams = [StreamStub(f"s{number}", "g", f"s{number}") for number in range(10)]
    config = make_config(properties_of("127.0.0.1:1"), *streams)
    judging = loop._Judging(INTERVAL, INTERVAL)
    outages = Outages(lambda *_: None)
    watch = loop._StreamWatcher(config, ledger, INTERVAL, judging, outages, None, None)
    asked: list[str] = []

    def observe(stream: StreamLike, *_: object, **__: object) -> Observation:
        asked.append(stream.name)
        raise ClusterUnreachable("no broker answered", subject="cluster main")

    monkeypatch.setattr(watch, "_observe", observe)
    watch.near.update(config.streams)
    watch.look_closer(threading.Event(), time.monotonic() - 1)
    assert asked == [], "the next round is due"
    watch.look_closer(threading.Event(), time.monotonic() + 60)
    assert (asked, watch.near) == ([], {}), "the cluster was asked once, for all of them"
    watch.near.update(config.streams)
    monkeypatch.setattr(loop._ClusterWatcher, "look", lambda *_, **__: None)
    watch.look_closer(threading.Event(), time.monotonic() + 60)
    assert (asked, watch.near) == (["s0"], {}), "it went away since"
