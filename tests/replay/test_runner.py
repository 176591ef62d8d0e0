"""The runner's states: what it changes, and what it leaves to another runner."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from backlogctl.errors import LeaseHeld, Paused, ProducerFenced
from backlogctl.replay.engine import cancelling as cancellation
from backlogctl.replay.engine import runner
from backlogctl.replay.engine.brakes import CancelRequested
from backlogctl.replay.engine.kind import RunContext, Workspace
from backlogctl.replay.engine.runner import Run
from backlogctl.replay.kinds.rebuild.kind import Rebuild
from backlogctl.values import Recovery, RecoveryState
from tests.replay.makers import read_actions, store_approved, take_over

S = RecoveryState


class Act:
    """A step that does what the test says."""

    name = "act"

    def __init__(self, part: Callable[[RunContext[Any]], None]) -> None:
        self._part = part

    def validate(self, context: RunContext[Any]) -> None:
        """Nothing to look at."""

    def start(self, context: RunContext[Any]) -> None:
        """The part."""
        self._part(context)

    def complete(self, context: RunContext[Any]) -> None:
        """Notes that it came so far."""
        context.record("act closed")


@pytest.fixture
def fenced(monkeypatch: pytest.MonkeyPatch) -> list[Recovery]:
    """The recoveries that were fenced, as they were then."""
    seen: list[Recovery] = []

    def close(kind: Rebuild, workspace: Workspace, recovery: Recovery, *_: Any, **__: Any) -> None:
        seen.append(recovery)

    monkeypatch.setattr(Rebuild, "close", close)
    return seen


def run_with(
    monkeypatch: pytest.MonkeyPatch,
    desk: Workspace,
    recovery_id: str,
    part: Callable[[RunContext[Any]], None],
) -> Recovery:
    monkeypatch.setattr(Rebuild, "context", RunContext)
    monkeypatch.setattr(Rebuild, "steps", (Act(part),))
    return Run(desk, recovery_id, Console(quiet=True)).carry_out()


def test_cancel_during_the_first_run_fences(
    monkeypatch: pytest.MonkeyPatch, desk: Workspace, fenced: list[Recovery]
) -> None:
    recovery = store_approved(desk).id

    def cancel(context: RunContext[Any]) -> None:
        assert context.recovery.state is S.APPROVED, "it was read before the run began"
        raise CancelRequested("cancelled")

    with pytest.raises(CancelRequested):
        run_with(monkeypatch, desk, recovery, cancel)
    assert [one.state for one in fenced] == [S.RUNNING]
    assert desk.ledger.recoveries.get(recovery).state is S.CANCELLED


def test_cancel_of_what_never_ran_fences_nothing(desk: Workspace, fenced: list[Recovery]) -> None:
    recovery = store_approved(desk).id
    assert cancellation.cancel_work(desk, recovery, wait=0).state is S.CANCELLED
    assert fenced == []


@pytest.mark.parametrize(
    "error", [ProducerFenced("a newer producer"), Paused("outside"), ZeroDivisionError(), None]
)
def test_fault_02_runner_without_its_lease_leaves_the_state_alone(
    monkeypatch: pytest.MonkeyPatch, desk: Workspace, error: Exception | None
) -> None:
    recovery = store_approved(desk).id

    def lose(context: RunContext[Any]) -> None:
        take_over(desk, recovery)
        if error is not None:
            raise error

    with pytest.raises(LeaseHeld if error is None else type(error)):
        run_with(monkeypatch, desk, recovery, lose)
    assert desk.ledger.recoveries.get(recovery).state is S.RUNNING
    actions = read_actions(desk, recovery)
    assert actions[-1] == "lease taken over"
    assert "act closed" not in actions
    holder = desk.ledger.leases.holder(recovery)
    assert holder is not None
    assert not holder.expired


def test_fault_02_runner_without_its_lease_cancels_nothing(
    monkeypatch: pytest.MonkeyPatch, desk: Workspace, fenced: list[Recovery]
) -> None:
    recovery = store_approved(desk).id

    def lose(context: RunContext[Any]) -> None:
        take_over(desk, recovery)
        raise CancelRequested("cancelled")

    with pytest.raises(LeaseHeld):
        run_with(monkeypatch, desk, recovery, lose)
    assert fenced == []
    assert desk.ledger.recoveries.get(recovery).state is S.RUNNING


def test_an_interrupt_that_native_code_hides_pauses(
    monkeypatch: pytest.MonkeyPatch, desk: Workspace
) -> None:
    """As `describe_topics` did: it returned its result, with our interrupt set."""
    recovery = store_approved(desk).id

    def hide(context: RunContext[Any]) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt as error:
            raise SystemError("<method> returned a result with an exception set") from error

    def break_off(context: RunContext[Any]) -> None:
        raise SystemError("<method> returned NULL without setting an exception")

    with pytest.raises(Paused, match="interrupted"):
        run_with(monkeypatch, desk, recovery, hide)
    assert desk.ledger.recoveries.get(recovery).state is S.PAUSED
    with pytest.raises(SystemError, match="NULL"):
        run_with(monkeypatch, desk, recovery, break_off)
    assert desk.ledger.recoveries.get(recovery).state is S.FAILED


def test_failed_and_paused_runs_go_on(monkeypatch: pytest.MonkeyPatch, desk: Workspace) -> None:
    recovery = store_approved(desk).id

    def fail(context: RunContext[Any]) -> None:
        raise ProducerFenced("a newer producer")

    def pause(context: RunContext[Any]) -> None:
        raise Paused("outside")

    for part, error, state in ((fail, ProducerFenced, S.FAILED), (pause, Paused, S.PAUSED)):
        with pytest.raises(error):
            run_with(monkeypatch, desk, recovery, part)
        assert desk.ledger.recoveries.get(recovery).state is state
    cleared: list[Workspace] = []
    monkeypatch.setattr(runner, "clear_staging", cleared.append)
    done = run_with(monkeypatch, desk, recovery, lambda _: None)
    assert done.state is S.VERIFIED
    assert cleared == [desk], "the end of a run is when old staged messages go"
