"""Recoveries: their states, approvals, and what goes with them in one transaction."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from itertools import product
from typing import Literal

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from backlogctl.errors import ApprovalNeeded, InvalidTransition, LeaseHeld, Refused, UsageError
from backlogctl.ledger import Ledger, Owner
from backlogctl.values import GapState, RecoveryState
from tests.kernel.ledger.conftest import change
from tests.kit.ledger import FAR, NOON, approve, bring_to, create_recovery, make_gap, plan

S = RecoveryState
PAUSE: Literal["pause"] = "pause"
WAY_TO = {
    S.PLANNED: (),
    S.REJECTED: (S.REJECTED,),
    S.APPROVED: (S.APPROVED,),
    S.RUNNING: (S.APPROVED, S.RUNNING),
    S.PAUSED: (S.APPROVED, S.RUNNING, S.PAUSED),
    S.VERIFIED: (S.APPROVED, S.RUNNING, S.VERIFIED),
    S.CANCELLED: (S.APPROVED, S.CANCELLED),
    S.FAILED: (S.APPROVED, S.RUNNING, S.FAILED),
}
ALLOWED = {
    S.PLANNED: {S.APPROVED, S.REJECTED},
    S.APPROVED: {S.RUNNING, S.CANCELLED, S.REJECTED},
    S.RUNNING: {S.PAUSED, S.VERIFIED, S.FAILED, S.CANCELLED},
    S.PAUSED: {S.RUNNING, S.CANCELLED, S.FAILED},
    S.FAILED: {S.RUNNING, S.CANCELLED},
}


def test_recovery_is_stored_with_its_gaps_and_first_event(ledger: Ledger) -> None:
    gaps = [ledger.gaps.record(make_gap(partition=number)) for number in range(3)]
    recovery = plan(ledger, *[gap.id for gap in gaps])
    assert ledger.recoveries.get(recovery.id) == recovery
    assert recovery.state is S.PLANNED
    assert recovery.plan == {"counts": {"rebuilt": 1000}, "note": "zwölf \u0000 1.0"}
    assert ledger.recoveries.gap_ids(recovery.id) == tuple(gap.id for gap in gaps)
    assert {gap.state for gap in ledger.gaps.list()} == {GapState.PLANNED}
    assert [event.action for event in ledger.events.list(recovery.id)] == ["planned"]
    assert ledger.recoveries.list(stream="orders", states=[S.PLANNED]) == (recovery,)
    assert ledger.recoveries.list(states=[S.RUNNING]) == ()
    with pytest.raises(UsageError, match="no such recovery"):
        ledger.recoveries.get("r-19700101-0001")


@pytest.mark.parametrize(
    "run", ["manual__2026-11-21T10:00:00+00:00", "a%_b", 'say "hi"\\n', "zwölf/1"]
)
def test_recoveries_are_found_by_where_they_came_from(ledger: Ledger, run: str) -> None:
    def store(stream: str, plan: dict[str, object]) -> str:
        return create_recovery(ledger, "rebuild", stream, plan=plan, stops_consumers=False).id

    origin = {"scheduler": "airflow", "dag_id": "recover", "run_id": run, "note": "at night"}
    mine = [store(name, {"origin": origin}) for name in ("one", "two")]
    store("other", {"origin": {**origin, "run_id": run.upper()}})
    store("elsewhere", {"origin": {**origin, "dag_id": "nightly"}})
    store("shell", {"origin": None, "note": dict(origin)})
    wanted = {"scheduler": "airflow", "dag_id": "recover", "run_id": run}
    assert [one.id for one in ledger.recoveries.list(origin=wanted)] == mine
    assert ledger.recoveries.list(origin={**wanted, "run_id": "%"}) == ()
    assert len(ledger.recoveries.list()) == 5


def test_ids_are_reserved_once(ledger: Ledger) -> None:
    first, second = ledger.recoveries.next_id(NOON), ledger.recoveries.next_id(NOON)
    assert first.startswith("r-20261121-0001-")
    assert second.startswith("r-20261121-0002-")
    assert ledger.recoveries.next_id(NOON + FAR).startswith("r-20261122-0001-")
    create = partial(
        ledger.recoveries.create, "rebuild", "orders", "main", "orders", "g", {}, "h", (), "ada",
        stops_consumers=False, holds_when_failed=False,
    )  # fmt: skip
    assert create(id=second).id == second
    with pytest.raises(Refused, match="taken"):
        create(id=second)
    assert ledger.recoveries.get(second).state is S.PLANNED, "nothing of the second try is left"


def test_new_plan_supersedes_the_old_one(ledger: Ledger) -> None:
    one, two = (ledger.gaps.record(make_gap(partition=number)) for number in (0, 1))
    old = plan(ledger, one.id, two.id)
    elsewhere = plan(ledger, stream="invoices")
    new = plan(ledger, one.id)
    assert ledger.recoveries.get(old.id).state is S.REJECTED
    assert ledger.events.list(old.id)[-1].action == f"superseded by {new.id}"
    assert ledger.recoveries.get(elsewhere.id).state is S.PLANNED
    states = {gap.id: gap.state for gap in ledger.gaps.list()}
    assert states == {one.id: GapState.PLANNED, two.id: GapState.OPEN}
    assert ledger.recoveries.gap_ids(new.id) == (one.id,)
    assert ledger.recoveries.gap_ids(old.id) == (one.id, two.id), "history stays"


def test_gap_of_an_approved_recovery_is_not_taken(ledger: Ledger) -> None:
    gap = ledger.gaps.record(make_gap())
    first = approve(ledger, plan(ledger, gap.id))
    with pytest.raises(InvalidTransition, match=f"of recovery {first.id}"):
        plan(ledger, gap.id)
    assert len(ledger.recoveries.list()) == 1, "one transaction"
    foreign = ledger.gaps.record(make_gap(stream="invoices"))
    with pytest.raises(UsageError, match="of stream invoices"):
        plan(ledger, foreign.id)


def test_only_the_allowed_transitions(ledger: Ledger, raw: Engine) -> None:
    for before in S:
        name = f"{before}-to-itself"
        recovery = bring_to(ledger, plan(ledger, stream=name), *WAY_TO[before])
        events = len(ledger.events.list(recovery.id))
        for after in sorted(set(S) - ALLOWED.get(before, set())):
            with pytest.raises(InvalidTransition, match=f"is {before}.* cannot become {after}"):
                bring_to(ledger, recovery, after)
            if before is not after:
                statement = (
                    f"UPDATE backlog_recoveries SET state = '{after}' WHERE stream = '{name}'"
                )
                with pytest.raises(DBAPIError, match="backlog refuses"):
                    change(raw, statement)
            assert ledger.recoveries.get(recovery.id).state is before
            assert len(ledger.events.list(recovery.id)) == events
        for after in ALLOWED.get(before, ()):
            stream = f"{before}-to-{after}"
            recovery = bring_to(ledger, plan(ledger, stream=stream), *WAY_TO[before])
            events = len(ledger.events.list(recovery.id))
            assert bring_to(ledger, recovery, after).state is after
            assert len(ledger.events.list(recovery.id)) == events + 1


def test_gaps_are_open_again_after_a_recovery_that_will_not_run(ledger: Ledger) -> None:
    steps = (GapState.PLANNED, GapState.STAGED, GapState.INJECTED)
    for end, count in product((S.REJECTED, S.CANCELLED), range(1, 4)):
        gap = ledger.gaps.record(make_gap(stream=f"{end}-{count}"))
        recovery = plan(ledger, gap.id, stream=gap.stream)
        for state in steps[1:count]:
            ledger.gaps.advance([gap.id], state, recovery.id)
        assert ledger.gaps.get(gap.id).state is steps[count - 1]
        bring_to(ledger, recovery, S.APPROVED, end)
        assert ledger.gaps.get(gap.id).state is GapState.OPEN
        assert ledger.gaps.advance([gap.id], GapState.OPEN)[0].state is GapState.OPEN
        plan(ledger, gap.id, stream=gap.stream)


def test_fault_63_approval_for_another_hash_or_an_expired_one_is_refused(ledger: Ledger) -> None:
    recovery = plan(ledger, plan_hash="right")
    soon = ledger.now() + FAR
    with pytest.raises(Refused, match="another plan"):
        ledger.recoveries.approve(recovery.id, "ada", "ada@host", "wrong", soon)
    with pytest.raises(Refused, match="expired"):
        ledger.recoveries.approve(recovery.id, "ada", "ada@host", "right", ledger.now())
    assert ledger.recoveries.get(recovery.id).state is S.PLANNED
    approved = ledger.recoveries.approve(recovery.id, "ada", "ada@host", "right", soon)
    assert (approved.approved_by, approved.approved_identity, approved.approved_hash) == (
        "ada",
        "ada@host",
        "right",
    )
    assert approved.approval_expires_at == soon


def test_fault_63_expired_approval_does_not_start_and_can_be_renewed(
    ledger: Ledger, raw: Engine
) -> None:
    recovery = approve(ledger, plan(ledger))
    past = "2026-01-01T00:00:00.000000Z"
    change(raw, f"UPDATE backlog_recoveries SET approval_expires_at = '{past}'")
    with pytest.raises(ApprovalNeeded, match="expired"):
        ledger.recoveries.advance(recovery.id, S.RUNNING, "ada")
    assert approve(ledger, recovery, by="bob").approved_by == "bob"
    running = ledger.recoveries.advance(recovery.id, S.RUNNING, "ada")
    change(raw, f"UPDATE backlog_recoveries SET approval_expires_at = '{past}'")
    # The approval is for the start: what began in time goes on the next night.
    bring_to(ledger, running, S.PAUSED, S.RUNNING)


FORGED = (
    ("UPDATE backlog_recoveries SET plan = '{}'", "never change"),
    ("UPDATE backlog_recoveries SET plan_hash = 'x'", "never change"),
    ("UPDATE backlog_recoveries SET topic = 'x'", "never change"),
    ("UPDATE backlog_recoveries SET stops_consumers = NOT stops_consumers", "never change"),
    ("UPDATE backlog_recoveries SET holds_when_failed = NOT holds_when_failed", "never change"),
    ("UPDATE backlog_recoveries SET state = 'approved'", "recoveries_approval"),
    (
        "UPDATE backlog_recoveries SET state = 'approved', approved_by = 'eve',"
        " approved_hash = 'other', approval_expires_at = created_at",
        "recoveries_approval",
    ),
    ("UPDATE backlog_recoveries SET requested = 'explode'", "recoveries_requested"),
    ("DELETE FROM backlog_recoveries", "never deleted"),
)


def test_fault_63_database_itself_refuses(ledger: Ledger, raw: Engine) -> None:
    recovery = plan(ledger)
    for statement, message in FORGED:
        with pytest.raises(DBAPIError, match=message):
            change(raw, statement)
        assert ledger.recoveries.get(recovery.id) == recovery


def test_new_recovery_starts_planned(ledger: Ledger, raw: Engine) -> None:
    plan(ledger)
    with pytest.raises(DBAPIError, match="must be planned"):
        change(
            raw,
            "INSERT INTO backlog_recoveries (id, kind, stream, cluster, topic, group_id, state,"
            " plan_hash, plan, created_at, detail, events_head) SELECT 'r-2', kind, stream,"
            " cluster, topic, group_id, 'rejected', plan_hash, plan, created_at, detail,"
            " events_head FROM backlog_recoveries",
        )


def test_fault_44_one_recovery_at_a_time_by_topic_and_by_group(ledger: Ledger) -> None:
    for shared, state in product(("topic", "group"), (S.APPROVED, S.RUNNING, S.PAUSED)):
        name = f"{shared}-{state}"
        one, two = (plan(ledger, stream=f"{name}-{each}", **{shared: name}) for each in "ab")
        first = bring_to(ledger, one, *WAY_TO[state])
        with pytest.raises(InvalidTransition) as caught:
            approve(ledger, two)
        assert f"recovery {first.id} of the same {shared} {name} is {state}" in str(caught.value)
        assert ledger.recoveries.get(two.id).state is S.PLANNED
        ledger.recoveries.advance(first.id, S.CANCELLED, "ada")
        assert approve(ledger, two).state is S.APPROVED


def test_failed_recovery_does_not_run_beside_another(ledger: Ledger) -> None:
    failed = bring_to(ledger, plan(ledger), *WAY_TO[S.FAILED])
    second = approve(ledger, plan(ledger))
    with pytest.raises(InvalidTransition, match=f"recovery {second.id} .* is approved"):
        ledger.recoveries.advance(failed.id, S.RUNNING, "ada")
    assert ledger.recoveries.get(failed.id).state is S.FAILED


def test_failed_expansion_is_in_the_way_until_it_is_run_again_or_cancelled(ledger: Ledger) -> None:
    failed = bring_to(ledger, plan(ledger, kind="expand"), *WAY_TO[S.FAILED])
    second = plan(ledger)
    with pytest.raises(InvalidTransition, match=f"recovery {failed.id} .* is failed") as caught:
        approve(ledger, second)
    assert caught.value.hint == f"run or cancel {failed.id} first"
    assert ledger.recoveries.advance(failed.id, S.RUNNING, "ada").state is S.RUNNING
    bring_to(ledger, failed, S.FAILED, S.CANCELLED)
    assert approve(ledger, second).state is S.APPROVED


@pytest.mark.parametrize("holds", [True, False])
def test_failed_recovery_of_any_kind_is_in_the_way_where_it_left_something_changed(
    ledger: Ledger, holds: bool
) -> None:
    made = create_recovery(
        *(ledger, "mend"),
        group="orders-service",
        stops_consumers=not holds,
        holds_when_failed=holds,
    )
    assert (made.stops_consumers, made.holds_when_failed) == (not holds, holds)
    assert ledger.recoveries.get(made.id) == made
    bring_to(ledger, made, *WAY_TO[S.FAILED])
    second = plan(ledger)
    if holds:
        with pytest.raises(InvalidTransition, match=f"recovery {made.id} .* is failed"):
            approve(ledger, second)
    else:
        assert approve(ledger, second).state is S.APPROVED


def test_failed_rebuild_is_not_named_as_the_one_in_the_way(ledger: Ledger) -> None:
    bring_to(ledger, plan(ledger), *WAY_TO[S.FAILED])
    active = approve(ledger, plan(ledger, kind="expand"))
    with pytest.raises(InvalidTransition, match=f"recovery {active.id} .* is approved"):
        approve(ledger, plan(ledger))


def test_requests_are_left_for_the_runner(ledger: Ledger) -> None:
    recovery = plan(ledger)
    with pytest.raises(InvalidTransition, match="it is planned: pause"):
        ledger.recoveries.request(recovery.id, "pause", "ada")
    bring_to(ledger, recovery, S.APPROVED, S.RUNNING)
    assert ledger.recoveries.request(recovery.id, "pause", "ada").requested == "pause"
    paused = ledger.recoveries.advance(recovery.id, S.PAUSED, "runner", {"why": "asked"})
    assert (paused.requested, paused.detail) == (None, {"why": "asked"})
    assert ledger.recoveries.request(recovery.id, "cancel", "ada").requested == "cancel"
    assert ledger.recoveries.advance(recovery.id, S.RUNNING, "r").requested == "cancel"
    actions = [event.action for event in ledger.events.list(recovery.id)]
    assert actions[-4:] == ["pause requested", "paused", "cancel requested", "running"]
    ledger.recoveries.advance(recovery.id, S.VERIFIED, "runner")
    with pytest.raises(InvalidTransition):
        ledger.recoveries.request(recovery.id, "cancel", "ada")


def test_cancel_is_not_overwritten_by_pause_or_taken_back(ledger: Ledger) -> None:
    recovery = bring_to(ledger, plan(ledger), S.APPROVED, S.RUNNING)
    ledger.recoveries.request(recovery.id, "pause", "ada")
    assert ledger.recoveries.request(recovery.id, None, "ada").requested is None
    assert ledger.events.list(recovery.id)[-1].action == "request taken back"
    ledger.recoveries.request(recovery.id, "pause", "ada")
    ledger.recoveries.request(recovery.id, "cancel", "ada")
    for what in (PAUSE, None):
        with pytest.raises(InvalidTransition, match="cancel was asked for already"):
            ledger.recoveries.request(recovery.id, what, "bob")
    assert ledger.recoveries.request(recovery.id, "cancel", "bob").requested == "cancel"


def test_fault_02_runner_that_lost_its_lease_changes_no_state(ledger: Ledger) -> None:
    recovery = bring_to(ledger, plan(ledger), S.APPROVED)
    zombie, live = Owner.current(), Owner.current()
    ledger.leases.acquire(recovery.id, zombie)
    ledger.recoveries.advance(recovery.id, S.RUNNING, "op", owner=zombie)
    ledger.leases.release(recovery.id, zombie)
    with pytest.raises(LeaseHeld, match="given up or lost"):
        ledger.recoveries.advance(recovery.id, S.FAILED, "op", owner=zombie)
    ledger.leases.acquire(recovery.id, live)
    events = ledger.events.list(recovery.id)
    with pytest.raises(LeaseHeld, match="took it over"):
        ledger.recoveries.advance(recovery.id, S.FAILED, "op", owner=zombie)
    assert ledger.recoveries.get(recovery.id).state is S.RUNNING
    assert ledger.events.list(recovery.id) == events
    done = ledger.recoveries.advance(recovery.id, S.VERIFIED, "op", owner=live)
    assert done.state is S.VERIFIED


def test_lists_are_oldest_first(ledger: Ledger) -> None:
    made = [plan(ledger, stream=name).id for name in ("a", "b", "c")]
    assert [recovery.id for recovery in ledger.recoveries.list()] == made
    assert timedelta(0) <= ledger.now() - ledger.recoveries.list()[0].created_at < FAR
