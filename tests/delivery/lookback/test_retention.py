"""Days made ahead, and what is old: archived, then dropped whole or deleted in batches."""

from __future__ import annotations

import stat
from datetime import date, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import func, select

from backlogctl_delivery.lookback import retention
from backlogctl_delivery.lookback.messages import State
from backlogctl_delivery.lookback.retention import purge_old
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import MESSAGES, Database, create_tables, list_partitions
from tests.delivery.lookback.world import Teller, add_old, make_settings

_OLD = date(2020, 2, 29)


def _count(database: Database) -> int:
    with database.read() as connection:
        count: int = connection.execute(select(func.count()).select_from(MESSAGES)).scalar_one()
    return count


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> LookBackSettings:
    return make_settings(archive=tmp_path / "archive")


def test_fault_53_old_messages_are_archived_then_removed_in_bounds(
    teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 40)
    add_old(teller.database, 100, State.FORWARDED)
    teller.prepare("young")
    assert purge_old(teller.database, teller.settings) == 100
    assert _count(teller.database) == 1
    assert teller.settings.archive is not None
    files = sorted(teller.settings.archive.iterdir())
    assert len(files) == (3 if teller.database.is_sqlite else 1)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert len({row["id"] for row in rows}) == 100
    assert (rows[0]["value"], rows[0]["headers"]) == (b"\x00v", '[["type",null]]')
    assert purge_old(teller.database, teller.settings) == 0


def test_what_has_not_ended_is_never_removed(teller: Teller) -> None:
    add_old(teller.database, 3, State.PARKED)
    purge_old(teller.database, teller.settings)
    assert _count(teller.database) == 3


def test_an_archive_that_cannot_be_written_deletes_nothing(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    add_old(database, 3, State.ROLLED_BACK)
    (tmp_path / "file").write_text("")
    settings = make_settings(archive=tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        purge_old(database, settings)
    assert _count(database) == 3


def test_days_are_made_ahead_and_by_any_number_of_instances(pg_database: Database) -> None:
    create_tables(pg_database)
    with pg_database.read() as connection:
        days = list_partitions(connection)
        today = pg_database.now(connection).date()
    assert {today + timedelta(days=ahead) for ahead in range(4)} <= set(days)
