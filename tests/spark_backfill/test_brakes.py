"""Brakes and waiting while brokers are away, without a broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, ClusterUnreachable, KafkaFailure, Paused
from backlogctl.kafka.clients import make_admin, outlast
from backlogctl.spark_backfill.injection import brakes, job
from backlogctl.spark_backfill.injection.brakes import (
    CombinedBrakes,
    InjectionProgress,
    LiveLagBrake,
    await_group_past,
)
from backlogctl.spark_backfill.injection.job import await_visible

START = InjectionProgress(injected=0, skipped=0, total=10)
NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
AWAY = ClusterUnreachable("no broker answered")


def answers(*items: Any) -> Callable[..., Any]:
    """A call that gives or raises one item after another, the last one for ever."""
    left = list(items)

    def call(*_: Any, **__: Any) -> Any:
        item = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(item, Exception):
            raise item
        return item

    return call


@pytest.fixture
def brake(monkeypatch: pytest.MonkeyPatch) -> LiveLagBrake:
    """A lag brake that looks again at once."""
    monkeypatch.setattr(brakes, "_LOOK_AGAIN", 0.01)
    monkeypatch.setattr(brakes, "read_group_state", answers(SimpleNamespace(is_active=False)))
    return LiveLagBrake(make_admin(NOWHERE), "g", "orders", 1, max_lag=5)


def test_fault_11_brokers_that_are_away_hold_the_injection_and_do_not_fail_it(
    monkeypatch: pytest.MonkeyPatch, brake: LiveLagBrake
) -> None:
    monkeypatch.setattr(brakes, "list_offsets", answers(AWAY, AWAY, {0: 7}))
    CombinedBrakes([brake], patience=20).check(START)


def test_fault_11_brokers_that_stay_away_pause_it(
    monkeypatch: pytest.MonkeyPatch, brake: LiveLagBrake
) -> None:
    monkeypatch.setattr(brakes, "list_offsets", answers(AWAY))
    with pytest.raises(Paused, match="the lag of group g cannot be read"):
        CombinedBrakes([brake], patience=0.05).check(START)


def test_our_own_messages_are_no_lag_while_their_markers_are_being_written(
    monkeypatch: pytest.MonkeyPatch, brake: LiveLagBrake
) -> None:
    monkeypatch.setattr(brakes, "read_group_state", answers(SimpleNamespace(is_active=True)))
    monkeypatch.setattr(brakes, "committed_offsets", answers({0: 0}))
    # (last stable offset, high watermark) before, with a chunk's end hidden, and with all of it.
    stable, high = [0, 51, 102], 102

    def list_offsets(_: Any, __: str, partitions: Any, ___: str, level: str = "") -> Any:
        return dict.fromkeys(partitions, stable[0] if level == "read_committed" else high)

    monkeypatch.setattr(brakes, "list_offsets", list_offsets)
    assert brake.look(START) == ""
    after = InjectionProgress(injected=100, skipped=0, total=100, slots={0: 100}, chunks={0: 1})
    stable.pop(0)
    assert brake.look(after) == ""
    stable.pop(0)
    time.sleep(0.02)
    assert brake.look(after) == ""


def test_an_answer_that_does_not_pass_by_itself_fails_it(
    monkeypatch: pytest.MonkeyPatch, brake: LiveLagBrake
) -> None:
    monkeypatch.setattr(brakes, "list_offsets", answers(KafkaFailure("access denied")))
    with pytest.raises(KafkaFailure, match="access denied"):
        CombinedBrakes([brake]).check(START)


def test_fault_11_the_canary_waits_for_brokers_that_are_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(brakes, "read_group_state", answers(AWAY, SimpleNamespace(is_active=True)))
    monkeypatch.setattr(brakes, "committed_offsets", answers(AWAY, {0: 3}, {0: 4}))
    looks: list[int] = []
    await_group_past(NOWHERE, "g", "orders", 0, 4, 30.0, lambda: looks.append(1), patience=30.0)
    assert looks
    monkeypatch.setattr(brakes, "read_group_state", answers(AWAY))
    with pytest.raises(ClusterUnreachable):
        await_group_past(NOWHERE, "g", "orders", 0, 4, 30.0, lambda: None, patience=0.0)


def test_fault_07_what_an_open_transaction_hides_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job, "list_offsets", answers({0: 4, 1: 9}, AWAY, {0: 7, 1: 9}))
    await_visible(make_admin(NOWHERE), "orders", {0: 7, 1: 9}, 30.0)
    monkeypatch.setattr(job, "list_offsets", answers({0: 4, 1: 9}))
    with pytest.raises(Paused, match=r"\(\[0\] readable to 4, needed to 7\)"):
        await_visible(make_admin(NOWHERE), "orders", {0: 7, 1: 9}, 0.1)


def test_only_errors_that_pass_are_outlasted() -> None:
    assert outlast(Deadline(30), answers(AWAY, 5)) == 5
    with pytest.raises(ClusterUnreachable):
        outlast(Deadline(0), answers(AWAY, 5))
    with pytest.raises(BacklogError, match="denied"):
        outlast(Deadline(30), answers(KafkaFailure("denied"), 5))
