"""What is noted as left behind, and what is not: a request to stop is no failure."""

from __future__ import annotations

import pytest

from backlogctl.errors import BacklogError, LeaseHeld
from backlogctl.replay.consumers.fleet import CONSUMERS_STAY, CleanupErrors
from backlogctl.replay.engine.brakes import INTERRUPTED, OPERATOR, CancelRequested, PausedBecause


def fail(error: BacklogError) -> None:
    """What ends consumers raises it."""
    raise error


def test_a_failure_is_noted_and_told_last() -> None:
    left = CleanupErrors()
    with left.noting(CONSUMERS_STAY):
        fail(BacklogError("they hang", subject="group orders"))
    assert CONSUMERS_STAY in left
    with pytest.raises(BacklogError, match="could not be ended: they hang"):
        left.refuse("by hand")


@pytest.mark.parametrize(
    "asked",
    [
        CancelRequested("it was cancelled while it ran"),
        PausedBecause(OPERATOR, "paused"),
        PausedBecause(INTERRUPTED, "interrupted"),
        LeaseHeld("another runner has it"),
    ],
)
def test_a_request_to_stop_is_no_failure(asked: BacklogError) -> None:
    """As a `cancel` that comes while the recovery's consumers end: it was told as their failure."""
    left = CleanupErrors()
    with pytest.raises(type(asked)), left.noting(CONSUMERS_STAY):
        fail(asked)
    assert CONSUMERS_STAY not in left
    left.refuse("by hand")
