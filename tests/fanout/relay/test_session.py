"""Guard and relays together go on by themselves through what passes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from backlogctl.errors import LeaseHeld, ProducerFenced
from backlogctl.fanout.relay import guard
from backlogctl.fanout.relay.commits import fence_relays
from backlogctl.fanout.relay.interface import SourceRange
from backlogctl.fanout.relay.session import Hooks, RelaySession
from backlogctl.kafka.admin import create_topic
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.fanout.relay.conftest import KEPT, MakeWorld
from tests.fanout.relay.doing import (
    RelayWorld,
    await_commits,
    check_copied,
    fill,
    filling,
    keep_calling,
)
from tests.fanout.relay.members import await_joined, member_of
from tests.fanout.relay.test_guard import NOTHING, check_until, session_of
from tests.kafka_tools import move_log_start, properties_of, set_offsets_raw, wait_until


def go_on(session: RelaySession, world: RelayWorld, seconds: float = 120.0) -> None:
    """Checks the session until everything is relayed."""
    end = time.monotonic() + seconds
    while world.commits() != world.ends():
        assert time.monotonic() < end, (world.commits(), world.ends())
        session.check()
        time.sleep(0.05)


def start(session: RelaySession, world: RelayWorld) -> None:
    """Guard and relays, without an end."""
    session.join()
    session.start(lambda: [SourceRange(p, 0) for p in range(world.partitions)])
    check_until(session, lambda: len(session.positions) == world.partitions)


def test_a_guard_that_a_visitor_pushed_out_joins_again(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    here = make_world(partitions=2)
    fill(here.properties, here.source, {0: 300, 1: 300})
    session = session_of(here, tmp_path)
    try:
        start(session, here)
        with member_of(here) as visitor:
            await_joined(visitor)
        fill(here.properties, here.source, {0: 300, 1: 300}, first=300)
        go_on(session, here)
        assert session.restarts == 1
        session.stop_relays()
        assert sum(at.relayed for at in session.positions.values()) == 1200
        session.check()
    finally:
        session.close()
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
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The machine itself may pause as well.
    monkeypatch.setattr("backlogctl.fanout.relay.session.FENCED_AGAIN_SECONDS", 0.0)
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 300})
    session = session_of(here, tmp_path, transaction_timeout_ms=4_000)
    try:
        with filling(here.properties, here.source, 1):
            start(session, here)
            pid = stop_in_a_transaction(session, here)
            wait_until(lambda: not here.has_open_transactions(), what="it is ended")
            os.kill(pid, signal.SIGCONT)
            at = session.positions[0].committed
            check_until(session, lambda: session.positions[0].committed > at)
        go_on(session, here)
    finally:
        session.close()
    assert check_copied(here) == []


def test_a_relay_that_is_fenced_starts_again_once_if_the_lease_is_still_his(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    here = make_world(partitions=1)
    session = session_of(here, tmp_path)
    fill(here.properties, here.source, {0: 10})
    try:
        start(session, here)
        with filling(here.properties, here.source, 1):
            fence_relays(here.properties, "backlog", here.source, [0])
            check_until(session, lambda: session.restarts == 1)
            at = session.positions[0].committed
            check_until(session, lambda: session.positions[0].committed > at)
            fence_relays(here.properties, "backlog", here.source, [0])
            with pytest.raises(ProducerFenced):
                keep_calling(session.check)
            assert session.pids == ()
    finally:
        session.close()


def test_a_relay_that_is_fenced_after_the_lease_was_lost_stops(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 10})
    lost: list[bool] = []

    def confirm() -> None:
        if lost:
            raise LeaseHeld("another runner has it")

    session = session_of(here, tmp_path, Hooks(lambda: None, confirm, lambda: None))
    try:
        start(session, here)
        with filling(here.properties, here.source, 1):
            lost.append(True)
            fence_relays(here.properties, "backlog", here.source, [0])
            with pytest.raises(LeaseHeld):
                keep_calling(session.check)
    finally:
        session.close()


def test_what_retention_took_is_on_record_before_the_relay_goes_on(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 50})
    move_log_start(here.properties, here.source, {0: 20})
    expired: list[dict[int, int]] = []
    hooks = Hooks(lambda: None, lambda: None, lambda: expired.append(here.commits()))
    session = session_of(here, tmp_path, hooks)
    try:
        session.join()
        session.start(lambda: [SourceRange(0, 20 if expired else 0)])
        go_on(session, here)
    finally:
        session.close()
    assert expired == [{0: 0}]
    assert check_copied(here) == []


def test_fault_11_a_broker_dies_and_comes_back_in_mid_relay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three: where a partition has no leader, see tests/fanout/test_decided.py."""
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
        session = session_of(here, tmp_path, NOTHING)
        try:
            start(session, here)
            kafka.kill(2)  # the first is the controller
            down = time.monotonic() + 1.0
            while time.monotonic() < down:
                session.check()
                time.sleep(0.05)
            kafka.restart(2)
            fill(properties, "source", {0: 500, 1: 500}, first=30_000)
            go_on(session, here, 200.0)  # a call of the client may hang for 45 s
            session.stop_relays()
            await_commits(here, here.ends())
            relayed = {p: at.relayed for p, at in session.positions.items()}
            assert relayed == {0: 20_500, 1: 20_500}
        finally:
            session.close()
        assert check_copied(here) == []
