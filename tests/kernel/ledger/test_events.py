"""The record of a recovery."""

from __future__ import annotations

from itertools import pairwise

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from backlogctl.errors import LeaseHeld, UsageError
from backlogctl.ledger import Ledger
from backlogctl.ledger import Owner
from tests.kernel.ledger.conftest import change, drop_triggers
from tests.kernel.ledger.makers import plan


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
    assert ledger.events.verify_chain(recovery)
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
    assert ledger.events.verify_chain(recovery)


def test_database_refuses_to_change_the_record(ledger: Ledger, raw: Engine) -> None:
    recovery = record_some(ledger)
    for statement in ("UPDATE backlog_events SET actor = 'eve'", "DELETE FROM backlog_events"):
        with pytest.raises(DBAPIError, match="append-only"):
            change(raw, statement)
    assert ledger.events.verify_chain(recovery)


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
    assert not ledger.events.verify_chain(recovery)
    assert found in (ledger.events.find_break(recovery) or "")
