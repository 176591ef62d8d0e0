"""One stream's night."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backlogctl.clock import utc_now
from backlogctl.config import Stream
from backlogctl.errors import InvalidTransition, PutBackAlready, Refused
from backlogctl.replay.engine.brakes import OPERATOR, WINDOW
from backlogctl.replay.engine.kind import Say, Workspace
from backlogctl.replay.engine.plan import RunOrigin, name_origin
from backlogctl.replay.injection.plan import PlannedTarget, To
from backlogctl.replay.injection.target import name_superseded
from backlogctl.replay.kinds.rebuild.losses import choose_gaps
from backlogctl.replay.kinds.rebuild.plan import RebuildOptions
from backlogctl.replay.runbooks import nights
from backlogctl.replay.runbooks.nights import Interval, NightWork, Tonight, find_night_work
from backlogctl.values import Cause, Gap, GapState, Recovery, RecoveryState
from tests.kit.recoveries import PAST, change_ledger
from tests.replay.runbooks.desks import TOPIC_ID, bring, lose, open_shop, store

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
