"""The guard: nobody else commits while the backlog is relayed. Counters, routing and pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure, ProducerFenced, Refused
from backlogctl.fanout.relay.commits import (
    MAX_TEXT,
    Counters,
    is_counted,
    read_counters,
    write_counters,
)
from backlogctl.fanout.relay.guard import CLIENT_ID, GroupGuard, find_others
from backlogctl.fanout.relay.interface import (
    RECORD,
    ConsumerCameBack,
    GuardLost,
    Order,
    Position,
    PositionExpired,
    RelayEngine,
    RelayTask,
    SourceRange,
    name_relay_transactional_id,
)
from backlogctl.fanout.relay.records import Router
from backlogctl.fanout.relay.session import Hooks, RelaySession
from backlogctl.fanout.relay.worker import (
    make_relay_engine,
    read_error,
    read_position,
    read_task,
    write_task,
)
from backlogctl.kafka.admin import Member, describe_group_state
from backlogctl.partitioners import PARTITIONERS
from backlogctl_delivery.sequenced.clients import hash_murmur2
from tests.conftest import MakeTopic
from tests.fanout.relay.conftest import MakeWorld
from tests.fanout.relay.doing import (
    RelayWorld,
    await_commits,
    check_copied,
    check_until,
    fill,
    filling,
    keep_checking,
    member_of,
    pin_nothing,
    pool_of,
    read_on,
    relay,
    run,
    start_relays,
)
from tests.kit.kafka import join, read_all, repeating, wait_until

NOTHING = Hooks(lambda: None, lambda: None, lambda: None)
PROTOCOLS = {"classic": {"group_protocol": "classic"}, "consumer": {"group_protocol": "consumer"}}


def session_of(
    world: RelayWorld,
    log: Path,
    hooks: Hooks = NOTHING,
    *,
    engine: str = RECORD,
    **changes: object,
) -> RelaySession:
    return RelaySession(
        world.guard,
        lambda metadata: world.task(metadata, **changes),
        log / "relay.log",
        hooks,
        engine=engine,
        processes=2,
    )


def test_it_joins_an_empty_group_at_once_and_leaves_it_at_once(make_world: MakeWorld) -> None:
    here = make_world(partitions=3)

    def visit() -> float:
        """Seconds that it takes, without the end of its session."""
        guard = here.guard()
        began = time.monotonic()
        assert guard.join(lambda: None)
        guard.check()
        assert find_others(here.properties, here.group, Deadline(60)) == ()
        guard.leave()
        guard.leave()
        assert describe_group_state(here.admin, here.group).members == ()
        join(here.properties, here.group, here.source).close()
        return time.monotonic() - began

    # More than once where the machine stands still meanwhile.
    assert any(visit() < 5 for _ in range(5))


def test_it_names_who_is_in_the_group_and_takes_nothing_from_them(make_world: MakeWorld) -> None:
    here = make_world(partitions=2)
    fill(here.properties, here.source, {0: 5, 1: 5})
    consumer = join(here.properties, here.group, here.source, client_id="orders-7")
    guard = here.guard()
    with closing(consumer), repeating(lambda: consumer.poll(0), 0.05):
        try:
            with pytest.raises(ConsumerCameBack, match="orders-7"):
                guard.join(lambda: None)
        finally:
            guard.leave()


def test_join_is_given_up_when_the_caller_has_to_stop(make_world: MakeWorld) -> None:
    here = make_world(partitions=1)
    guard = GroupGuard(here.properties, here.group, "no-such-topic", 1, "r-1")

    def look() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        guard.join(look)
    guard.leave()
    guard = GroupGuard(here.properties, here.group, here.source, 2, "r-1")  # has one partition only
    with pytest.raises(GuardLost, match="not every partition"):
        guard.join(lambda: None, 0.5)
    guard.leave()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fault_65_a_consumer_that_comes_back_stops_the_relay(
    engine: RelayEngine, make_world: MakeWorld, tmp_path: Path, protocol: str
) -> None:
    here = make_world(partitions=2)
    fill(here.properties, here.source, {0: 3000, 1: 3000})
    seen: list[dict[int, int]] = []
    read: list[Message] = []
    with closing(
        session_of(here, tmp_path, transaction_timeout_ms=6_000, engine=engine.name)
    ) as session:
        session.join()
        session.start(lambda: [SourceRange(0, 0), SourceRange(1, 0)])
        with filling(here.properties, here.source, 2):
            check_until(session, lambda: len(session.positions) == 2)
            seen.append(here.commits())
            with member_of(here, client_id="orders-7", **PROTOCOLS[protocol]) as consumer:
                with pytest.raises(ConsumerCameBack, match="orders-7"):
                    watch(session, consumer, read)
                assert session.pids == ()
                session.leave()
                seen.append(here.commits())
                time.sleep(0.3)  # nothing is committed against it any more
                seen.append(here.commits())
                assert seen[-1] == seen[-2]
                read += read_on(consumer, 1)
                at_end = here.ends()
                left = sum(at_end.values()) - sum(seen[-1].values()) - len(sort_out(read))
                read += read_on(consumer, max(1, left))
        seen.append(here.commits())
    assert all(a[p] <= b[p] for a, b in pairwise(seen) for p in (0, 1))
    # What neither relayed nor handled was produced after the consumer read.
    commits = seen[-1]
    late = [
        message
        for message in read_all(here.properties, here.source, range(2))
        if (message.offset() or 0) >= commits[message.partition() or 0]
    ]
    assert check_copied(here, also=[*sort_out(read), *late]) == []


def test_fault_65_a_modern_joiner_stops_the_relay_though_the_guard_keeps_its_partitions(
    make_world: MakeWorld, tmp_path: Path, topic: MakeTopic
) -> None:
    """The joiner reads another topic: nothing is taken from the guard, whose group is upgraded.

    The broker may then go on to accept the guard's pinned generation (KIP-1251).
    """
    here, other = make_world(partitions=2), topic(1)
    fill(here.properties, here.source, {0: 3000, 1: 3000})
    with closing(session_of(here, tmp_path, transaction_timeout_ms=6_000)) as session:
        session.join()
        session.start(lambda: [SourceRange(0, 0), SourceRange(1, 0)])
        with filling(here.properties, here.source, 2):
            check_until(session, lambda: len(session.positions) == 2)
            joiner = replace(here, source=other)
            with member_of(joiner, client_id="bills-1", **PROTOCOLS["consumer"]) as consumer:
                with pytest.raises(ConsumerCameBack, match="bills-1"):
                    watch(session, consumer, [])
                assert session.pids == ()
                state = describe_group_state(here.admin, here.group)
                assert state.type == "consumer"
                session.leave()
                stopped = here.commits()
                copied = len(here.read_target())
                check_until(session, lambda: here.ends() != here.commits())
        assert here.commits() == stopped
        assert len(here.read_target()) == copied
    with here.guarded() as task:  # the next run goes on where it stopped
        relay(make_relay_engine(RECORD), task, here.ranges())
    assert check_copied(here) == []


def sort_out(read: list[Message]) -> list[Message]:
    """Each message once: a consumer reads again what it had not committed when it lost it."""
    return list({(message.partition(), message.offset()): message for message in read}.values())


def watch(session: RelaySession, consumer: Consumer, read: list[Message]) -> None:
    """Looks at the session as the runner does, while the consumer polls."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        session.check()
        message = consumer.poll(0.02)
        if message is not None and message.error() is None:
            read.append(message)


def overtake(world: RelayWorld, into: list[Message]) -> None:
    """A consumer that comes back, reads everything, and is gone again."""
    with member_of(world) as consumer:
        into += read_on(consumer, sum(world.ends().values()) - sum(world.commits().values()))


def relay_past_a_visitor(
    world: RelayWorld, engine: RelayEngine, metadata: bytes, read: list[Message], end: int = 400
) -> list[dict[int, int]]:
    """After the relay's first commit a consumer drains the group; then the relay goes on."""
    commits: list[dict[int, int]] = []

    def visit(position: Position) -> None:
        if not read:
            fill(world.properties, world.source, {0: 200}, first=200)
            overtake(world, read)
            commits.append(world.commits())

    running = start_relays(engine, world.task(metadata), [SourceRange(0, 0, end)], visit)
    try:
        running.end()
    finally:
        commits.append(world.commits())
    return commits


def test_fault_65_a_relay_that_goes_on_after_a_visitor_commits_nothing(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 200})
    read: list[Message] = []
    guard = here.guard()
    try:
        with pytest.raises(GuardLost):
            relay_past_a_visitor(here, engine, guard.join(lambda: None), read)
        with pytest.raises(GuardLost):  # nobody is there any more
            guard.check()
    finally:
        guard.leave()
    assert here.commits() == {0: 400}
    assert check_copied(here, also=read) == []


def test_without_the_guards_membership_messages_are_doubled_and_offsets_go_backwards(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    # What the test above is worth: generation −1 is no fence.
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 200})
    read: list[Message] = []
    commits = relay_past_a_visitor(here, engine, pin_nothing(here), read, end=300)
    assert commits == [{0: 400}, {0: 300}]
    assert len([t for t in check_copied(here, also=read) if t.startswith("too many")]) == 3


@pytest.mark.parametrize("who", ["a consumer", "another relay"])
def test_fault_65_a_relay_that_wakes_up_too_late_commits_nothing(
    engine: RelayEngine, make_world: MakeWorld, tmp_path: Path, who: str
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 60_000})
    read: list[Message] = []
    guard = here.guard()
    try:
        task = here.task(guard.join(lambda: None), transaction_timeout_ms=6_000)
        with pool_of(task, [SourceRange(0, 0)], tmp_path, engine=engine.name) as pool:
            pool.start()
            wait_until(lambda: pool.positions)
            (sleeper,) = pool.pids
            os.kill(sleeper, signal.SIGSTOP)
            try:
                if who == "a consumer":
                    fill(here.properties, here.source, {0: 2_000}, first=60_000)
                    overtake(here, read)
                else:
                    with pool_of(task, here.ranges(), tmp_path, engine=engine.name) as other:
                        run(other)
                commits = here.commits()
                copied = len(here.read_target())
            finally:
                os.kill(sleeper, signal.SIGCONT)
            fill(here.properties, here.source, {0: 500}, first=70_000)
            with pytest.raises((GuardLost, ProducerFenced)):
                keep_checking(pool)
            pool.kill()
        assert here.commits() == commits
        assert len(here.read_target()) == copied
    finally:
        guard.leave()
    with here.guarded() as task:
        relay(make_relay_engine(RECORD), task, here.ranges())
    assert check_copied(here, also=read) == []


def test_a_guard_is_not_taken_for_a_consumer(make_world: MakeWorld) -> None:
    here = make_world(partitions=1)
    with here.guarded():
        assert find_others(here.properties, here.group, Deadline(60)) == ()
        with member_of(here, client_id="x") as consumer:

            def others() -> tuple[Member, ...]:
                consumer.poll(0.1)
                return find_others(here.properties, here.group, Deadline(60))

            wait_until(others, what="the consumer is in the group")
            (other,) = others()
            assert other.client_id == "x"
            assert not other.client_id.startswith(CLIENT_ID)
    await_commits(here, {0: 0})


RECOVERY = "r-20261121-0001"
big = st.integers(0, 2**63 - 1)


@given(st.lists(big, max_size=60), big, big)
def test_counters_come_back_from_the_metadata(counts: list[int], relayed: int, size: int) -> None:
    before = Counters(RECOVERY, relayed, size, dict(enumerate(counts)))
    assert read_counters(write_counters(before, len(counts)), RECOVERY) == before


@given(st.integers(0, 3000), st.integers(0, 2**40))
def test_counts_that_do_not_fit_the_metadata_are_left_out(partitions: int, count: int) -> None:
    before = Counters(RECOVERY, 7, 9, dict.fromkeys(range(partitions), count))
    text = write_counters(before, partitions)
    assert len(text.encode()) <= MAX_TEXT
    after = read_counters(text, RECOVERY)
    assert (after.relayed, after.bytes) == (7, 9)
    assert after.counts in (before.counts, None)
    if after.counts is None:
        assert partitions > 300
        # Once they are not known they stay so.
        assert read_counters(write_counters(after, 3), RECOVERY).counts is None


def test_partitions_without_a_message_are_counted_as_none() -> None:
    text = write_counters(Counters(RECOVERY, 5, 9, {1: 5}), 3)
    assert read_counters(text, RECOVERY).counts == {0: 0, 1: 5, 2: 0}


GARBAGE = (
    None,
    "",
    "consumer's own words",
    "{",
    "[]",
    "7",
    "null",
    '{"r":',
    '{"v":1}',
    '{"v":1,"r":"r-2"}',
    '{"v":2,"r":"r-20261121-0001","n":1,"b":1}',
    '{"v":1,"r":"r-20261121-0001","n":"x","b":1}',
    '{"v":1,"r":"r-20261121-0001","n":1,"b":null}',
    '{"v":1,"r":"r-20261121-0001","n":1,"b":1,"c":"\\"\\""}',
    '{"v":1,"r":"r-20261121-0001","n":1,"b":1,"c":3}',
    '{"v":1,"r":"r-20261121-0001","n":1,"b":1,"c":"é"}',
)


@pytest.mark.parametrize("text", GARBAGE)
def test_what_somebody_else_wrote_counts_nothing(text: str | None) -> None:
    assert read_counters(text, RECOVERY) == Counters(RECOVERY)
    assert is_counted(text, RECOVERY) == (RECOVERY in (text or ""))


@given(st.text(), st.text(min_size=1))
def test_any_metadata_can_be_read(text: str, other: str) -> None:
    assert read_counters(text, RECOVERY).recovery_id == RECOVERY
    mine = write_counters(Counters(RECOVERY, 1, 1, {0: 1}), 1)
    if other != RECOVERY:
        assert read_counters(mine, other) == Counters(other)


keys = st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=200)


@given(keys, st.integers(1, 300), st.integers(0, 10**9), st.sampled_from(sorted(PARTITIONERS)))
def test_keys_go_where_the_partitioner_says_and_the_others_round(
    batch: list[bytes | None], partitions: int, turn: int, partitioner: str
) -> None:
    placed = Router("key", partitioner, partitions, turn).place(batch)
    wanted = PARTITIONERS[partitioner](pa.array(batch, pa.binary()), partitions).tolist()
    for at, (key, place) in enumerate(zip(batch, placed, strict=True)):
        assert place == ((turn + at) % partitions if key is None else wanted[at])
        if key is not None and partitioner == "murmur2":
            assert place == (hash_murmur2(key) & 0x7FFFFFFF) % partitions


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 60))
def test_round_robin_is_even_over_batches_and_restarts(sizes: list[int], partitions: int) -> None:
    seen: Counter[int] = Counter(dict.fromkeys(range(partitions), 0))
    done = 0
    for size in sizes:
        seen.update(Router("round_robin", "murmur2", partitions, done).place([b"key"] * size))
        done += size
    assert max(seen.values()) - min(seen.values()) <= 1


@given(
    st.binary(),
    st.sampled_from(("key", "round_robin")),
    st.lists(st.builds(SourceRange, big, big, st.none() | big), max_size=4),
)
def test_a_task_comes_over_the_pipe_in_one_line(
    metadata: bytes, order: Order, parts: list[SourceRange]
) -> None:
    task = RelayTask(
        {"bootstrap.servers": "a:1", "sasl.password": "päss\nword"},
        RECOVERY,
        "orders",
        "orders.recovery.x",
        30,
        "group",
        metadata,
        order,
    )
    line = write_task(task, parts)
    assert "\n" not in line
    assert read_task(line) == (task, parts)
    assert "päss" not in repr(task)  # fault 59


@given(
    st.builds(Position, big, big, big, big, st.dictionaries(big, big), st.dictionaries(big, big))
)
def test_a_position_comes_over_the_pipe(position: Position) -> None:
    told = asdict(position)
    for name in ("counts", "last_offsets"):  # as JSON does
        told[name] = {str(place): count for place, count in told[name].items()}
    assert read_position(told) == position


@pytest.mark.parametrize(
    "error",
    [
        GuardLost("m", subject="s", hint="h"),
        PositionExpired("m", subject="s"),
        ProducerFenced("m"),
        Refused("m", hint="h"),
        KafkaFailure("m", retryable=True),
        KafkaFailure("m"),
    ],
)
def test_an_error_comes_over_the_pipe(error: BacklogError) -> None:
    again = read_error(error.to_json())
    assert type(again) is type(error)
    assert again.to_json() == error.to_json()


def test_an_error_of_an_unknown_kind_is_a_failure() -> None:
    again = read_error(ConsumerCameBack("m", subject="s").to_json())
    assert (type(again), again.message, again.retryable) == (KafkaFailure, "m", False)


def test_ids_are_static_and_never_an_injections() -> None:
    assert name_relay_transactional_id("backlog", "orders", 3) == "backlog:relay:orders.3"


# Where the relay places messages, and what that costs at its start.


def test_round_robin_goes_on_where_it_was() -> None:
    router = Router("round_robin", "murmur2", 3, turn=4)
    assert router.place([b"a", None]) + router.place([b"a", b"a"]) == [1, 2, 0, 1]
    assert router.place([]) == []


@pytest.mark.parametrize("partitioner", sorted(PARTITIONERS))
def test_placing_does_not_load_pandas(partitioner: str) -> None:
    """It would take a relay's process longer to load than all the rest of it."""
    program = f"""
import sys
from backlogctl.fanout.relay import worker
from backlogctl.fanout.relay.records import Router
Router("key", "{partitioner}", 30, 0).place([b"a", None, b"bc"])
sys.exit("pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
