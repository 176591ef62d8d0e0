"""Fixtures of the relay tests: each engine, and topics and a group to relay."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from backlogctl.fanout.relay import guard
from backlogctl.fanout.relay.interface import RECORD, WIRE, RelayEngine
from backlogctl.fanout.relay.worker import make_relay_engine
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.fanout.relay.doing import RelayWorld
from tests.kit.kafka import properties_of, set_offsets_raw

MakeWorld = Callable[..., RelayWorld]
KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}


@pytest.fixture(autouse=True)
def patient_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that leaves says so here: its session need not end when the machine stands still."""
    for name in ("session.timeout.ms", "max.poll.interval.ms"):
        monkeypatch.setitem(guard._SETTINGS, name, 45_000)


@pytest.fixture(params=[RECORD, WIRE])
def engine(request: pytest.FixtureRequest) -> RelayEngine:
    """Every engine has to pass."""
    return make_relay_engine(request.param)


@pytest.fixture
def make_world(kafka: EmbeddedKafka, topic: MakeTopic, group: str) -> MakeWorld:
    """`make_world(partitions=2, target_partitions=10, config={...}, target_config={...})`."""

    def make(
        partitions: int = 2,
        target_partitions: int = 10,
        config: Mapping[str, str] | None = None,
        target_config: Mapping[str, str] | None = None,
    ) -> RelayWorld:
        properties = properties_of(kafka.bootstrap)
        source = topic(partitions, {**KEPT, **(config or {})}, "source")
        target = topic(target_partitions, {**KEPT, **(target_config or {})}, "target")
        set_offsets_raw(properties, group, source, dict.fromkeys(range(partitions), 0))
        return RelayWorld(properties, source, target, group, partitions, target_partitions)

    return make
