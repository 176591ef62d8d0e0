"""Messages that fell silent: who is asked, how often, and what an answer changes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from backlogctl_delivery.lookback.admin import resume_messages
from backlogctl_delivery.lookback.asker import (
    Claim,
    claim_questions,
    claim_unlisted,
    find_pause,
    park_unprepared,
    record_answer,
)
from backlogctl_delivery.lookback.checkers import Answer
from backlogctl_delivery.lookback.messages import Outcome, State
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import MESSAGES, Database
from tests.delivery.lookback.world import Teller, make_service, make_settings

_SERVICE = make_service("http://127.0.0.1:1")


@pytest.fixture
def settings(database_url: str) -> LookBackSettings:
    """Asked at once, three times."""
    return make_settings(
        first_check=timedelta(microseconds=1),
        wait_for_prepare=timedelta(microseconds=1),
        pause=timedelta(microseconds=1),
        longest_pause=timedelta(microseconds=1),
        max_checks=3,
        services={"payments": _SERVICE},
    )


def _claim(database: Database, token: str = "me", service: str = "payments") -> list[Claim]:
    return claim_questions(database, service, token, timedelta(minutes=1), 10)


def test_fault_50_an_answer_that_comes_after_the_commit_changes_nothing(teller: Teller) -> None:
    """RocketMQ #1517: what was committed was asked about all the same."""
    teller.prepare("1")
    (claim,) = _claim(teller.database)
    teller.commit("1")
    before = teller.find("1")
    late = Answer(Outcome.ROLLED_BACK)
    assert record_answer(teller.database, teller.settings, claim, late) is State.FORWARDED
    assert teller.find("1") == before
    # The other way round: the application's word comes after the answer.
    teller.prepare("2")
    (claim,) = _claim(teller.database)
    record_answer(teller.database, teller.settings, claim, Answer(Outcome.COMMITTED))
    row = teller.find("2")
    assert (row["state"], row["decided_by"]) == (State.FORWARDING, "look-back")
    teller.roll_back("2")
    assert teller.find("2") == row


def test_fault_50_two_instances_never_hold_the_same_message(teller: Teller) -> None:
    for number in range(4):
        teller.prepare(str(number))
    first, second = _claim(teller.database, "one"), _claim(teller.database, "two")
    assert (len(first), second) == (4, [])
    with teller.database.write() as connection:
        past = teller.database.now(connection) - timedelta(seconds=1)
        connection.execute(update(MESSAGES).values(lease_until=past))
    (taken, *_) = _claim(teller.database, "two")
    # Whose lease has ended says nothing any more.
    stale = next(claim for claim in first if claim.id == taken.id)
    record_answer(teller.database, teller.settings, stale, Answer(Outcome.ROLLED_BACK))
    assert teller.state(taken.row["biz_id"]) == State.PREPARED
    record_answer(teller.database, teller.settings, taken, Answer(Outcome.COMMITTED))
    assert teller.state(taken.row["biz_id"]) == State.FORWARDING


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.FAILED, Outcome.REFUSED])
def test_what_settles_nothing_is_no_roll_back_and_parks_in_the_end(
    teller: Teller, outcome: Outcome
) -> None:
    """RocketMQ-dashboard #4435: what was given up could not be taken up again."""
    teller.prepare("1")
    for asked in (1, 2, 3):
        (claim,) = _claim(teller.database)
        assert claim.row["checks"] == asked - 1
        record_answer(teller.database, teller.settings, claim, Answer(outcome, "why"))
    row = teller.find("1")
    assert (row["state"], row["decision"], row["checks"]) == (State.PARKED, None, 3)
    assert row["last_outcome"] == f"{outcome}: why"
    assert _claim(teller.database) == []
    resume_messages(teller.database, teller.settings, [row["id"]], 1)
    (claim,) = _claim(teller.database)
    assert claim.row["checks"] == 0
    record_answer(teller.database, teller.settings, claim, Answer(Outcome.COMMITTED))
    assert teller.state("1") == State.FORWARDING


def test_neither_waiting_nor_a_crash_uses_up_checks(teller: Teller) -> None:
    """RocketMQ #8311: what was still too young to be asked about was counted as asked."""
    teller.prepare("1")
    with teller.database.write() as connection:
        now = teller.database.now(connection)
        connection.execute(update(MESSAGES).values(next_at=now + timedelta(hours=1)))
    assert _claim(teller.database) == []
    assert teller.find("1")["checks"] == 0
    with teller.database.write() as connection:
        connection.execute(update(MESSAGES).values(next_at=now))
    for _ in range(5):  # claimed, and the instance dies before it asks
        assert len(_claim(teller.database)) == 1
        with teller.database.write() as connection:
            connection.execute(update(MESSAGES).values(lease_until=now))
    row = teller.find("1")
    assert (row["checks"], row["state"]) == (0, State.PREPARED)


def test_a_service_is_not_in_the_way_of_another(teller: Teller) -> None:
    for number in range(20):
        teller.prepare(str(number))
    teller.prepare("other", service="orders")
    assert [one.row["biz_id"] for one in _claim(teller.database, service="orders")] == ["other"]
    teller.prepare("nobody", service='x"; DROP TABLE look_back_messages; --')
    teller.prepare("other-2", service="orders")
    found = claim_unlisted(teller.database, teller.settings, "me", 10)
    assert {one.row["biz_id"] for one in found} == {"nobody", "other-2"}


def test_a_commit_without_its_prepare_is_parked_and_says_so(teller: Teller) -> None:
    teller.commit("1")
    assert park_unprepared(teller.database, teller.settings) == 1
    row = teller.find("1")
    assert (row["state"], row["decision"]) == (State.PARKED, "committed")
    assert "has not come" in row["parked_because"]


def test_pauses_grow_up_to_the_longest(database_url: str) -> None:
    settings = make_settings(pause=timedelta(minutes=1), longest_pause=timedelta(hours=1))
    pauses = [find_pause(settings, tries).total_seconds() / 60 for tries in (1, 2, 3, 7, 99_999)]
    assert pauses == [1, 2, 4, 60, 60]
