"""Guard and relays together: one relay at a time, and processes that are started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from backlogctl.errors import KafkaFailure, LeaseHeld, ProducerFenced, Refused
from backlogctl.fanout.relay import guard
from backlogctl.fanout.relay.interface import (
    RECORD,
    Position,
    RelayEngine,
    SourceRange,
    name_relay_transactional_id,
)
from backlogctl.fanout.relay.pool import RelayPool
from backlogctl.fanout.relay.session import Hooks, RelaySession, fence_relays
from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.crashpoints import VARIABLE
from tests.crash.points import RELAY_POINTS
from tests.fanout.relay.conftest import KEPT, MakeWorld
from tests.fanout.relay.doing import (
    RelayWorld,
    await_commits,
    check_copied,
    check_until,
    fill,
    filling,
    keep_checking,
    open_transaction,
    pool_of,
    relay,
    run,
    start_relays,
)
from tests.fanout.relay.test_guard import NOTHING, session_of
from tests.kit.kafka import (
    delete_group,
    join,
    move_log_start,
    properties_of,
    set_offsets_raw,
    wait_until,
)
from tests.kit.processes import is_running


def go_on(session: RelaySession, world: RelayWorld) -> None:
    """Until everything is relayed."""
    check_until(session, lambda: world.commits() == world.ends())


def start(session: RelaySession, world: RelayWorld) -> None:
    """Guard and relays, without an end."""
    session.join()
    session.start(lambda: [SourceRange(p, 0) for p in range(world.partitions)])
    check_until(session, lambda: len(session.positions) == world.partitions)


def test_a_guard_that_a_visitor_pushed_out_joins_again(
    engine: RelayEngine, make_world: MakeWorld, tmp_path: Path
) -> None:
    here = make_world(partitions=2)
    fill(here.properties, here.source, {0: 300, 1: 300})
    with closing(session_of(here, tmp_path, engine=engine.name)) as session:
        start(session, here)
        join(here.properties, here.group, here.source).close()
        fill(here.properties, here.source, {0: 300, 1: 300}, first=300)
        go_on(session, here)
        assert session.restarts == 1
        session.stop_relays()
        assert sum(at.relayed for at in session.positions.values()) == 1200
        session.check()
    assert check_copied(here) == []


def stop_in_a_transaction(session: RelaySession, world: RelayWorld) -> int:
    """SIGSTOP of the only relay process while a transaction of it is open."""
    (pid,) = session.pids
    for _ in range(100):
        wait_until(world.has_open_transactions)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.3)
        if world.has_open_transactions():  # else it was committed, and the markers came now
            return pid
        os.kill(pid, signal.SIGCONT)
    raise AssertionError("it was never stopped in a transaction")


def test_fault_05_a_transaction_that_timed_out_in_a_pause_is_done_again(
    engine: RelayEngine, make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The machine itself may pause as well.
    monkeypatch.setattr("backlogctl.fanout.relay.session.FENCED_AGAIN_SECONDS", 0.0)
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 300})
    with closing(
        session_of(here, tmp_path, transaction_timeout_ms=4_000, engine=engine.name)
    ) as session:
        with filling(here.properties, here.source, 1):
            start(session, here)
            pid = stop_in_a_transaction(session, here)
            wait_until(lambda: not here.has_open_transactions(), what="it is ended")
            os.kill(pid, signal.SIGCONT)
            at = session.positions[0].committed
            check_until(session, lambda: session.positions[0].committed > at)
        go_on(session, here)
    assert check_copied(here) == []


def test_a_relay_that_is_fenced_starts_again_once_if_the_lease_is_still_his(
    engine: RelayEngine, make_world: MakeWorld, tmp_path: Path
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 10})
    with closing(session_of(here, tmp_path, engine=engine.name)) as session:
        start(session, here)
        with filling(here.properties, here.source, 1):
            fence_relays(RECORD, here.task(b""), [0], ends=True)
            check_until(session, lambda: session.restarts == 1)
            at = session.positions[0].committed
            check_until(session, lambda: session.positions[0].committed > at)
            fence_relays(RECORD, here.task(b""), [0], ends=True)
            with pytest.raises(ProducerFenced):
                keep_checking(session)
            assert session.pids == ()


def test_a_relay_that_is_fenced_after_the_lease_was_lost_stops(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 10})
    lost: list[bool] = []

    def confirm() -> None:
        if lost:
            raise LeaseHeld("another runner has it")

    with closing(session_of(here, tmp_path, Hooks(lambda: None, confirm, lambda: None))) as session:
        start(session, here)
        with filling(here.properties, here.source, 1):
            lost.append(True)
            fence_relays(RECORD, here.task(b""), [0], ends=True)
            with pytest.raises(LeaseHeld):
                keep_checking(session)


def test_what_retention_took_is_on_record_before_the_relay_goes_on(
    engine: RelayEngine, make_world: MakeWorld, tmp_path: Path
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 50})
    move_log_start(here.properties, here.source, {0: 20})
    expired: list[dict[int, int]] = []
    hooks = Hooks(lambda: None, lambda: None, lambda: expired.append(here.commits()))
    with closing(session_of(here, tmp_path, hooks, engine=engine.name)) as session:
        session.join()
        session.start(lambda: [SourceRange(0, 20 if expired else 0)])
        go_on(session, here)
    assert expired == [{0: 0}]
    assert check_copied(here) == []


def test_fault_11_a_broker_dies_and_comes_back_in_mid_relay(
    engine: RelayEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three: where a partition has no leader, see tests/fanout/test_lags.py."""
    # The group comes back with a member that is gone: it is waited for, as long as here.
    for name in ("session.timeout.ms", "max.poll.interval.ms"):
        monkeypatch.setitem(guard._SETTINGS, name, guard.SESSION_TIMEOUT_MS)
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=3, heap="256m") as kafka:
        properties = properties_of(kafka.bootstrap)
        for name, partitions in (("source", 2), ("target", 6)):
            create_topic(properties, name, partitions=partitions, replication=3, config=KEPT)
        here = RelayWorld(properties, "source", "target", "group", 2, 6)
        set_offsets_raw(properties, "group", "source", {0: 0, 1: 0})
        fill(properties, "source", {0: 20_000, 1: 20_000}, size=100)
        with closing(session_of(here, tmp_path, NOTHING, engine=engine.name)) as session:
            start(session, here)
            kafka.kill(2)  # the first is the controller
            down = time.monotonic() + 1.0
            while time.monotonic() < down:
                session.check()
                time.sleep(0.05)
            kafka.restart(2)
            fill(properties, "source", {0: 500, 1: 500}, first=30_000)
            go_on(session, here)  # a call of the client may hang for 45 s
            session.stop_relays()
            await_commits(here, here.ends())
            relayed = {p: at.relayed for p, at in session.positions.items()}
            assert relayed == {0: 20_500, 1: 20_500}
        assert check_copied(here) == []


def test_a_second_relay_fences_the_first(make_world: MakeWorld, engine: RelayEngine) -> None:
    here = make_world(partitions=1)
    with here.guarded() as task:
        with filling(here.properties, here.source, 1):
            first = start_relays(engine, task, [SourceRange(0, 0)])
            wait_until(lambda: first.positions)
            second = start_relays(engine, task, [SourceRange(0, 0)])
            with pytest.raises(ProducerFenced):
                first.end()
            wait_until(lambda: second.positions)
        await_commits(here, here.ends())
        second.stopping.set()
        second.end()
    assert check_copied(here) == []


def relay_past_another(world: RelayWorld, engine: RelayEngine, **changes: str) -> None:
    """After the relay's first commit another one copies everything; then the first goes on."""
    fill(world.properties, world.source, {0: 200})
    with world.guarded() as task:
        other = world.task(task.group_metadata, **changes)
        seen: list[Position] = []

        def overtake(position: Position) -> None:
            seen.append(position)
            if len(seen) == 1:
                fill(world.properties, world.source, {0: 200}, first=200)
                relay(engine, other, world.ranges())

        start_relays(engine, task, [SourceRange(0, 0, 400)], overtake).end()


def test_a_relay_that_goes_on_behind_another_copies_nothing(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    here = make_world(partitions=1)
    with pytest.raises(ProducerFenced):
        relay_past_another(here, engine)
    assert here.commits() == {0: 400}
    assert check_copied(here) == []


def test_without_a_static_transactional_id_the_oracle_sees_messages_doubled(
    make_world: MakeWorld, engine: RelayEngine
) -> None:
    # What the test above is worth: an id of each run's own fences nobody.
    here = make_world(partitions=1)
    relay_past_another(here, engine, transactional_prefix="another")
    assert len([text for text in check_copied(here) if text.startswith("too many")]) == 3


def test_an_abandoned_transaction_is_ended_at_once(make_world: MakeWorld) -> None:
    here = make_world(partitions=3)
    name = name_relay_transactional_id("backlog", here.source, 1)
    abandoned = open_transaction(here.properties, name, here.target, 4)
    assert here.has_open_transactions()
    began = time.monotonic()
    fence_relays(RECORD, here.task(b""), range(3), ends=True)
    wait_until(lambda: not here.has_open_transactions())
    assert time.monotonic() - began < 120  # by itself it would end after ten minutes
    del abandoned
    assert here.read_target() == []


@pytest.mark.parametrize("point", RELAY_POINTS)
def test_fault_01_a_relay_that_is_killed_goes_on_where_it_was(
    engine: RelayEngine,
    make_world: MakeWorld,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 400})
    times = 1 if point == "p4.6.init.after" else 2
    with here.guarded() as task:
        with pool_of(task, [SourceRange(0, 0)], tmp_path, engine=engine.name) as pool:
            monkeypatch.setenv(VARIABLE, f"{point}:{times}")
            pool.start()
            if times == 2:
                wait_until(lambda: pool.positions or not pool.pids)
                fill(here.properties, here.source, {0: 400}, first=400)
            wait_until(lambda: not pool.pids, what="it is killed")
            monkeypatch.delenv(VARIABLE)
        with pool_of(task, here.ranges(), tmp_path, engine=engine.name) as again:
            run(again)
            assert again.positions[0].relayed == (400 if times == 1 else 800)
        assert here.commits() == here.ends()
    assert check_copied(here) == []
    numbers = range(here.target_partitions)
    assert sum(list_offsets(here.admin, here.target, numbers, "latest").values()) > 0


def test_a_process_that_is_killed_is_started_again(
    engine: RelayEngine, make_world: MakeWorld, tmp_path: Path
) -> None:
    here = make_world(partitions=3)
    fill(here.properties, here.source, {0: 2000, 1: 2000, 2: 2000})
    with (
        here.guarded() as task,
        filling(here.properties, here.source, 3),
        pool_of(
            task, [SourceRange(p, 0) for p in range(3)], tmp_path, count=2, engine=engine.name
        ) as pool,
    ):
        pool.start()
        check_until(pool, lambda: len(pool.positions) == 3)
        before = dict(pool.positions)
        killed = pool.pids[0]  # it has partitions 0 and 2
        os.kill(killed, signal.SIGKILL)
        check_until(
            pool,
            lambda: all(at.committed > before[p].committed for p, at in pool.positions.items()),
        )
        assert killed not in pool.pids
        assert sorted(pool.positions) == [0, 1, 2]
        # Between two transactions: nothing is open when its markers are written.
        pool.stop()
        assert not pool.pids
        assert pool.is_done
        assert here.commits() == {p: at.committed for p, at in pool.positions.items()}
        wait_until(lambda: not here.has_open_transactions(), 10.0)  # by itself after 15 s
    with (
        here.guarded() as task,
        pool_of(task, here.ranges(), tmp_path, engine=engine.name) as again,
    ):
        run(again)
    assert check_copied(here) == []
    assert (tmp_path / "relay.log").read_text() == ""


RUNNER = """
import json, sys, time
from pathlib import Path
from backlogctl.fanout.relay.interface import RelayTask, SourceRange
from backlogctl.fanout.relay.pool import RelayPool

told = json.loads(sys.stdin.readline())
told["group_metadata"] = told["group_metadata"].encode("latin-1")
pool = RelayPool(RelayTask(**told), [SourceRange(0, 0), SourceRange(1, 0)], Path(sys.argv[1]))
pool.start()
while len(pool.positions) < 2:
    time.sleep(0.02)
print(json.dumps(pool.pids), flush=True)
time.sleep(600)
"""


def test_fault_01_the_processes_end_with_a_runner_that_is_killed(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    here = make_world(partitions=2)
    fill(here.properties, here.source, {0: 500, 1: 500})
    with here.guarded() as task:
        runner = subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(tmp_path / "relay.log")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with runner:
            assert runner.stdin is not None
            assert runner.stdout is not None
            told = {**asdict(task), "group_metadata": task.group_metadata.decode("latin-1")}
            runner.stdin.write(json.dumps(told) + "\n")
            runner.stdin.flush()
            pids = json.loads(runner.stdout.readline())
            assert len(pids) == 2
            runner.kill()
        wait_until(lambda: not any(is_running(pid) for pid in pids))
    with here.guarded() as task, pool_of(task, here.ranges(), tmp_path) as again:
        run(again)
    assert check_copied(here) == []


def test_a_failure_that_would_come_again_is_raised(make_world: MakeWorld, tmp_path: Path) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 5})
    delete_group(here.properties, here.group)
    with here.guarded() as task, pool_of(task, here.ranges(), tmp_path) as pool:
        pool.start()
        with pytest.raises(Refused, match="no committed offset"):
            keep_checking(pool)


def test_a_relay_is_not_started_without_the_lease(make_world: MakeWorld, tmp_path: Path) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 5})
    mine = [True]

    def confirm() -> None:
        if not mine[0]:
            raise LeaseHeld("another runner has it")

    with here.guarded() as task:
        log = tmp_path / "relay.log"
        pool = RelayPool(task, [SourceRange(0, 0)], log, before_start=confirm)
        try:
            pool.start()
            await_commits(here, {0: 5})
            mine[0] = False
            os.kill(pool.pids[0], signal.SIGKILL)
            with pytest.raises(LeaseHeld):
                keep_checking(pool)
            assert pool.pids == ()
        finally:
            pool.kill()
        mine[0] = False
        with pytest.raises(LeaseHeld):
            RelayPool(task, [SourceRange(0, 0)], log, before_start=confirm).start()


def test_one_that_does_not_stop_is_killed(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backlogctl.fanout.relay.pool.STOP_SECONDS", 0.5)
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 5})
    with here.guarded() as task, pool_of(task, [SourceRange(0, 0)], tmp_path) as pool:
        pool.start()
        await_commits(here, {0: 5})
        os.kill(pool.pids[0], signal.SIGSTOP)
        with pytest.raises(KafkaFailure, match=r"did not stop within 0\.5 s"):
            pool.stop()
        assert pool.pids == ()
