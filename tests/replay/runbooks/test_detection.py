"""When a detection starts a recovery, and when it starts it again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backlogctl.clock import utc_now
from backlogctl.config import Stream
from backlogctl.ledger import Ledger
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.engine.approval import NOBODY, reject_plan
from backlogctl.replay.engine.cancelling import cancel_work
from backlogctl.replay.engine.kind import Registry, Workspace
from backlogctl.replay.engine.next_commands import LOOKED_AHEAD
from backlogctl.replay.kinds.expand.kind import ExpandKind
from backlogctl.replay.runbooks import detection
from backlogctl.replay.runbooks.detection import (
    Came,
    Detection,
    Started,
    choose_actions,
    decide_start,
    detect_backlog,
    find_declined,
    should_plan,
)
from backlogctl.values import Cause, GapState, RecoveryState
from tests.replay.runbooks.desks import QUIET, TOPIC_ID, bring, lose, open_shop, store

S = RecoveryState
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def last(ago: timedelta, tries: int = 1, occasion: str = "g-1") -> Started:
    return Started(occasion, "run", NOW - ago, tries)


def decide(before: Started | None, came: Came = Came.ENDED) -> Started | None:
    return decide_start("orders", "g-1", before, came, NOW)


def test_the_first_one_is_named_by_stream_occasion_and_day() -> None:
    started = decide(None)
    assert started == Started("g-1", "detect__orders__g-1__20261121", NOW)
    assert started == decide(last(MINUTE, occasion="g-0")), "another loss is another occasion"


@pytest.mark.parametrize("occasion", ["g-1", "g-0"])
def test_never_two_at_once(occasion: str) -> None:
    assert decide(last(99 * HOUR, occasion=occasion), Came.OPEN) is None


def test_what_ended_waits_for_a_day() -> None:
    assert decide(last(23 * HOUR)) is None
    assert decide(last(24 * HOUR)) is not None


@pytest.mark.parametrize(
    ("tries", "pause"),
    [(1, 10 * MINUTE), (2, 20 * MINUTE), (5, 160 * MINUTE), (7, 6 * HOUR), (999, 6 * HOUR)],
)
def test_a_technical_failure_is_tried_again_after_a_pause(tries: int, pause: timedelta) -> None:
    assert decide(last(pause - MINUTE, tries), Came.BROKEN) is None
    again = decide(last(pause, tries), Came.BROKEN)
    assert again is not None
    assert again.tries == tries + 1
    assert again.run_id == f"detect__orders__g-1__20261121__{tries + 1}"


def test_it_is_kept_as_plain_data() -> None:
    started = last(HOUR, 3)
    assert Started.read(started.to_json()) == started
    for wrong in (None, "", {}, {"at": "soon"}, {"occasion": "x", "at": "2026-11-21T00:00:00Z"}, 7):
        assert Started.read(wrong) is None


# What a verdict asks for, and when a scheduler starts it by itself.

BOTH = ("expand", "rebuild")


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    return open_shop(tmp_path, auto_plan=True)


def choose(desk: Workspace, course: Verdict, lag: int = 10) -> tuple[str, ...]:
    return choose_actions(desk, desk.config.stream("orders"), course, lag, TOPIC_ID)


def test_a_drain_helps_a_group_that_reads_too_slowly_and_no_other(desk: Workspace) -> None:
    slow = {Verdict.LOSING, Verdict.WARN, Verdict.LAGGING}
    for course in Verdict:
        assert choose(desk, course) == (("expand",) if course in slow else ())
        assert choose(desk, course, lag=0) == ()
    lose(desk)
    for course in Verdict:
        # First what can still be saved.
        assert choose(desk, course) == (BOTH if course in slow else ("rebuild",))


def test_what_the_stream_has_not_cannot_be_asked_for(tmp_path: Path) -> None:
    desk = open_shop(tmp_path, source=None, consumers=None)
    lose(desk)
    assert choose(desk, Verdict.LOSING) == ()


def test_a_gap_that_cannot_be_rebuilt_asks_for_nothing(desk: Workspace) -> None:
    lose(desk, cause=Cause.COMMIT_VANISHED)
    lose(desk, start=None, end=None, partition=1)
    lose(desk, partition=2, group="another")
    lose(desk, partition=3, topic_id="of-the-topic-that-was-deleted")
    assert choose(desk, Verdict.OK) == ()
    lose(desk, partition=4)
    assert choose(desk, Verdict.OK) == ("rebuild",)


class Asked(ExpandKind):
    """A kind that says what it is told to, and remembers what it was asked."""

    def __init__(self, name: str, answer: bool, calls: list[tuple[Any, ...]]) -> None:
        self.name = name  # type: ignore[misc]
        self._answer, self._calls = answer, calls

    def suggest(
        self, ledger: Ledger, stream: Stream, course: Verdict, lag: int, topic_id: str
    ) -> bool:
        self._calls.append((self.name, stream.name, course, lag, topic_id))
        return self._answer


@pytest.mark.parametrize("names", [("one", "two", "three"), ("three", "two", "one")])
def test_kinds_are_asked_in_the_order_of_the_registry(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    calls: list[tuple[Any, ...]] = []
    kinds = Registry([Asked(name, name != "two", calls) for name in names])
    found = detect(replace(desk, kinds=kinds), monkeypatch, "warn")
    assert found.actions == tuple(name for name in names if name != "two")
    assert calls == [(name, "orders", Verdict.WARN, 10, TOPIC_ID) for name in names]


def detect(
    desk: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    course: str = "ok",
    verdict: str = "",
    told: str | None = None,
    **do: Any,
) -> Detection:
    """A look that sees this; `lose=True`: and finds a gap."""

    class Seen:
        class sample:  # noqa: N801 - as the observation has it
            topic_id = TOPIC_ID

    def look(workspace: Workspace, stream: Any) -> tuple[Any, dict[str, Any]]:
        if do.get("lose"):
            lose(workspace, partition=9)
        words = {"verdict": verdict or course, "course": course, "sentence": "told"}
        ahead = do.get("ahead")
        figures = {"lag": 10, "lost": None, "seconds_to_loss": ahead, "warnings": ["seen"]}
        return Seen, {**QUIET, **words, **figures}

    monkeypatch.setattr(detection, "sample_stream", look)
    return detect_backlog(desk, desk.config.stream("orders"), told)


def starts(desk: Workspace, found: Detection) -> bool:
    return should_plan(desk, desk.config.stream("orders"), found)


def test_a_new_gap_is_an_alarm_once_and_starts_a_recovery(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = detect(desk, monkeypatch, lose=True)
    assert (len(found.new_gaps), found.alarming, found.actions) == (1, True, ("rebuild",))
    assert (found.warnings, found.to_json()["actions"]) == (("seen",), ("rebuild",))
    assert starts(desk, found)
    stream = desk.config.stream("orders").model_copy(update={"auto_plan": False})
    assert not should_plan(desk, stream, found)
    again = detect(desk, monkeypatch)
    assert (again.new_gaps, again.alarming) == ((), False)
    assert starts(desk, again), "the gap is open still"


def test_a_gap_that_others_found_first_is_told_of_once(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert detect(desk, monkeypatch, told="").newest_gap == ""
    first, second = lose(desk), lose(desk, partition=1)
    found = detect(desk, monkeypatch, told="")
    assert (found.new_gaps, found.newest_gap, found.alarming) == (
        (first.id, second.id),
        second.id,
        True,
    )
    assert detect(desk, monkeypatch, told=first.id).new_gaps == (second.id,)
    seen_earlier = lose(desk, at=utc_now() - timedelta(hours=1), partition=2)
    late = detect(desk, monkeypatch, told=second.id)
    assert (late.new_gaps, late.newest_gap) == ((seen_earlier.id,), seen_earlier.id)
    desk.ledger.gaps.advance([seen_earlier.id], GapState.WAIVED, reason="known")
    again = detect(desk, monkeypatch, told=seen_earlier.id)
    assert (again.new_gaps, again.newest_gap, again.alarming) == ((), seen_earlier.id, False)
    assert detect(desk, monkeypatch).new_gaps == (), "nobody keeps what was told"
    assert len(detect(desk, monkeypatch, told="g-of-another-ledger").new_gaps) == 2
    desk.ledger.gaps.advance([second.id], GapState.WAIVED, reason="known")
    assert detect(desk, monkeypatch, told="").new_gaps == (first.id,)


def test_only_a_loss_starts_something(desk: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for course in Verdict:
        if course is not Verdict.LOST:  # never a course: what is gone is gone
            found = detect(desk, monkeypatch, course)
            losing = course is Verdict.LOSING
            assert (found.alarming, starts(desk, found)) == (losing, losing)
    hidden = detect(desk, monkeypatch, "warn", "losing")
    assert (hidden.alarming, starts(desk, hidden)) == (True, True)


def test_fault_163_where_only_a_hold_can_help_it_is_asked_about(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads, so no plan helps. Once for a loss, and again before a hold that was given ends."""
    now = desk.ledger.now()

    def look(seconds: float, course: str = "stop") -> tuple[str, bool]:
        found = detect(desk, monkeypatch, course, ahead=seconds)
        return found.occasion, starts(desk, found)

    assert look(HOUR.total_seconds()) == ("hold", True)
    assert look(HOUR.total_seconds(), "losing") == ("behind", True), "its plan's run asks as well"
    later = desk.config.guards.approval_expires.total_seconds() + 1
    assert look(later) == ("behind", False), "a plan would be answered in time"
    ends = now + 6 * HOUR
    monkeypatch.setattr(
        type(desk.ledger.holds), "list", lambda *_, **__: [SimpleNamespace(until=ends)]
    )
    assert look(6 * HOUR.total_seconds()) == ("behind", False)
    assert look(HOUR.total_seconds() - 1) == (f"hold-{ends:%Y%m%d%H%M}", True)


@pytest.mark.parametrize("kind", BOTH)
def test_what_is_under_way_is_not_started_again(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lose(desk)
    recovery = store(desk, kind)
    for state in (S.PLANNED, S.APPROVED, S.RUNNING, S.PAUSED, S.RUNNING, S.FAILED):
        if state is not S.PLANNED:
            recovery = bring(desk, recovery, state)
        found = detect(desk, monkeypatch, "losing")
        assert (found.under_way, starts(desk, found)) == ((recovery.id,), False)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_no_is_not_asked_again_before_something_more_is_lost(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    gap = lose(desk)
    plan = store(desk, "rebuild", gap.id)
    if cancelled:
        cancel_work(desk, plan.id, wait=0)
    else:
        reject_plan(desk, plan, by="grace", reason="rejected")
    found = detect(desk, monkeypatch, "losing")
    assert (found.declined, found.actions, starts(desk, found)) == (plan.id, BOTH, False)
    more = detect(desk, monkeypatch, "losing", lose=True)
    assert (more.declined, starts(desk, more)) == ("", True)


def test_a_no_is_asked_again_after_the_time_an_approval_holds(tmp_path: Path) -> None:
    desk = open_shop(tmp_path, guards={"approval_expires": "1h"}, auto_plan=True)
    stream = desk.config.stream("orders")
    assert find_declined(desk, stream) == ""
    plan = store(desk)
    reject_plan(desk, plan, by="grace", reason="rejected")
    assert find_declined(desk, stream) == plan.id
    later = utc_now() + timedelta(minutes=61)
    aged = replace(desk, ledger=Later(desk.ledger, later))  # type: ignore[arg-type]
    assert find_declined(aged, stream) == ""
    lose(desk)
    desk.ledger.events.append(plan.id, "op", LOOKED_AHEAD, {"message": "no loss in sight"})
    assert find_declined(desk, stream) == "", "it was lost after the no, and before the look"


class Later:
    """The ledger, an hour on."""

    def __init__(self, ledger: Any, now: Any) -> None:
        self.recoveries, self.events, self.gaps = ledger.recoveries, ledger.events, ledger.gaps
        self.now = lambda: now


def test_without_an_answer_it_is_asked_again(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(desk)
    reject_plan(desk, store(desk), by=NOBODY, reason="nobody answered in time")
    assert starts(desk, detect(desk, monkeypatch))
    store(desk)
    store(desk)  # takes the place of the one before, which nobody answered
    last = desk.ledger.recoveries.list("orders")[-1]
    detail = {"reason": "planning did not come to its end"}
    desk.ledger.recoveries.advance(last.id, S.REJECTED, "op", detail)
    assert starts(desk, detect(desk, monkeypatch))
