"""Clocks that differ: how far the ledger's is ahead, and one timeline of several hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.clock import utc_now
from backlogctl.ledger import open_ledger
from backlogctl.monitoring.offsets import observation, sampler
from backlogctl.monitoring.offsets.observation import (
    CLOCK_NOISE,
    measure_clock_skew,
    observe_stream,
)
from backlogctl.monitoring.watch.look import assess_stream
from tests.kafka_tools import StreamStub, commit, publish
from tests.kernel.ledger.makers import NOON

SECONDS = st.floats(0, 60).map(lambda value: timedelta(seconds=value))
AHEAD = st.floats(-86400, 86400).map(lambda value: timedelta(seconds=value))


@dataclass
class World:
    """A host's clock, and a ledger that takes its time before and after it looks at its own."""

    before: timedelta
    after: timedelta
    ahead: timedelta
    clock: datetime = NOON

    def now(self) -> datetime:
        there = self.clock + self.before + self.ahead
        self.clock += self.before + self.after
        return there

    def measure(self) -> timedelta:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(observation, "utc_now", lambda: self.clock)
            return measure_clock_skew(self)  # type: ignore[arg-type]


@given(SECONDS, SECONDS)
def test_fault_41_a_ledger_that_answers_late_is_not_ahead(
    before: timedelta, after: timedelta
) -> None:
    assert World(before, after, timedelta(0)).measure() == timedelta(0)


@given(SECONDS, SECONDS, AHEAD)
def test_fault_41_a_clock_that_is_ahead_is_told_as_exactly_as_it_can_be(
    before: timedelta, after: timedelta, ahead: timedelta
) -> None:
    found = World(before, after, ahead).measure()
    if found:
        assert abs(found - ahead) <= (before + after) / 2 + timedelta(microseconds=1)  # rounding
    else:
        assert abs(ahead) <= max(before, after) + CLOCK_NOISE


def test_fault_41_hosts_whose_clocks_differ_make_one_timeline(
    properties: dict[str, str],
    topic: Callable[..., str],
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    name = topic(partitions=1)
    stream = StreamStub(name, group)
    for round_ in range(3):
        publish(properties, name, {0: 10})
        commit(properties, group, name, {0: 10 * round_ + 5})
        slow = timedelta(minutes=5) if round_ % 2 else timedelta(0)
        for module in (observation, sampler):
            monkeypatch.setattr(module, "utc_now", lambda slow=slow: utc_now() - slow)
        observe_stream(ledger, stream, properties)
    history = ledger.samples.history("orders")
    assert [one.partitions[0].committed for one in history] == [5, 15, 25]
    status = assess_stream(history[-1], "read_committed", history)
    assert status.verdict == "lagging", "no rewind"
