"""A world for each test: a backlog, and consumers that are slow, or that nobody has started yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kit.kafka import leave_at, wait_until
from tests.kit.shortened import WORLD, shorten_offload
from tests.replay.expand.world import PARTITIONS
from tests.replay.offload.world import SEGMENTS, OffloadWorld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeOffload = Callable[..., OffloadWorld]
BACKLOG = 1_600
READ = 10  # where the group of an idle world is


@pytest.fixture
def make_idle(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[MakeOffload]:
    """Makes worlds whose group was set to offset 10 and has no members any more.

    `config` are settings of its topic; None for `read`: the group has no commits.
    """
    made: list[OffloadWorld] = []
    monkeypatch.setenv(WORLD, str(tmp_path))
    shorten_offload(monkeypatch.setattr)

    def make(
        backlog: int = BACKLOG,
        config: dict[str, str] | None = None,
        read: int | None = READ,
    ) -> OffloadWorld:
        name = topic(PARTITIONS, {**SEGMENTS, **(config or {})}, "orders")
        world = OffloadWorld(tmp_path, kafka.bootstrap, name, group, monkeypatch)
        world.write_config()
        made.append(world)
        world.publish(backlog)
        if read is not None:
            numbers = range(PARTITIONS)
            leave_at(world.properties, group, name, dict.fromkeys(numbers, read))
            world.read_before = tuple(row for row in world.read_topic() if row[1] < read)
        return world

    yield make
    for world in made:
        world.end()


@pytest.fixture
def make_world(make_idle: MakeOffload, spark: SparkSession) -> MakeOffload:
    """Makes worlds whose consumers run, and are slow."""
    del spark

    def make(backlog: int = BACKLOG, config: dict[str, str] | None = None) -> OffloadWorld:
        world = make_idle(backlog, config, None)
        world.start_originals()
        wait_until(lambda: None not in world.read_commits().values(), what="commits everywhere")
        return world

    return make


@pytest.fixture
def world(make_world: MakeOffload) -> OffloadWorld:
    return make_world()


@pytest.fixture
def idle(make_idle: MakeOffload, spark: SparkSession) -> OffloadWorld:
    """One whose consumers nobody has started; the messages before offset 10 are read."""
    del spark
    return make_idle(600)
