"""The guard: nobody else commits while the backlog is relayed, and the relays notice who came."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure, ProducerFenced
from backlogctl.fanout.relay.guard import CLIENT_ID, GroupGuard, find_others
from backlogctl.fanout.relay.interface import (
    ConsumerCameBack,
    GuardLost,
    Position,
    RelayEngine,
    SourceRange,
)
from backlogctl.fanout.relay.pool import RelayPool
from backlogctl.fanout.relay.session import Hooks, RelaySession
from backlogctl.kafka.admin import Member, describe_group_state
from tests.conftest import MakeTopic
from tests.fanout.relay.conftest import MakeWorld
from tests.fanout.relay.doing import (
    RelayWorld,
    await_commits,
    check_copied,
    fill,
    filling,
    pin_nothing,
    read_committed,
    relay,
    start_relays,
)
from tests.fanout.relay.members import await_joined, drain_as_member, member_of, read_on
from tests.fanout.relay.test_fencing import pool_of, run_on
from tests.kafka_tools import wait_until

NOTHING = Hooks(lambda: None, lambda: None, lambda: None)
PROTOCOLS = {"classic": {"group_protocol": "classic"}, "consumer": {"group_protocol": "consumer"}}


def session_of(
    world: RelayWorld, log: Path, hooks: Hooks = NOTHING, **changes: object
) -> RelaySession:
    """A session on the world."""
    return RelaySession(
        world.guard,
        lambda metadata: world.task(metadata, **changes),
        log / "relay.log",
        hooks,
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
        with member_of(here) as consumer:
            await_joined(consumer)
        return time.monotonic() - began

    # More than once where the machine stands still meanwhile.
    assert any(visit() < 5 for _ in range(5))


def test_it_names_who_is_in_the_group_and_takes_nothing_from_them(make_world: MakeWorld) -> None:
    here = make_world(partitions=2)
    fill(here.properties, here.source, {0: 5, 1: 5})
    with member_of(here, client_id="orders-7") as consumer:
        await_joined(consumer)
        guard = here.guard()
        stopping = threading.Event()

        def go_on() -> None:
            while not stopping.is_set():
                consumer.poll(0.05)

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            with pytest.raises(ConsumerCameBack, match="orders-7"):
                guard.join(lambda: None)
        finally:
            guard.leave()
            stopping.set()
            thread.join()


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
    make_world: MakeWorld, tmp_path: Path, protocol: str
) -> None:
    here = make_world(partitions=2)
    fill(here.properties, here.source, {0: 3000, 1: 3000})
    session = session_of(here, tmp_path, transaction_timeout_ms=6_000)
    seen: list[dict[int, int]] = []
    read: list[Message] = []
    try:
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
    finally:
        session.close()
    assert all(a[p] <= b[p] for a, b in pairwise(seen) for p in (0, 1))
    # What neither relayed nor handled was produced after the consumer read.
    commits = seen[-1]
    late = [
        message
        for message in read_committed(here.properties, here.source, 2)
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
    session = session_of(here, tmp_path, transaction_timeout_ms=6_000)
    try:
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
    finally:
        session.close()
    with here.guarded() as task:  # the next run goes on where it stopped
        relay(make_engine(), task, here.ranges())
    assert check_copied(here) == []


def sort_out(read: list[Message]) -> list[Message]:
    """Each message once: a consumer reads again what it had not committed when it lost it."""
    return list({(message.partition(), message.offset()): message for message in read}.values())


def check_until(session: RelaySession, condition: Callable[[], bool]) -> None:
    """Checks the session until the condition holds."""

    def holds() -> bool:
        session.check()
        return condition()

    wait_until(holds)


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
    into += drain_as_member(world, sum(world.ends().values()) - sum(world.commits().values()))


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


def test_without_the_guards_membership_the_oracle_sees_messages_doubled(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    # What the test above is worth: generation −1 is no fence.
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 200})
    read: list[Message] = []
    commits = relay_past_a_visitor(here, engine, pin_nothing(here), read)
    assert commits[0] == commits[1] == {0: 400}
    assert len([t for t in check_copied(here, also=read) if t.startswith("too many")]) == 3


def test_without_the_guards_membership_offsets_go_backwards(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 200})
    commits = relay_past_a_visitor(here, engine, pin_nothing(here), [], end=300)
    assert commits == [{0: 400}, {0: 300}]


def stop_one(pool: RelayPool) -> int:
    """SIGSTOP of the relay's process, in the middle of its work."""
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    return pid


def await_failure(pool: RelayPool, seconds: float = 90.0) -> KafkaFailure:
    """The error that the pool is told."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            pool.check()
        except KafkaFailure as error:
            return error
        time.sleep(0.02)
    raise AssertionError("the relay did not fail")


@pytest.mark.parametrize("who", ["a consumer", "another relay"])
def test_fault_65_a_relay_that_wakes_up_too_late_commits_nothing(
    make_world: MakeWorld, tmp_path: Path, who: str
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 60_000})
    read: list[Message] = []
    guard = here.guard()
    try:
        task = here.task(guard.join(lambda: None), transaction_timeout_ms=6_000)
        with pool_of(task, [SourceRange(0, 0)], tmp_path) as pool:
            pool.start()
            wait_until(lambda: pool.positions)
            sleeper = stop_one(pool)
            try:
                if who == "a consumer":
                    fill(here.properties, here.source, {0: 2_000}, first=60_000)
                    overtake(here, read)
                else:
                    with pool_of(task, here.ranges(), tmp_path) as other:
                        other.start()
                        run_on(other)
                commits = here.commits()
                copied = len(here.read_target())
            finally:
                os.kill(sleeper, signal.SIGCONT)
            fill(here.properties, here.source, {0: 500}, first=70_000)
            error = await_failure(pool)
            assert isinstance(error, GuardLost | ProducerFenced), error
            pool.kill()
        assert here.commits() == commits
        assert len(here.read_target()) == copied
    finally:
        guard.leave()
    with here.guarded() as task:
        relay(make_engine(), task, here.ranges())
    assert check_copied(here, also=read) == []


def make_engine() -> RelayEngine:
    """The default one."""
    from backlogctl.fanout.relay.pool import DEFAULT_ENGINE
    from backlogctl.fanout.relay.worker import ENGINES

    return ENGINES[DEFAULT_ENGINE]()


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
