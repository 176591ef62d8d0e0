"""What audits found: the newest of each name is what holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from backlog.ledger import Ledger
from backlog.ledger.audits import KEPT, AuditRecord
from tests.backlog.ledger.makers import NOON

FOUND = AuditRecord("orders", "main", "sequence", NOON, "lost", 7, {"findings": [{"count": 7}]})


def test_the_last_of_each_stream_and_name_holds(ledger: Ledger) -> None:
    assert ledger.audits.list_latest() == ()
    later = replace(FOUND, at=NOON + timedelta(hours=1), verdict="clean", missing=0)
    other = replace(FOUND, audit="producers", verdict="unknown", missing=0)
    elsewhere = replace(FOUND, stream="logs")
    for one in (FOUND, other, elsewhere, later):
        ledger.audits.record(one)
    assert ledger.audits.list_latest() == (elsewhere, other, later)
    assert ledger.audits.list_latest("orders") == (other, later)


def test_old_ones_go(ledger: Ledger) -> None:
    ledger.audits.record(replace(FOUND, audit="producers"))
    for number in range(KEPT + 20):
        ledger.audits.record(replace(FOUND, missing=number))
    with ledger.audits._database.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT audit, count(*), min(missing) FROM backlog_audits GROUP BY audit ORDER BY audit"
        ).all()
    assert [tuple(row) for row in rows] == [("producers", 1, 7), ("sequence", KEPT, 20)]
