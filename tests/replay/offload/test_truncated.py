"""A log that was cut back after the fence: an unclean leader election. Nothing is moved or deleted."""

from __future__ import annotations

from typing import Any

import pytest

from backlogctl.errors import Refused
from backlogctl.kafka import groups
from backlogctl.kafka.groups import EndsBehind
from backlogctl.kafka.admin import list_offsets
from backlogctl.replay.kinds.offload import context
from tests.kafka_tools import wait_until
from tests.replay.offload.conftest import READ
from tests.replay.offload.world import OffloadWorld, find_fence


@pytest.mark.parametrize(
    ("point", "is_passing"),
    [("p5.4.recorded", False), ("p5.5.staged", False), ("p5.5.staged", True)],
)
def test_fault_74_a_log_that_ends_below_the_fence(
    idle: OffloadWorld, monkeypatch: pytest.MonkeyPatch, point: str, *, is_passing: bool
) -> None:
    """`is_passing`: whether the log is cut back is not known in time; that holds no cancel up."""
    recovery = idle.plan_approved()

    def cut(*args: Any, **words: Any) -> dict[int, int]:
        found = list_offsets(*args, **words)
        return {n: at - 5 if n == 0 and "latest" in args else at for n, at in found.items()}

    def cut_back() -> None:
        monkeypatch.setattr(groups, "TRUNCATED_SECONDS", 3600.0 if is_passing else 0.5)
        if is_passing:
            monkeypatch.setattr(context, "ASK_SECONDS", 8.0)
        monkeypatch.setattr(groups, "list_offsets", cut)

    idle.at(point, cut_back)
    told = r"below the (known written|committed) offset"
    with pytest.raises(EndsBehind if is_passing else Refused, match=told):
        idle.run(recovery)
    assert idle.read_lows() == {0: 0, 1: 0}
    moved = point == "p5.5.staged"
    fence = find_fence(idle, recovery)
    assert idle.read_commits() == (fence if moved else {0: READ, 1: READ})
    assert idle.cancel(recovery).state == "cancelled"
    assert idle.read_lows() == {0: 0, 1: 0}
    wait_until(lambda: len(idle.find_members()) > 0, what="consumers are back")
