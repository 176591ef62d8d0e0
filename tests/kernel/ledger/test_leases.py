"""Leases: one runner, by the database's clock. Steps and events of a recovery."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from backlogctl.errors import LeaseHeld, Refused, UsageError
from backlogctl.ledger import BurndownSample, Ledger, Owner
from tests.kernel.ledger.conftest import change, drop_triggers
from tests.kit.kafka import wait_until
from tests.kit.ledger import NOON, plan

PAST = "2026-01-01T00:00:00.000000Z"
HOUR = timedelta(hours=1)  # does not end while the machine stands still
HOLD = """
import sys, time
from datetime import timedelta
from backlogctl.ledger import Owner, open_ledger
ledger = open_ledger(sys.argv[1])
ledger.leases.acquire(sys.argv[2], Owner.current(), timedelta(hours=1))
print("held", flush=True)
time.sleep(600)
"""


def far_owner() -> Owner:
    return replace(Owner.current(), host="elsewhere")


def take_over(ledger: Ledger, raw: Engine, recovery_id: str, new: Owner) -> None:
    """The lease runs out, and another takes it; its holder may renew it in between."""

    def is_taken() -> bool:
        change(raw, f"UPDATE backlog_recoveries SET lease_until = '{PAST}'")
        try:
            ledger.leases.acquire(recovery_id, new, HOUR)
        except LeaseHeld:
            return False
        return True

    wait_until(is_taken)


def test_second_runner_is_told_who_holds_it(ledger: Ledger) -> None:
    recovery = plan(ledger)
    owner = far_owner()
    assert ledger.leases.holder(recovery.id) is None
    began = time.monotonic()
    ledger.leases.acquire(recovery.id, owner, HOUR)
    ledger.leases.acquire(recovery.id, owner, HOUR)  # one's own again
    with pytest.raises(LeaseHeld) as caught:
        ledger.leases.acquire(recovery.id, Owner.current())
    took = time.monotonic() - began
    assert f"{recovery.id} is held by elsewhere:{os.getpid()} until 20" in caught.value.message
    renewed = re.search(r"it was taken \d+ s ago and renewed (\d+) s ago", caught.value.message)
    assert renewed is not None
    assert int(renewed[1]) <= took + 1
    holder = ledger.leases.holder(recovery.id)
    assert holder is not None
    assert (holder.owner, holder.expired) == (owner, False)
    assert ledger.recoveries.get(recovery.id).runner == str(owner)
    ledger.leases.release(recovery.id, Owner.current())  # not ours: nothing happens
    assert ledger.leases.holder(recovery.id) is not None
    ledger.leases.release(recovery.id, owner)
    ledger.leases.acquire(recovery.id, Owner.current())
    with pytest.raises(LeaseHeld):
        ledger.leases.renew(recovery.id, owner)
    with pytest.raises(UsageError):
        ledger.leases.acquire("r-19700101-0001", owner)


def test_two_holders_in_one_process_are_told_apart(ledger: Ledger) -> None:
    recovery = plan(ledger)
    ledger.leases.acquire(recovery.id, Owner.current(), HOUR)
    with pytest.raises(LeaseHeld):
        ledger.leases.acquire(recovery.id, Owner.current())


def test_expired_lease_is_taken_over_and_the_old_holder_is_told(
    ledger: Ledger, raw: Engine
) -> None:
    recovery = plan(ledger)
    old, new = far_owner(), Owner.current()
    ledger.leases.acquire(recovery.id, old)
    change(raw, f"UPDATE backlog_recoveries SET lease_until = '{PAST}'")
    ledger.leases.renew(recovery.id, old)  # nobody took it
    change(raw, f"UPDATE backlog_recoveries SET lease_until = '{PAST}'")
    ledger.leases.acquire(recovery.id, new)
    with pytest.raises(LeaseHeld, match=f"held by {new}"):
        ledger.leases.renew(recovery.id, old)
    event = ledger.events.list(recovery.id)[-1]
    assert (event.action, event.detail["why"]) == ("lease taken over", "expired")
    assert ledger.events.find_break(recovery.id) is None


def test_killed_runner_of_this_host_is_replaced_at_once(ledger: Ledger, url: str) -> None:
    recovery = plan(ledger)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, url, recovery.id], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(LeaseHeld, match=f":{process.pid} until"):
            ledger.leases.acquire(recovery.id, Owner.current())
        process.send_signal(signal.SIGSTOP)  # asleep is not dead
        with pytest.raises(LeaseHeld):
            ledger.leases.acquire(recovery.id, Owner.current())
    finally:
        process.kill()
        process.communicate(timeout=400)
    ledger.leases.acquire(recovery.id, Owner.current())
    assert ledger.events.list(recovery.id)[-1].detail["why"] == "its process is dead"


def test_reused_pid_is_not_taken_for_the_holder(ledger: Ledger) -> None:
    recovery = plan(ledger)
    place, _, ticks = Owner.current().started.rpartition("/")
    earlier = replace(Owner.current(), started=f"{place}/{int(ticks) - 1}", token="earlier")
    assert earlier.is_dead()
    ledger.leases.acquire(recovery.id, earlier)
    ledger.leases.acquire(recovery.id, Owner.current())


def test_process_of_another_host_or_boot_is_not_judged() -> None:
    me = Owner.current()
    gone = replace(me, pid=2**22 + 1)
    assert not me.is_dead()
    assert gone.is_dead()
    assert not replace(gone, host="elsewhere").is_dead()
    assert not replace(gone, started="another-boot/pid:[1]/5").is_dead()
    assert not replace(gone, started="unknown").is_dead()


# An SQLite file is on one machine, with one clock.
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_fault_41_a_wrong_clock_here_does_not_expire_a_lease(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = plan(ledger)
    ledger.leases.acquire(recovery.id, far_owner(), HOUR)
    from backlogctl import clock
    from backlogctl.ledger import leases

    ahead = clock.utc_now() + 2 * HOUR
    for module in (clock, leases):
        monkeypatch.setattr(module, "utc_now", lambda: ahead)
    with pytest.raises(LeaseHeld):
        ledger.leases.acquire(recovery.id, Owner.current())


def test_held_lease_is_renewed_and_given_back(ledger: Ledger) -> None:
    recovery = plan(ledger)
    with ledger.leases.hold(recovery.id, ttl=timedelta(seconds=0.6)) as lease:
        first = ledger.leases.holder(recovery.id)
        assert first is not None

        def renewed_past_the_first_end() -> bool:
            holder = ledger.leases.holder(recovery.id)
            return holder is not None and holder.renewed_at > first.until

        wait_until(renewed_past_the_first_end)
        lease.check()
        wait_until(lambda: not lease.lost)  # between two renewals it may run out
    assert ledger.leases.holder(recovery.id) is None


def test_lost_lease_says_so_and_is_not_given_back(ledger: Ledger, raw: Engine) -> None:
    recovery = plan(ledger)
    new = far_owner()
    with ledger.leases.hold(recovery.id, ttl=timedelta(seconds=0.6)) as lease:
        take_over(ledger, raw, recovery.id, new)
        wait_until(lambda: lease.lost)
        with pytest.raises(LeaseHeld, match="held by elsewhere"):
            lease.check()
    holder = ledger.leases.holder(recovery.id)
    assert holder is not None
    assert holder.owner == new


def test_confirmed_lease_is_that_of_the_database(ledger: Ledger, raw: Engine) -> None:
    recovery = plan(ledger)
    with ledger.leases.hold(recovery.id, ttl=HOUR) as lease:
        lease.confirm()
        take_over(ledger, raw, recovery.id, far_owner())
        lease.check()  # nothing was heard of it yet
        with pytest.raises(LeaseHeld, match="held by elsewhere"):
            lease.confirm()
        assert lease.lost


def test_body_error_is_not_hidden_by_the_lease(ledger: Ledger) -> None:
    recovery = plan(ledger)
    with pytest.raises(RuntimeError, match="mine"), ledger.leases.hold(recovery.id):
        raise RuntimeError("mine")
    assert ledger.leases.holder(recovery.id) is None


def test_step_is_started_completed(ledger: Ledger) -> None:
    recovery = plan(ledger, kind="expand").id
    assert ledger.steps.get(recovery, "hold") is None
    first = ledger.steps.start(recovery, "hold")
    assert (first.attempts, first.is_complete, first.detail) == (1, False, {})
    assert first.first_started_at == first.last_started_at
    again = ledger.steps.start(recovery, "hold")
    assert (again.attempts, again.first_started_at) == (2, first.first_started_at)
    assert again.last_started_at > first.last_started_at

    done = ledger.steps.complete(recovery, "hold", {"topic": "orders"})
    assert done.is_complete
    assert ledger.steps.complete(recovery, "hold", {"topic": "other"}) == done, "once"
    assert ledger.steps.start(recovery, "hold").completed_at == done.completed_at


def test_steps_are_in_the_order_of_their_start(ledger: Ledger) -> None:
    recovery, other = plan(ledger).id, plan(ledger, stream="invoices").id
    for step in ("validate", "hold", "expand"):
        ledger.steps.start(recovery, step)
    ledger.steps.start(other, "validate")
    ledger.steps.start(recovery, "validate")
    assert [one.step for one in ledger.steps.list(recovery)] == ["validate", "hold", "expand"]
    assert ledger.steps.get(recovery, "hold") == ledger.steps.list(recovery)[1]


def test_step_that_never_started_is_not_done(ledger: Ledger) -> None:
    recovery = plan(ledger).id
    with pytest.raises(UsageError, match="never started"):
        ledger.steps.complete(recovery, "hold")
    with pytest.raises(Refused):
        ledger.steps.start("r-19700101-0001", "hold")


def test_temporary_topic_is_announced_then_recorded_then_gone(ledger: Ledger) -> None:
    recovery = plan(ledger).id
    topics = ledger.temporary_topics
    assert topics.get(recovery) is None
    announced = topics.announce(recovery, "main", "orders.recovery.x", 30)
    assert topics.announce(recovery, "main", "orders.recovery.x", 30) == announced
    assert (announced.topic_id, announced.deleted_at) == (None, None)
    with pytest.raises(Refused, match="with 30 partitions on main"):
        topics.announce(recovery, "main", "orders.recovery.x", 60)
    assert topics.record_id(recovery, "id-1").topic_id == "id-1"
    assert topics.record_id(recovery, "id-1").topic_id == "id-1"
    with pytest.raises(Refused, match="id-2"):
        topics.record_id(recovery, "id-2")
    gone = topics.mark_deleted(recovery)
    assert gone.deleted_at is not None
    assert topics.mark_deleted(recovery) == gone == topics.get(recovery)


def test_topic_that_was_not_announced_has_no_id(ledger: Ledger) -> None:
    recovery = plan(ledger).id
    with pytest.raises(UsageError, match="no temporary topic was announced"):
        ledger.temporary_topics.record_id(recovery, "id-1")
    with pytest.raises(UsageError, match="no temporary topic was announced"):
        ledger.temporary_topics.mark_deleted(recovery)


def test_burndown_is_kept_in_order(ledger: Ledger) -> None:
    recovery, other = plan(ledger).id, plan(ledger, stream="invoices").id
    assert ledger.burndown.latest(recovery) is None
    made = [
        BurndownSample(
            recovery, NOON + timedelta(seconds=n), "relay", 2**40 - n, n, n, 0, n or None
        )
        for n in range(3)
    ]
    for sample in (made[2], made[0], made[1]):
        ledger.burndown.add(sample)
    ledger.burndown.add(BurndownSample(other, NOON, "relay", 1, 0, 0, 0))
    assert ledger.burndown.list(recovery) == tuple(made)
    assert ledger.burndown.list(recovery, since=made[1].at) == tuple(made[1:])
    assert ledger.burndown.latest(recovery) == made[2]


def record_some(ledger: Ledger) -> str:
    recovery = plan(ledger)
    detail = {"rate": 1.0, "big": 10**20, "tiny": 1e-7, "text": "zwölf \u0000 ✓", "none": None}
    for number in range(4):
        ledger.events.append(recovery.id, "ada", f"wave {number}", detail)
    return recovery.id


def test_record_is_chained(ledger: Ledger) -> None:
    recovery = record_some(ledger)
    lines = ledger.events.list(recovery)
    assert [line.sequence for line in lines] == [1, 2, 3, 4, 5]
    assert lines[0].previous_hash == "0" * 64
    pairs = pairwise(lines)
    assert all(before.hash == after.previous_hash for before, after in pairs)
    assert lines[2].detail["big"] == 10**20
    assert ledger.events.find_break(recovery) is None
    with pytest.raises(UsageError, match="no such recovery"):
        ledger.events.append("r-19700101-0001", "ada", "x", {})


def test_fault_02_who_lost_the_lease_adds_no_line(ledger: Ledger) -> None:
    recovery = record_some(ledger)
    zombie, live = Owner.current(), Owner("other", 1, "then", "token")
    ledger.leases.acquire(recovery, zombie)
    ledger.events.append(recovery, "ada", "decided", owner=zombie)
    ledger.leases.release(recovery, zombie)
    ledger.leases.acquire(recovery, live)
    before = ledger.events.list(recovery)
    with pytest.raises(LeaseHeld, match="took it over"):
        ledger.events.append(recovery, "ada", "decided again", owner=zombie)
    assert ledger.events.list(recovery) == before
    assert ledger.events.find_break(recovery) is None


def test_database_refuses_to_change_the_record(ledger: Ledger, raw: Engine) -> None:
    recovery = record_some(ledger)
    for statement in ("UPDATE backlog_events SET actor = 'eve'", "DELETE FROM backlog_events"):
        with pytest.raises(DBAPIError, match="append-only"):
            change(raw, statement)
    assert ledger.events.find_break(recovery) is None


@pytest.mark.parametrize(
    ("statements", "found"),
    [
        (["UPDATE backlog_events SET actor = 'eve' WHERE sequence = 3"], "event 3 was altered"),
        (["UPDATE backlog_events SET detail = '{}' WHERE sequence = 2"], "event 2 was altered"),
        (["DELETE FROM backlog_events WHERE sequence = 3"], "event 3 is missing"),
        (["DELETE FROM backlog_events WHERE sequence = 1"], "event 1 is missing"),
        (["DELETE FROM backlog_events WHERE sequence >= 4"], "5 events were written, 3 are there"),
        (["DELETE FROM backlog_events"], "5 events were written, 0 are there"),
        (
            [
                "UPDATE backlog_events SET sequence = 99 WHERE sequence = 2",
                "UPDATE backlog_events SET sequence = 2 WHERE sequence = 3",
                "UPDATE backlog_events SET sequence = 3 WHERE sequence = 99",
            ],
            "event 2 does not follow",
        ),
        (
            [
                "DELETE FROM backlog_events WHERE sequence = 5",
                "UPDATE backlog_recoveries SET events_length = 4",
            ],
            "the last event is not",
        ),
    ],
)
def test_tampering_is_found(ledger: Ledger, raw: Engine, statements: list[str], found: str) -> None:
    recovery = record_some(ledger)
    with raw.begin() as connection:
        drop_triggers(connection, "backlog_events")
        for statement in statements:
            connection.exec_driver_sql(statement)
    assert found in (ledger.events.find_break(recovery) or "")
