"""Steps, temporary topics and the burn-down of an expansion."""

from __future__ import annotations

from datetime import timedelta

import pytest

from backlogctl.errors import Refused, UsageError
from backlogctl.ledger import BurndownSample, Ledger
from tests.kernel.ledger.makers import NOON, plan


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
