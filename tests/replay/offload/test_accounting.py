"""What is told of an offload is true: of consumers that do not move, of nothing, of what expired."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backlogctl.replay.engine.cancelling import CANCEL_ASKED
from backlogctl.replay.engine.plan import LEAVE_CONSUMERS
from backlogctl.replay.engine.values import Account, RecoveryRecord
from backlogctl.replay.kinds.offload.describe import account_for_offload
from backlogctl.replay.kinds.offload.kind import KIND
from backlogctl.replay.kinds.offload.plan import EXPIRED, GIVEN_UP, OffloadPlan
from backlogctl.values import Cause, GapState


def tell(
    *events: Any, place: object = "somewhere", states: Sequence[GapState] = (), **detail: Any
) -> Account:
    """The account of an offload whose verification found that."""
    plan = SimpleNamespace(
        unread=100, place=place, stream="orders", topic="orders", group="shop", partitions=()
    )
    step = SimpleNamespace(step="verify", is_complete=True, detail=detail)
    recovery = SimpleNamespace(id="r-1", detail={"counts": {}}, state="verified")
    record = RecoveryRecord(
        cast(Any, recovery),
        cast(Any, None),
        events=events,
        steps=(cast(Any, step),),
        gaps=tuple(cast(Any, SimpleNamespace(state=state)) for state in states),
    )
    return account_for_offload(cast(OffloadPlan, plan), record)


def note(action: str, **detail: Any) -> Any:
    return SimpleNamespace(action=action, detail=detail)


@pytest.mark.parametrize("place", ["somewhere", None])
def test_consumers_that_do_not_move_are_not_said_to_go_on(place: str | None) -> None:
    assert "are back and go on" in tell(place=place, moves=True).verified
    told = tell(place=place, moves=False).verified
    assert "go on" not in told
    assert "does not move" in told
    counts = {"archived": 5, "offsets": 5, "freed_bytes": None}
    plan = cast(OffloadPlan, SimpleNamespace(place=place))
    assert "does not move" in KIND.say_run(plan, {**counts, "moves": False})
    assert KIND.say_run(plan, counts).endswith("the consumers are back")


def test_messages_wait_only_until_they_are_put_back() -> None:
    back, waived = GapState.VERIFIED, GapState.WAIVED
    assert "wait in the archive" in tell(states=[back, GapState.STAGED]).after_losses
    assert "put back since" in tell(states=[back, back]).after_losses
    assert "None of them waits" in tell(states=[back, waived]).after_losses


def test_an_archive_without_messages_was_counted() -> None:
    assert tell(archived=0, offsets=7).unexplained.told.startswith("7 of 7 offsets hold no message")
    assert "nothing to archive" in tell(archived=0, offsets=0).unexplained.told
    assert "not counted" in tell(archived=0, offsets=7, place=None).unexplained.told


def test_what_retention_removed_is_named() -> None:
    lost = note(EXPIRED, partition=0, start=0, end=30)
    found = tell(lost, archived=60, offsets=70, expired=30).unexplained
    assert any("at most 30 messages" in reason for reason in found.reasons)


@pytest.mark.parametrize("action", [GIVEN_UP, "said"])
def test_consumers_that_were_left_were_not_started(action: str) -> None:
    asked = note(CANCEL_ASKED, ways=[LEAVE_CONSUMERS])
    assert "left to you" in tell(asked, note(action)).cancelled
    assert "were started" in tell(note(CANCEL_ASKED, ways=[]), note(action)).cancelled


def test_what_retention_took_meanwhile_is_its_loss_whoever_saw_it_first() -> None:
    def make(partition: int, start: int, cause: Cause = Cause.EXPIRED) -> Any:
        return SimpleNamespace(
            partition=partition, start=start, end=start + 9, cause=cause, archive=None, reason="x"
        )

    ours = make(0, 5)
    gaps = [ours, make(1, 5), make(0, 40), make(0, 5, Cause.SKIPPED)]
    ledger = SimpleNamespace(
        gaps=SimpleNamespace(list=lambda stream: gaps),
        events=SimpleNamespace(list=lambda _: [note(EXPIRED, partition=0, start=0, end=30)]),
    )
    recovery = cast(Any, SimpleNamespace(id="r-1", stream="orders"))
    assert KIND.find_gaps(cast(OffloadPlan, None), ledger, recovery, None) == (ours,)
