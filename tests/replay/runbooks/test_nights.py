"""One stream's night, and when a detection starts a recovery again."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backlogctl.clock import utc_now
from backlogctl.config import Stream
from backlogctl.errors import InvalidTransition, PutBackAlready, Refused
from backlogctl.ledger import Ledger
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.engine.approval import NOBODY, reject_plan
from backlogctl.replay.engine.brakes import OPERATOR, WINDOW
from backlogctl.replay.engine.cancelling import cancel_work
from backlogctl.replay.engine.kind import Registry, Say, Workspace
from backlogctl.replay.engine.plan import RunOrigin, name_origin
from backlogctl.replay.injection.plan import PlannedTarget, To
from backlogctl.replay.injection.target import name_superseded
from backlogctl.replay.kinds.expand.kind import ExpandKind
from backlogctl.replay.kinds.rebuild.losses import choose_gaps
from backlogctl.replay.kinds.rebuild.plan import RebuildOptions
from backlogctl.replay.runbooks import detection, nights
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
from backlogctl.replay.runbooks.nights import Interval, NightWork, Tonight, find_night_work
from backlogctl.values import Cause, Gap, GapState, Recovery, RecoveryState
from tests.kit.recoveries import PAST, change_ledger
from tests.replay.runbooks.desks import QUIET, TOPIC_ID, bring, lose, open_shop, store

S = RecoveryState
NIGHT = name_origin("nightly_backfill", "scheduled__2026-11-21")
REHEARSAL = PlannedTarget(to=To.REHEARSAL, topic="side", topic_id=None, partitions=2)
LONG_AGO = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


@dataclass
class Night:
    """A stream whose planner is told what to answer, and remembers what it was asked."""

    desk: Workspace
    refusal: Exception | None = None
    asked: list[RebuildOptions] = field(default_factory=list)
    automatic: bool = False

    def work(self, before: datetime | None = None, **chosen: Any) -> NightWork:
        stream = self.desk.config.stream("orders")
        return find_night_work(self.desk, stream, before or utc_now(), NIGHT, **chosen)

    def plan(
        self,
        desk: Workspace,
        stream: Stream,
        options: RebuildOptions,
        *,
        origin: RunOrigin,
        wants: Callable[[Gap], bool],
        say: Say,
    ) -> Recovery:
        self.asked.append(options)
        if self.refusal is not None:
            raise self.refusal
        known = filter(wants, desk.ledger.gaps.list(stream.name))
        gaps, _ = choose_gaps(desk.ledger, stream, TOPIC_ID, known, ())
        plan = store(desk, "rebuild", *(gap.id for gap in gaps), origin=origin)
        return bring(desk, plan, S.APPROVED) if self.automatic else plan


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    made = Night(open_shop(tmp_path))
    monkeypatch.setattr(nights, "plan_rebuild", made.plan)
    return made


def test_nothing_lost_is_nothing_to_do(night: Night) -> None:
    work = night.work()
    assert (work.action, work.recovery, work.why) == (Tonight.NOTHING, "", "no open gap")
    assert night.asked == []
    assert work.to_json()["action"] == "nothing"


def test_a_loss_is_planned_and_asked_about_once(night: Night) -> None:
    gap = lose(night.desk)
    first = night.work()
    assert (first.action, first.why) == (
        Tonight.ASK,
        "planned, exact; the stream's approval is `named`",
    )
    assert night.desk.ledger.gaps.get(gap.id).state is GapState.PLANNED
    planned = night.desk.ledger.recoveries.get(first.recovery)
    assert night.desk.plan_of(planned).origin == NIGHT
    assert night.asked == [RebuildOptions()]
    again = night.work()
    assert (again.action, again.recovery, len(night.asked)) == (Tonight.ASK, first.recovery, 1)


def test_an_exact_plan_goes_on_by_itself(night: Night) -> None:
    lose(night.desk)
    night.automatic = True
    first = night.work()
    assert first.action is Tonight.RUN
    assert (night.work().action, night.work().recovery) == (Tonight.RUN, first.recovery)


def test_fault_138_what_another_airflow_has_is_left_to_it(night: Night) -> None:
    """Its plan keeps its place as long as people are asked about it; a mark is looked for here."""
    lose(night.desk)
    theirs = store(night.desk, origin=NIGHT.model_copy(update={"deployment": "green"}))
    for states in ((), (S.APPROVED,), (S.RUNNING,), (S.FAILED,)):
        bring(night.desk, theirs, *states, code="kafka")
        work = night.work(hold=lambda _: pytest.fail("the mark of another run"))
        assert work.action is Tonight.NOTHING
        assert f"left to another Airflow (green), run {NIGHT.run_id}" in work.why


def test_what_was_begun_goes_on_until_it_is_at_its_end(night: Night) -> None:
    gap = lose(night.desk)
    recovery = store(night.desk, "rebuild", gap.id)
    for state, why in (
        (S.APPROVED, "is approved"),
        (S.RUNNING, "is running"),
        (S.PAUSED, "is paused"),
        (S.RUNNING, "is running"),
        (S.FAILED, "failed before; tried again"),
    ):
        detail = {"why": WINDOW} if state is S.PAUSED else {"code": "kafka"}
        bring(night.desk, recovery, state, **detail)
        assert night.work() == NightWork("orders", Tonight.RUN, recovery.id, why)
    for gap_state in (GapState.STAGED, GapState.INJECTED, GapState.VERIFIED):
        night.desk.ledger.gaps.advance([gap.id], gap_state, recovery.id)
    bring(night.desk, recovery, S.RUNNING, S.VERIFIED)
    # A night of the past, or the same one again: no new sends.
    for before in (None, LONG_AGO):
        assert night.work(before).action is Tonight.NOTHING
    assert night.asked == []


def test_what_an_operator_paused_waits_for_them(night: Night) -> None:
    recovery = bring(night.desk, store(night.desk), S.APPROVED, S.RUNNING, S.PAUSED, why=OPERATOR)
    lose(night.desk)
    work = night.work()
    assert (work.action, work.recovery, work.why) == (
        Tonight.NOTHING,
        recovery.id,
        "paused by an operator",
    )


def test_fault_63_an_expired_approval_is_asked_for_again(night: Night) -> None:
    recovery = bring(night.desk, store(night.desk), S.APPROVED)
    change_ledger(night.desk, f"UPDATE backlog_recoveries SET approval_expires_at = '{PAST}'")
    found = night.work()
    assert (found.action, found.recovery, found.why) == (
        Tonight.ASK,
        recovery.id,
        "its approval expired",
    )
    assert re.fullmatch(r"\d{8}T\d{4}", found.expired)


@pytest.mark.parametrize("code", ["plan_stale", "verification_failed"])
def test_one_that_would_fail_again_needs_a_person_and_hides_no_other(
    night: Night, code: str
) -> None:
    stale = bring(
        night.desk, store(night.desk), S.APPROVED, S.RUNNING, S.FAILED,
        code=code, message="the topic was made anew",
    )  # fmt: skip
    with pytest.raises(Refused, match="the topic was made anew") as caught:
        night.work()
    assert f"backlogctl cancel {stale.id}" in caught.value.hint
    planned = store(night.desk)
    assert (night.work().action, night.work().recovery) == (Tonight.ASK, planned.id)
    bring(night.desk, planned, S.APPROVED, S.RUNNING)
    assert (night.work().action, night.work().recovery) == (Tonight.RUN, planned.id)


def test_nothing_is_put_back_beside_an_expansion(night: Night) -> None:
    lose(night.desk)
    recovery = store(night.desk, "expand")
    for state in (S.PLANNED, S.APPROVED, S.RUNNING, S.PAUSED, S.RUNNING, S.FAILED):
        if state is not S.PLANNED:
            bring(night.desk, recovery, state)
        work = night.work()
        assert (work.action, work.recovery) == (Tonight.NOTHING, "")
        assert work.why == f"its expand {recovery.id} is {state}"
    bring(night.desk, recovery, S.RUNNING, S.VERIFIED)
    assert night.work().action is Tonight.ASK


def test_a_plan_to_expand_that_nobody_answers_does_not_hold_the_nights_up(night: Night) -> None:
    lose(night.desk)
    recovery = store(night.desk, "expand")
    change_ledger(night.desk, "DROP TRIGGER backlog_recoveries_fixed")
    change_ledger(night.desk, f"UPDATE backlog_recoveries SET created_at = '{PAST}'")
    assert night.work().action is Tonight.ASK
    assert night.desk.ledger.recoveries.get(recovery.id).state is S.REJECTED


def test_what_was_found_after_the_interval_is_left_to_the_next(night: Night) -> None:
    end = utc_now() - timedelta(hours=1)
    late = lose(night.desk, end, partition=1)
    assert night.work(end) == NightWork("orders", Tonight.NOTHING, "", "no open gap; 1 found since")
    early = lose(night.desk, end - timedelta(microseconds=1), partition=0)
    work = night.work(end)
    assert night.desk.ledger.recoveries.gap_ids(work.recovery) == (early.id,)
    assert night.desk.ledger.gaps.get(late.id).state is GapState.OPEN


def test_fault_39_a_backfill_of_old_dates_plans_nothing(night: Night) -> None:
    lose(night.desk)
    work = night.work(LONG_AGO)
    assert (work.action, night.asked) == (Tonight.NOTHING, [])


def test_gaps_that_cannot_be_rebuilt_do_not_stop_the_others(night: Night) -> None:
    lose(night.desk, cause=Cause.TOPIC_RECREATED)
    lose(night.desk, partition=1, start=None, end=None)
    lose(night.desk, partition=2, group="another")
    assert night.work().why == "no open gap"
    good = lose(night.desk, partition=3)
    lose(night.desk, utc_now() + timedelta(hours=1), partition=4)
    work = night.work()
    assert night.desk.ledger.recoveries.gap_ids(work.recovery) == (good.id,)


def test_a_guards_no_is_a_failure_and_another_recovery_is_none(night: Night) -> None:
    lose(night.desk)
    night.refusal = InvalidTransition("recovery r-1 of the same topic is running")
    assert night.work().why == "recovery r-1 of the same topic is running"
    for refusal in (Refused("too many messages"), InvalidTransition("busy", retryable=True)):
        night.refusal = refusal
        with pytest.raises(Refused) as caught:
            night.work()
        assert caught.value is refusal


def test_what_is_put_back_already_is_nothing_to_do_and_names_the_way_out(night: Night) -> None:
    gap = lose(night.desk)
    command = f'`backlogctl waive {gap.id} --reason "put back already"`'
    night.refusal = PutBackAlready("there is nothing to put back", hint=f"close it: {command}")
    work = night.work()
    assert (work.action, work.recovery) == (Tonight.NOTHING, "")
    assert work.why == f"there is nothing to put back; close it: {command}"


def test_what_was_answered_while_planning_is_nothing_to_do(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = lose(night.desk)

    def answer(*_: Any, **named: Any) -> Any:
        night.desk.ledger.gaps.advance([gap.id], GapState.WAIVED, reason="read again")
        raise Refused("nothing is lost")

    monkeypatch.setattr(nights, "plan_rebuild", answer)
    assert night.work().why == "nothing is lost"


def test_a_night_of_the_past_takes_what_was_lost_in_it(night: Night) -> None:
    """Whenever it was found; what was lost at other times is told, and left alone."""
    begin = LONG_AGO + timedelta(days=1)
    past = Interval(begin, begin + timedelta(days=1))
    others = [
        lose(night.desk, begin - timedelta(seconds=1), partition=0),
        lose(night.desk, begin + timedelta(days=1), partition=1),
    ]
    nothing = night.work(LONG_AGO, lost_in=past)
    assert (nothing.action, nothing.recovery, night.asked) == (Tonight.NOTHING, "", [])
    assert nothing.why == f"no open gap was lost in this night ({past}); 2 at other times"
    mine = lose(night.desk, begin, partition=2)
    work = night.work(LONG_AGO, lost_in=past)
    assert work.action is Tonight.ASK
    assert night.desk.ledger.recoveries.gap_ids(work.recovery) == (mine.id,)
    for gap in others:
        assert night.desk.ledger.gaps.get(gap.id).state is GapState.OPEN


@pytest.mark.parametrize("states", [(S.RUNNING,), (S.RUNNING, S.FAILED)])
def test_what_is_a_persons_is_left_alone(night: Night, states: tuple[S, ...]) -> None:
    recovery = store(night.desk, "rebuild", lose(night.desk).id)
    bring(night.desk, recovery, S.APPROVED, *states, code="kafka")
    held = night.work(hold=lambda one: f"{one.id} is a person's")
    assert held == NightWork("orders", Tonight.NOTHING, recovery.id, f"{recovery.id} is a person's")
    assert night.work(hold=lambda _: "").action is Tonight.RUN


def test_a_rehearsal_does_not_take_the_nights_place(night: Night) -> None:
    """It repairs nothing: it is waited for while it runs, and else the loss is planned."""
    gap = lose(night.desk)
    recovery = store(night.desk, target=REHEARSAL)
    for state in (S.APPROVED, S.RUNNING, S.PAUSED):
        bring(night.desk, recovery, state)
        why = f"its rehearsal {recovery.id} is {state}"
        found = night.work(hold=lambda _: "a person's")
        assert found == NightWork("orders", Tonight.NOTHING, "", why)
    bring(night.desk, recovery, S.RUNNING)
    bring(night.desk, recovery, S.FAILED, code="plan_stale", message="gone")
    work = night.work(hold=lambda _: "a person's")
    assert (work.action, work.recovery == recovery.id) == (Tonight.ASK, False)
    assert night.desk.ledger.recoveries.gap_ids(work.recovery) == (gap.id,)


def test_a_rehearsal_that_nobody_approved_makes_room(night: Night) -> None:
    lose(night.desk)
    rehearsal = store(night.desk, target=REHEARSAL)
    work = night.work()
    assert (work.action, work.recovery == rehearsal.id) == (Tonight.ASK, False)
    assert night.desk.ledger.recoveries.get(rehearsal.id).state is S.REJECTED


def test_a_rehearsal_names_the_plan_whose_place_it_takes(night: Night) -> None:
    assert name_superseded(night.desk, "orders") == []
    waiting = store(night.desk, "rebuild", lose(night.desk).id)
    (told,) = name_superseded(night.desk, "orders")
    assert told.startswith(f"rebuild {waiting.id} waits for its approval")
    assert f"`backlogctl show {waiting.id}`" in told, "a bare `plan redrive` plans nothing"
    store(night.desk, target=REHEARSAL)
    assert name_superseded(night.desk, "orders") == []


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
