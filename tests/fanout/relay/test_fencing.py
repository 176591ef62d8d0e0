"""One relay at a time: a newer one fences the older, and a crash anywhere doubles nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backlogctl.errors import ProducerFenced
from backlogctl.fanout.relay.commits import fence_relays
from backlogctl.fanout.relay.interface import (
    Position,
    RelayEngine,
    RelayTask,
    SourceRange,
    name_relay_transactional_id,
)
from backlogctl.fanout.relay.pool import RelayPool
from backlogctl.kafka.admin import list_offsets
from backlogctl_delivery.crashpoints import VARIABLE
from tests.crash.points import RELAY_POINTS
from tests.fanout.relay.conftest import MakeWorld
from tests.fanout.relay.doing import (
    RelayWorld,
    await_commits,
    check_copied,
    fill,
    filling,
    open_transaction,
    relay,
    start_relays,
)
from tests.kafka_tools import wait_until


@contextmanager
def pool_of(
    task: RelayTask, ranges: list[SourceRange], log: Path, engine: str = "records", count: int = 1
) -> Iterator[RelayPool]:
    """A pool that leaves no process behind."""
    pool = RelayPool(task, ranges, log / "relay.log", engine=engine, processes=count)
    try:
        yield pool
    finally:
        pool.kill()


def run_on(pool: RelayPool, seconds: float = 120.0) -> None:
    """Until every range is done."""
    end = time.monotonic() + seconds
    while not pool.is_done:
        assert time.monotonic() < end, pool.positions
        pool.check()
        time.sleep(0.02)


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
    fence_relays(here.properties, "backlog", here.source, range(3))
    wait_until(lambda: not here.has_open_transactions())
    assert time.monotonic() - began < 120  # by itself it would end after ten minutes
    del abandoned
    assert here.read_target() == []


@pytest.mark.parametrize("point", RELAY_POINTS)
def test_fault_01_a_relay_that_is_killed_goes_on_where_it_was(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 400})
    times = 1 if point == "p4.6.init.after" else 2
    with here.guarded() as task:
        with pool_of(task, [SourceRange(0, 0)], tmp_path) as pool:
            monkeypatch.setenv(VARIABLE, f"{point}:{times}")
            pool.start()
            if times == 2:
                wait_until(lambda: pool.positions or not pool.pids)
                fill(here.properties, here.source, {0: 400}, first=400)
            wait_until(lambda: not pool.pids, what="it is killed")
            monkeypatch.delenv(VARIABLE)
        with pool_of(task, here.ranges(), tmp_path) as again:
            again.start()
            run_on(again)
            assert again.positions[0].relayed == (400 if times == 1 else 800)
        assert here.commits() == here.ends()
    assert check_copied(here) == []
    numbers = range(here.target_partitions)
    assert sum(list_offsets(here.admin, here.target, numbers, "latest").values()) > 0
