"""Readings of the brokers' disks, thinned with age."""

from __future__ import annotations

from datetime import timedelta

from backlog.ledger import Ledger
from backlog.ledger.disks import DiskReading
from tests.backlog.ledger.makers import NOON


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
