"""Holds: the first values are never lost, whoever holds the topic, in whatever order."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from backlogctl.errors import Refused, UsageError
from backlogctl.ledger import Hold, Ledger
from tests.kernel.ledger.makers import NOON

MS, BYTES = "retention.ms", "retention.bytes"


def hold(
    ledger: Ledger,
    holder: str = "operator",
    *,
    old: str | None = "1000",
    raised: str = "5000",
    until: datetime | None = None,
    topic_id: str = "topic-id",
    seen: tuple[str, ...] | None = None,
) -> Hold:
    return ledger.holds.begin(
        stream="orders",
        cluster="main",
        topic="orders",
        topic_id=topic_id,
        holder=holder,
        old={MS: old, BYTES: None},
        raised={MS: raised, BYTES: "-1"},
        until=until,
        actor="ada",
        seen=seen,
    )


def test_hold_comes_back_as_it_went_in(ledger: Ledger) -> None:
    made = hold(ledger, until=NOON)
    assert ledger.holds.get(made.id) == made
    assert (made.old, made.raised) == ({MS: "1000", BYTES: None}, {MS: "5000", BYTES: "-1"})
    assert (made.until, made.released_at, made.holder) == (NOON, None, "operator")
    assert ledger.holds.list() == ledger.holds.list(stream="orders") == (made,)
    assert ledger.holds.list(stream="invoices") == ledger.holds.list(holder="r-1") == ()
    with pytest.raises(UsageError, match="no such hold"):
        ledger.holds.get("h-1")


def test_second_holder_takes_the_first_values_over(ledger: Ledger) -> None:
    first = hold(ledger)
    second = hold(ledger, "r-1", old="5000", raised="-1")
    assert second.old == {MS: "1000", BYTES: None}
    assert second.raised[MS] == ledger.holds.get(first.id).raised[MS] == "-1", (
        "one topic, one value"
    )
    assert second.earlier == {MS: ("5000",)}
    ledger.holds.release(first.id)
    third = hold(ledger, old="-1", raised="2000")
    assert third.id not in (first.id, second.id)
    assert (third.old[MS], third.raised[MS]) == ("1000", "-1"), "never lower than another needs"
    assert ledger.holds.list_of_topic("main", "orders", "topic-id") == (
        ledger.holds.get(second.id),
        third,
    )


def test_same_holder_moves_the_end_and_keeps_the_first_values(ledger: Ledger) -> None:
    first = hold(ledger, until=NOON)
    later = hold(ledger, old="5000", raised="9000", until=NOON + timedelta(hours=1))
    assert (later.id, later.until) == (first.id, NOON + timedelta(hours=1))
    assert (later.old[MS], later.raised[MS], later.earlier[MS]) == ("1000", "9000", ("5000",))
    again = hold(ledger, old="9000", raised="9000", until=NOON)
    assert (again.until, again.earlier) == (NOON, later.earlier)
    assert len(ledger.holds.list()) == 1


def test_topic_of_the_same_name_with_another_id_has_its_own_values(ledger: Ledger) -> None:
    hold(ledger)
    assert hold(ledger, old="7", topic_id="another").old[MS] == "7"


def test_hold_that_began_while_settings_were_read_is_told(ledger: Ledger) -> None:
    first = hold(ledger, seen=())
    with pytest.raises(Refused) as caught:
        hold(ledger, "r-1", old="5000", seen=())
    assert caught.value.retryable
    assert hold(ledger, "r-1", old="5000", seen=(first.id,)).old[MS] == "1000"


def test_due_and_released_holds(ledger: Ledger) -> None:
    made = hold(ledger, until=NOON)
    hold(ledger, "r-1")
    assert ledger.holds.due(NOON - timedelta(seconds=1)) == ()
    assert [one.id for one in ledger.holds.due(NOON)] == [made.id], "without an end it is never due"
    released = ledger.holds.release(made.id)
    assert released.released_at is not None
    assert ledger.holds.release(made.id) == released
    assert ledger.holds.due(NOON) == ()
    assert len(ledger.holds.list(open_only=False)) == 2
    with pytest.raises(UsageError):
        ledger.holds.release("h-1")


def test_last_of_several_holds_is_not_released_before_kafka_was_given_back(ledger: Ledger) -> None:
    first, second = hold(ledger), hold(ledger, "r-1")
    assert ledger.holds.release_shared(first.id)
    assert ledger.holds.release_shared(first.id), "once more"
    assert not ledger.holds.release_shared(second.id)
    assert ledger.holds.list() == (ledger.holds.get(second.id),)
