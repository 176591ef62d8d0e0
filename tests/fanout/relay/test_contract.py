"""What every RelayEngine does (protocol P4.6), on a real broker; spares and lost reasons."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message, TopicPartition

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure, ProducerFenced, Refused
from backlogctl.fanout.relay.commits import read_positions
from backlogctl.fanout.relay.interface import (
    RECORD,
    Position,
    PositionExpired,
    RelayEngine,
    SourceRange,
)
from backlogctl.fanout.relay.partition import HUNG, Watchdog
from backlogctl.fanout.relay.pool import Spares, count_processes
from backlogctl.fanout.relay.records import _RecordRelay
from backlogctl.fanout.relay.session import fence_relays
from backlogctl.kafka.batches import CODECS
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.raw_fetch import fetch_batches
from backlogctl.values import OffsetRange
from backlogctl.wire.codecs import HEADER_BYTES
from tests.fanout.relay.conftest import MakeWorld
from tests.fanout.relay.doing import (
    OLD_MS,
    RelayWorld,
    await_commits,
    check_copied,
    fill,
    open_transaction,
    relay,
    start_relays,
)
from tests.kit.kafka import (
    delete_group,
    join,
    move_log_start,
    set_config,
    set_offsets_raw,
    wait_until,
)

AWKWARD: tuple[tuple[bytes | None, bytes | None, list[tuple[str, Any]] | None], ...] = (
    (b"key", b"value", None),
    (b"key", None, None),  # a tombstone
    (b"key", b"", None),
    (None, b"no key", None),
    (b"", b"empty key", None),
    (None, None, None),
    (b"", b"", [("", b"")]),
    (b"key", b"headers", [("a", b"1"), ("b", None), ("a", b"2"), ("c", b""), ("a", None)]),
    (b"\x00\xff\xfe", bytes(range(256)), [("ключ ", b"\xff\x00"), ("x" * 300, b"y" * 300)]),
    (b"key", b"large" * 100_000, None),
)


def produce(world: RelayWorld, messages: Any, **settings: Any) -> None:
    """Messages to partition 0, each at a time of its own, years ago."""
    producer = make_producer(world.properties, **{"enable_idempotence": False, **settings})
    for number, (key, value, headers) in enumerate(messages):
        at = OLD_MS + number * 86_400_000
        producer.produce(world.source, value, key, 0, timestamp=at, headers=headers)
    assert producer.flush(90) == 0


@pytest.mark.parametrize("order", ["key", "round_robin"])
def test_messages_are_copied_untouched(
    make_world: MakeWorld, engine: RelayEngine, order: str
) -> None:
    here = make_world(partitions=1)
    produce(here, AWKWARD, compression_type="gzip")
    with here.guarded(order=order) as task:
        (position,) = relay(engine, task, here.ranges()).values()
    assert check_copied(here, order=order) == []
    copies = here.read_target()
    assert len(copies) == len(AWKWARD)
    assert {message.timestamp()[0] for message in copies} == {TIMESTAMP_CREATE_TIME}
    data = sum(len(key or b"") + len(value or b"") for key, value, _ in AWKWARD)
    assert (position.committed, position.relayed, position.bytes) == (len(AWKWARD),) * 2 + (data,)


def test_the_brokers_append_times_are_kept(make_world: MakeWorld, engine: RelayEngine) -> None:
    here = make_world(partitions=1, config={"message.timestamp.type": "LogAppendTime"})
    began = time.time() * 1000
    produce(here, AWKWARD)
    with here.guarded() as task:
        relay(engine, task, here.ranges())
    assert check_copied(here) == []
    assert all(message.timestamp()[1] >= began - 1000 for message in here.read_target())


@pytest.mark.parametrize("partitioner", ["murmur2", "crc32"])
def test_a_key_goes_where_its_producers_would_send_it_and_stays_in_order(
    make_world: MakeWorld, engine: RelayEngine, partitioner: str
) -> None:
    here = make_world(partitions=3, target_partitions=7)
    fill(here.properties, here.source, {0: 900, 1: 500, 2: 1})
    with here.guarded(partitioner=partitioner) as task:
        relay(engine, task, here.ranges())
    assert check_copied(here, partitioner=partitioner) == []
    # Those without a key go round.
    places = [message.partition() for message in here.read_target() if message.key() is None]
    assert set(places) == set(range(7))


def test_round_robin_is_even_over_restarts(make_world: MakeWorld, engine: RelayEngine) -> None:
    here = make_world(partitions=2, target_partitions=10)
    fill(here.properties, here.source, {0: 3000, 1: 3000})
    with here.guarded(order="round_robin") as task:
        for ends in ((7, 1), (1000, 333), (1001, 2999), (3000, 3000)):
            relay(engine, task, [SourceRange(p, 0, end) for p, end in enumerate(ends)])
    assert check_copied(here, order="round_robin") == []
    counts = count_by_partition(here.read_target())
    assert max(counts.values()) - min(counts.values()) <= 0.01 * 600


def count_by_partition(messages: list[Message]) -> dict[int, int]:
    return Counter(message.partition() or 0 for message in messages)


def test_aborted_data_is_not_copied_and_the_position_comes_to_the_end(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=2)
    for first, commit in ((0, True), (100, False), (200, True), (300, False)):
        fill(
            here.properties,
            here.source,
            {0: 20, 1: 5} if commit else {0: 30},
            first=first,
            transaction=here.source,
            commit=commit,
        )
    ends = here.ends()
    assert ends == {0: 104, 1: 12}
    with here.guarded() as task:
        running = start_relays(engine, task, [SourceRange(0, 0), SourceRange(1, 0)])
        await_commits(here, ends)
        running.stopping.set()
        positions = running.end()
    assert {p: at.committed for p, at in positions.items()} == ends
    assert {p: at.relayed for p, at in positions.items()} == {0: 40, 1: 10}
    assert check_copied(here) == []
    # Started again there is nothing left to do.
    with here.guarded() as task:
        assert {p: at.relayed for p, at in relay(engine, task, here.ranges()).items()} == {
            0: 40,
            1: 10,
        }


def test_an_open_transaction_of_the_source_holds_the_relay_back(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 50})
    stranger = open_transaction(here.properties, f"stranger-{here.source}", here.source, 0)
    fill(here.properties, here.source, {0: 50}, first=100)
    with here.guarded() as task:
        running = start_relays(engine, task, [SourceRange(0, 0)])
        await_commits(here, {0: 50})
        time.sleep(0.3)
        assert here.commits() == {0: 50}
        assert len(here.read_target()) == 50
        stranger.commit_transaction(90)
        await_commits(here, {0: 102})  # its message, its marker
        running.stopping.set()
        assert running.end()[0].relayed == 101
    assert check_copied(here) == []


def test_holes_in_the_offsets_are_no_losses(make_world: MakeWorld, engine: RelayEngine) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 40})
    fill(here.properties, here.source, {0: 40}, transaction=here.source, commit=False)
    fill(here.properties, here.source, {0: 40}, first=80)
    move_log_start(here.properties, here.source, {0: 25})
    with here.guarded() as task:
        # The start is behind the group's commit; the end is inside a hole.
        first = relay(engine, task, [SourceRange(0, 25, 60)])[0]
        assert (first.committed, first.relayed) == (60, 15)
        last = relay(engine, task, [SourceRange(0, 0, 121)])[0]
        assert (last.committed, last.relayed) == (121, 55)
    assert here.commits() == {0: 121}
    assert check_copied(here) == []


def test_fault_165_a_compacted_topic_keeps_the_times_of_its_messages(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    """Batches with tombstones get a delete horizon in place of their first timestamp (KIP-534)."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "500"}
    here = make_world(partitions=1, config=config)
    producer, days = make_producer(here.properties, {}), itertools.count()

    def is_cleaned() -> bool:
        for key, value in ((b"k%d" % (next(days) % 3), b""), (b"gone", None)):
            at = OLD_MS + next(days) * 86_400_000
            producer.produce(here.source, value, key, 0, timestamp=at)
            producer.flush(30)
        fetched = fetch_batches(here.properties, here.source, [OffsetRange(0, 0, here.ends()[0])])
        return any(header.has_delete_horizon for one in fetched for header in one.headers)

    wait_until(is_cleaned, what="the log is cleaned")
    set_config(here.properties, here.source, {"cleanup.policy": "delete"})
    with here.guarded() as task:
        relay(engine, task, here.ranges())
    assert check_copied(here) == []


def test_a_range_stops_exactly_at_its_end(make_world: MakeWorld, engine: RelayEngine) -> None:
    here = make_world(partitions=2)
    fill(here.properties, here.source, {0: 500, 1: 500})
    with here.guarded() as task:
        found = relay(engine, task, [SourceRange(0, 0, 123), SourceRange(1, 0, 1)])
        assert {p: (at.committed, at.relayed) for p, at in found.items()} == {
            0: (123,) * 2,
            1: (1, 1),
        }
        assert here.commits() == {0: 123, 1: 1}
        # An end that is behind already is not gone back to.
        found = relay(engine, task, [SourceRange(0, 0, 100)])
        assert found[0].committed == 123
        assert here.commits() == {0: 123, 1: 1}
    assert len(here.read_target()) == 124


def test_fault_27_an_empty_partition(make_world: MakeWorld, engine: RelayEngine) -> None:
    here = make_world(partitions=2)
    fill(here.properties, here.source, {0: 3})
    told: list[Position] = []
    with here.guarded() as task:
        found = relay(engine, task, here.ranges(), told.append)
        assert found[1] == Position(1, 0)
        running = start_relays(engine, task, [SourceRange(1, 0)], told.append)
        time.sleep(0.3)
        running.stopping.set()
        assert running.end()[1] == Position(1, 0)
    assert {position.partition for position in told} == {0}
    assert here.commits() == {0: 3, 1: 0}


def test_counters_go_on_over_runs_and_forget_what_was_aborted(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=1, target_partitions=5)
    fill(here.properties, here.source, {0: 6000}, size=20)

    def fence(position: Position) -> None:
        fence_relays(RECORD, here.task(b""), [0], ends=True)

    with here.guarded() as task:
        first = relay(engine, task, [SourceRange(0, 0, 1000)])[0]
        assert first.relayed == 1000
        running = start_relays(engine, task, [SourceRange(0, 0)], fence)
        fill(here.properties, here.source, {0: 1000}, first=6000, size=20)
        wait_until(lambda: running.positions or running.errors)
        # Fenced after its first commit: the next transaction comes to nothing.
        fill(here.properties, here.source, {0: 1000}, first=7000, size=20)
        with pytest.raises(ProducerFenced):
            running.end()
        assert here.commits()[0] == running.positions[0].committed < 8000
        last = relay(engine, task, here.ranges())[0]
    copies = here.read_target()
    assert last.committed == 8000
    assert last.relayed == len(copies) == 8000
    assert last.bytes == sum(len(m.key() or b"") + len(m.value() or b"") for m in copies)
    assert last.counts == count_by_partition(copies)
    assert check_copied(here) == []


def test_a_reset_of_the_group_leaves_the_relays_own_position(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    """Also while somebody is in the recovery's group; counters go on from there."""
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 40})
    numbers = (f"{here.group}.recovery", here.source, [0])
    member = join(here.properties, numbers[0], here.target)
    with closing(member), here.guarded() as task:
        relay(engine, task, [SourceRange(0, 0, 15)])
    set_offsets_raw(here.properties, here.group, here.source, {0: 30})
    own = read_positions(here.admin, *numbers, task.recovery_id, Deadline(30.0))
    assert own[0].offset == own[0].counters(task.recovery_id).relayed == 15
    assert read_positions(here.admin, *numbers, "r-20261121-0009", Deadline(30.0)) == {}
    with here.guarded() as task:
        assert relay(engine, task, here.ranges())[0].relayed == 25


def test_counters_of_another_recovery_are_not_taken_over(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 20})
    with here.guarded() as task:
        relay(engine, task, [SourceRange(0, 0, 15)])
    with here.guarded(recovery_id="r-20261121-0002") as task:
        assert relay(engine, task, here.ranges())[0].relayed == 5


def test_each_commit_is_told_once_it_is_committed(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=1)
    told: list[tuple[Position, dict[int, int], int]] = []

    def note(position: Position) -> None:
        told.append((position, here.commits(), len(here.read_target())))

    with here.guarded() as task:
        running = start_relays(engine, task, [SourceRange(0, 0)], note)
        for first in (0, 10, 20):
            fill(here.properties, here.source, {0: 10}, first=first)
            wait_until(lambda wanted=first + 10: told and told[-1][0].committed == wanted)  # type: ignore[misc]
        running.stopping.set()
        assert running.end()[0] == told[-1][0]
    for position, commits, copied in told:
        assert commits == {0: position.committed}
        assert copied == position.relayed == position.committed


def test_the_last_offsets_are_those_of_the_last_data_records(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=2, target_partitions=5)
    fill(here.properties, here.source, {0: 700, 1: 300})
    with here.guarded(order="round_robin") as task:
        found = relay(engine, task, [SourceRange(0, 0, 600)])
        real = {message.partition(): message.offset() for message in here.read_target()}
        assert found[0].last_offsets == real
        both = relay(engine, task, here.ranges())
    real = {message.partition(): message.offset() for message in here.read_target()}
    assert {p: max(at.last_offsets[p] for at in both.values()) for p in range(5)} == real


def test_fault_14_a_message_larger_than_the_temporary_topic_takes_is_named(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(
        partitions=1, target_partitions=2, target_config={"max.message.bytes": "20000"}
    )
    fill(here.properties, here.source, {0: 5})
    large = random.Random(1).randbytes(50_000)
    produce(here, [(b"large", large, None), *((b"large", b"small", None),) * 5])
    with here.guarded() as task:
        with pytest.raises(KafkaFailure, match="MSG_SIZE_TOO_LARGE") as caught:
            relay(engine, task, here.ranges())
        assert not caught.value.retryable  # it would fail for ever
        assert "offset 5 " in str(caught.value)
        assert here.commits() == {0: 0}
        assert here.read_target() == []
        assert not here.has_open_transactions()
        assert relay(engine, task, [SourceRange(0, 0, 5)])[0].relayed == 5


@pytest.mark.parametrize("codec", CODECS)
def test_a_message_as_large_as_its_topic_takes(
    make_world: MakeWorld, engine: RelayEngine, codec: str
) -> None:
    """It gets no larger on its way, though no codec makes it smaller."""
    limit = {"max.message.bytes": "20000"}
    here = make_world(partitions=1, target_partitions=2, config=limit, target_config=limit)
    value = random.Random(1).randbytes(20000 - HEADER_BYTES - 12)
    for one in (value, value + b"1"):
        produce(here, [(b"k", one, None)])
    assert here.ends() == {0: 1}, "it takes one byte more"
    with here.guarded(compression=codec) as task:
        assert relay(engine, task, here.ranges())[0].relayed == 1
    assert check_copied(here) == []


@pytest.mark.parametrize("codec", ["none", "lz4", "snappy"])
def test_batches_fit_a_small_topic(make_world: MakeWorld, engine: RelayEngine, codec: str) -> None:
    """With their header, and by a codec that makes them larger."""
    here = make_world(partitions=1, target_config={"max.message.bytes": "20000"})
    produce(
        here,
        [(b"k%d" % (n % 5), random.Random(n).randbytes(60 + n % 61), None) for n in range(2000)],
    )
    with here.guarded(compression=codec) as task:
        assert relay(engine, task, here.ranges())[0].relayed == 2000
    assert check_copied(here) == []


def test_what_the_broker_will_never_take_is_not_tried_again(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=1, target_config={"cleanup.policy": "compact"})
    produce(here, [(None, b"without a key", None)])
    with here.guarded() as task, pytest.raises(KafkaFailure, match="INVALID_RECORD") as caught:
        relay(engine, task, here.ranges())
    assert not caught.value.retryable
    assert here.commits() == {0: 0}


def test_offsets_that_are_not_decided_are_waited_for(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 20})
    other = open_transaction(here.properties, f"other-{here.source}", here.target, 0)
    with here.guarded() as task:
        pending = [TopicPartition(here.source, 0, 15)]
        other.send_offsets_to_transaction(pending, task.group_metadata, 90)
        running = start_relays(engine, task, [SourceRange(0, 0, 20)])
        time.sleep(1.0)
        assert not running.positions
        other.commit_transaction(90)
        assert running.end()[0].relayed == 5
    assert here.commits() == {0: 20}


def test_what_is_gone_before_it_was_relayed_is_told(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 30})
    move_log_start(here.properties, here.source, {0: 10})
    with here.guarded() as task:
        with pytest.raises(PositionExpired, match="offset 0"):
            relay(engine, task, here.ranges())
        assert here.commits() == {0: 0}
        # The caller goes on behind the gap once it is on record.
        assert relay(engine, task, [SourceRange(0, 10, 30)])[0].relayed == 20
    assert check_copied(here) == []


def test_fault_116_a_jump_is_committed_though_nothing_is_left(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    """No message would ever commit it, and the lag would stand for ever."""
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 30})
    move_log_start(here.properties, here.source, {0: 30})
    with here.guarded() as task:
        assert relay(engine, task, [SourceRange(0, 30, 30)])[0].relayed == 0
        assert here.commits() == {0: 30}
        place = (here.admin, task.recovery_group, here.source, [0], here.recovery_id)
        assert read_positions(*place, Deadline(60.0))[0].offset == 30
    assert here.read_target() == []


def test_fault_21_without_a_commit_it_is_not_known_where_to_begin(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 3})
    delete_group(here.properties, here.group)
    with here.guarded() as task:
        with pytest.raises(Refused, match="no committed offset"):
            relay(engine, task, here.ranges())
        assert here.read_target() == []
    set_offsets_raw(here.properties, here.group, here.source, {0: 1})
    with here.guarded() as task:
        assert relay(engine, task, here.ranges())[0].relayed == 2


def lose() -> None:
    raise SystemError("<method 'flush'> returned NULL without setting an exception")


def test_a_reason_that_the_client_has_lost_is_asked_for(make_world: MakeWorld) -> None:
    here = make_world(partitions=1)
    task = here.task(b"")
    relay = _RecordRelay(task, SourceRange(0, 0), lambda _: None, lambda: False)
    with pytest.raises(KafkaFailure, match="gave no reason") as none:
        relay._call(lose, "write")
    assert none.value.retryable
    producer = relay._open_producer()
    producer.init_transactions(90)
    producer.begin_transaction()
    producer.produce(task.target, b"v", b"k", 0)
    assert producer.flush(90) == 0
    fence_relays(RECORD, here.task(b""), [0], ends=True)
    # Brokers say the same of a transaction that timed out.
    with pytest.raises(ProducerFenced, match="taken over, or its transaction timed out"):
        relay._call(lose, "write")


def test_spares_wait_are_taken_once_and_end_with_who_started_them(tmp_path: Path) -> None:
    spares = Spares(tmp_path / "relay.log")
    spares.fill(2)
    first, second = spares.take(), spares.take()
    assert first.pid != second.pid
    assert (first.poll(), second.poll()) == (None, None)
    for child in (first, second):
        assert child.stdin is not None
        child.stdin.close()  # as when the runner is killed
        assert child.wait(120.0) == 70
        assert child.stdout is not None
        child.stdout.close()
    assert (tmp_path / "relay.log").read_text() == ""


def test_a_spare_that_died_is_not_taken_and_those_nobody_took_end(tmp_path: Path) -> None:
    spares = Spares(tmp_path / "relay.log")
    spares.fill(1)
    spares._children[0].kill()
    dead = spares._children[0]
    dead.wait(120.0)
    new = spares.take()
    assert new.pid != dead.pid
    spares._children.append(new)
    spares.close()
    assert new.returncode is not None


@pytest.mark.parametrize(("partitions", "wanted", "count"), [(3, None, 3), (0, None, 1), (9, 2, 2)])
def test_never_more_processes_than_partitions(
    partitions: int, wanted: int | None, count: int
) -> None:
    assert count_processes(partitions, wanted) == count


# A call of the client that hangs ends the process; one that only takes long does not.

_HANGING = """
import threading, time
from backlogctl.fanout.relay.partition import Watchdog

watchdog = Watchdog(late=0.2)


def call(seconds, limit):
    with watchdog.watching(f"a call of {seconds} s", limit):
        time.sleep(seconds)


threads = [threading.Thread(target=call, args=each) for each in ((0.5, 1.0), (60.0, 0.3))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_a_call_that_hangs_ends_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HANGING], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == HUNG
    assert done.stderr == "the client did not come back from: a call of 60.0 s\n"


def test_calls_that_come_back_in_time_do_not() -> None:
    ended: list[int] = []
    watchdog = Watchdog(late=0.1, end=ended.append)
    for _ in range(8):
        with watchdog.watching("a call", 0.1):
            time.sleep(0.08)
    time.sleep(0.3)
    assert ended == []
