"""A world for each test: a backlog, and slow consumers that run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backlogctl.kafka.admin import create_topic
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kit.shortened import WORLD, shorten
from tests.replay.expand.world import PARTITIONS, World

MakeWorld = Callable[..., World]
BACKLOG = 1_600


@pytest.fixture
def make_world(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[MakeWorld]:
    """Makes a world; `config` are settings of its topic; `bootstrap`: on a broker of its own;
    `start`: its consumers."""
    made: list[World] = []
    monkeypatch.setenv(WORLD, str(tmp_path))
    shorten(monkeypatch.setattr)

    def make(
        backlog: int = BACKLOG,
        config: dict[str, str] | None = None,
        bootstrap: str | None = None,
        *,
        start: bool = True,
    ) -> World:
        if bootstrap is None:
            name = topic(PARTITIONS, config, "orders")
        else:
            name = f"orders-{group}"
            create_topic({"bootstrap.servers": bootstrap}, name, partitions=PARTITIONS)
        world = World(tmp_path, bootstrap or kafka.bootstrap, name, group, monkeypatch)
        world.write_config()
        made.append(world)
        world.publish(backlog)
        if start:
            world.start_originals()
        return world

    yield make
    for world in made:
        world.end()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """One whose topic sets no retention."""
    return make_world()
