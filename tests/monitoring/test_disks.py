"""When a broker's disks are full, as a broker with a small disk tells it."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.ledger import Ledger
from backlogctl.ledger.measurements import DiskReading
from backlogctl.monitoring.watch.disks import WINDOW, forecast_full, make_readings
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.small_disk import can_limit

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GIB = 2**30
HORIZON = timedelta(hours=24)


def read(minutes: float, usable: int | None, broker: int = 1) -> DiskReading:
    return DiskReading("main", NOON + timedelta(minutes=minutes), broker, usable, 100 * GIB)


def test_a_disk_that_fills_is_full_at_its_rate() -> None:
    readings = [
        read(-WINDOW.total_seconds() / 30, 90 * GIB),
        read(-10, 20 * GIB),
        read(0, 10 * GIB),
    ]
    found = forecast_full(readings, NOON)
    assert found.seconds == pytest.approx(600)
    assert (found.broker, found.is_known) == (1, True)


@pytest.mark.parametrize(
    ("readings", "why", "known"),
    [
        ([], "never read", False),
        ([read(0, 10 * GIB)], "read once", False),
        ([read(-30, 20 * GIB), read(-20, 10 * GIB)], "was not read for", False),
        ([read(-10, 10 * GIB), read(0, None)], "does not report", False),
        ([read(-10, 10 * GIB), read(0, 10 * GIB)], "no disk is filling", True),
        ([read(-10, 10 * GIB), read(0, 11 * GIB)], "no disk is filling", True),
    ],
)
def test_what_is_not_known_is_not_guessed(
    readings: list[DiskReading], why: str, known: bool
) -> None:
    found = forecast_full(readings, NOON)
    assert found.seconds is None
    assert why in found.why
    assert found.is_known == known


def test_the_broker_that_is_full_first_is_told_also_where_another_is_unknown() -> None:
    readings = [
        *(read(minutes, left * GIB, broker=1) for minutes, left in ((-10, 30), (0, 20))),
        *(read(minutes, left * GIB, broker=2) for minutes, left in ((-10, 20), (0, 10))),
        read(0, None, broker=3),
    ]
    found = forecast_full(readings, NOON)
    assert (found.broker, found.is_known) == (2, False)
    assert found.seconds == pytest.approx(600)


def test_the_past_is_thinned_for_each_broker(tmp_path: Path) -> None:
    from backlogctl.ledger import open_ledger

    ledger: Ledger
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.disks.add(read(-age, 5, broker) for age in range(180) for broker in (1, 2))
        ledger.disks.add([read(-60 * 24 * 40, 5), *()])
        ledger.disks.thin(NOON, HORIZON)
        left = ledger.disks.history("main")
        assert ledger.disks.thin(NOON, HORIZON) == 0
    young = [one for one in left if NOON - one.at <= timedelta(hours=1)]
    assert len(young) == 2 * 61, "all of the last hour stay"
    old = [one for one in left if one not in young]
    assert {one.broker for one in old} == {1, 2}
    assert 2 * 23 <= len(old) <= 2 * 26, "one each five minutes"


def test_a_real_broker_on_a_small_disk(tmp_path: Path) -> None:
    assert can_limit(), "this machine does not let us make a small disk"
    size = 96 * 2**20
    with EmbeddedKafka.start(tmp_path, disk_bytes=size) as kafka:
        client = kafka.client_properties
        create_topic(client, "full", partitions=1, replication=1)
        (before,) = make_readings("main", read_log_dirs(client, ""), None)
        producer = make_producer(client, {})
        for _ in range(10):
            producer.produce("full", secrets.token_bytes(2**19))
        assert producer.flush(30) == 0
        (after,) = make_readings("main", read_log_dirs(client, ""), None)
    assert before.total_bytes == after.total_bytes == size
    assert before.usable_bytes is not None
    assert after.usable_bytes is not None
    assert before.usable_bytes - after.usable_bytes > 4 * 2**20
    later = replace(after, at=before.at + timedelta(minutes=1))
    found = forecast_full([before, later], later.at)
    assert found.seconds is not None
    assert found.seconds < 30 * 60
