"""Scenarios: a staged recovery on a topic of its own, and an honest or a strange neighbour."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.crash.runner import CLIENTS, take_client
from tests.crash.scenario import Scenario, make_scenario

MakeScenario = Callable[..., Scenario]


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both have to pass; a runner in another process is to be given its name."""
    name: str = request.param
    take_client(name, monkeypatch)
    return name


@pytest.fixture
def scenario(kafka: EmbeddedKafka, tmp_path: Path) -> MakeScenario:
    """`scenario(slots=3, chunks=2, messages=50, ...)`: see `make_scenario`."""

    def make(**settings: object) -> Scenario:
        return make_scenario(kafka.bootstrap, tmp_path, **settings)  # type: ignore[arg-type]

    return make
