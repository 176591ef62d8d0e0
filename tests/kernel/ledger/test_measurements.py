"""Readings of the brokers' disks, thinned with age."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from backlogctl.ledger import Ledger
from backlogctl.ledger.measurements import KEPT, AuditRecord, DiskReading
from tests.kernel.ledger.makers import NOON


def read(minutes: float, broker: int = 1, cluster: str = "main") -> DiskReading:
    at = NOON - timedelta(minutes=minutes)
    return DiskReading(cluster, at, broker, 100, 1000, "orders", 7)


def test_readings_come_back_as_they_went_in(ledger: Ledger) -> None:
    unknown = DiskReading("main", NOON, 2, None, None)
    ledger.disks.add([read(5), read(1), unknown, read(1, cluster="other")])
    ledger.disks.add([])
    assert ledger.disks.history("main") == (read(5), read(1), unknown)
    assert ledger.disks.history("main", NOON - timedelta(minutes=1)) == (read(1), unknown)


def test_old_readings_are_thinned_once(ledger: Ledger) -> None:
    ledger.disks.add(read(minutes) for minutes in range(300))
    ledger.disks.add([read(299, broker=2), read(60 * 24 * 40)])
    horizon = timedelta(hours=24)
    assert ledger.disks.thin(NOON, horizon) > 150
    assert ledger.disks.thin(NOON, horizon) == 0
    left = ledger.disks.history("main")
    assert sum(NOON - one.at <= timedelta(hours=1) for one in left) == 61
    assert {one.broker for one in left} == {1, 2}
    assert max(NOON - one.at for one in left) < timedelta(hours=6)


# What audits found: the newest of each name is what holds.

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
