"""Worlds of the launcher `kubernetes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fanout.launchers.pods import PodWorld
from tests.kit.kubelet import Kubelet

MakeWorld = Callable[..., PodWorld]


@pytest.fixture
def make_world(kubernetes: Kubelet, tmp_path: Path, unique: str) -> Iterator[MakeWorld]:
    made: list[PodWorld] = []

    def make(**settings: Any) -> PodWorld:
        made.append(PodWorld(tmp_path, kubernetes, f"test-{unique}", **settings))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: MakeWorld) -> PodWorld:
    return make_world()
