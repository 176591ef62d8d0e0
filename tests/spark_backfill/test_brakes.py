"""Brakes and waiting while brokers are away, without a broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import (
    BacklogError,
    ClusterUnreachable,
    KafkaFailure,
    Paused,
    VerificationFailed,
)
from backlogctl.kafka.clients import make_admin, outlast
from backlogctl.spark_backfill.injection import brakes, job
from backlogctl.spark_backfill.injection.brakes import (
    CombinedBrakes,
    InjectionProgress,
    LiveLagBrake,
    await_group_past,
)
from backlogctl.spark_backfill.injection.job import (
    MAX_TRANSACTION_SECONDS,
    await_visible,
    choose_pace,
    choose_slots,
)
from backlogctl.spark_backfill.injection.verification import VerificationResult
from backlogctl.values import Chunk

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


# The rate of an injection.


def chunks(slot: int, *counts: int) -> list[Chunk]:
    """Chunks of a slot that hold so many messages each."""
    return [
        Chunk(slot=slot, number=n, count=count, bytes=1, sha256="", path="", ids_path="")
        for n, count in enumerate(counts)
    ]


def test_without_a_rate_all_slots_with_chunks_left_go_as_fast_as_they_can() -> None:
    assert choose_slots({0: chunks(0, 9), 1: [], 2: chunks(2, 9)}, None) == [0, 2]
    assert choose_pace(100, None, 3, 2) is None


def test_a_wave_holds_what_the_rate_allows_in_one_transaction_and_always_one_chunk() -> None:
    left = {0: chunks(0, 40), 1: chunks(1, 40, 40), 2: chunks(2, 40)}
    assert choose_slots(left, 15) == [1]
    assert choose_slots(left, 20) == [1, 0]
    assert choose_slots(left, 1) == [1]


@pytest.mark.parametrize("parallelism", [1, 2, 8, 64])
@pytest.mark.parametrize("width", [1, 2, 12])
@pytest.mark.parametrize("rate", [300, 1000, 50_000])
def test_a_wave_takes_the_time_that_its_rate_says(width: int, parallelism: int, rate: int) -> None:
    count = int(rate * MAX_TRANSACTION_SECONDS / width)
    pace = choose_pace(count, rate, width, parallelism)
    assert pace is not None
    at_once = min(width, parallelism)
    # Rounds of `at_once` chunks, each as long as its pace says; the last may be smaller.
    seconds = -(-width // at_once) * count / pace
    assert seconds == pytest.approx(width * count / rate, rel=0.35)
    assert count / pace <= MAX_TRANSACTION_SECONDS + 1e-9


def test_a_chunk_is_never_so_slow_that_its_transaction_stays_open() -> None:
    assert choose_pace(100, 1, 1, 1) == 100 / MAX_TRANSACTION_SECONDS


# What a verification result says.


def result(**changes: Any) -> VerificationResult:
    """Ten messages, all matched."""
    counts: dict[str, Any] = {
        "staged": 10,
        "found": 10,
        "matched": 10,
        "missing": 0,
        "doubled": 0,
        "different": 0,
        "unexpected": 0,
        "ids": {},
        "start_offsets": {0: 5},
        "end_offsets": {0: 20},
    }
    return VerificationResult(**{**counts, **changes})


def test_fault_37_nothing_staged_is_not_exact() -> None:
    assert result().is_exact
    nothing = result(staged=0, found=0, matched=0)
    assert not nothing.is_exact
    with pytest.raises(VerificationFailed, match="nothing was staged"):
        nothing.require_exact("topic orders")


def test_messages_that_retention_may_have_removed_are_told_as_such() -> None:
    gone = result(matched=9, missing=1, ids={"missing": ("a",)}, removed={0: (5, 8)})
    with pytest.raises(VerificationFailed, match=r"1 missing: a.*retention.*\[0\] 5 to 8"):
        gone.require_exact("topic orders")
    # What was removed below everything of ours changes nothing.
    result(removed={0: (5, 8)}).require_exact("topic orders")
