"""A plan whose time column is read in the wrong zone says so, and names the key."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from backlogctl.errors import Refused
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.spark_backfill import world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = world.ORDERS.replace("{time}", "TIMESTAMP")
ROWS, LOST = 30, 10


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_rows_read_in_the_wrong_zone(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    database: str,
) -> None:
    """The shop writes the wall clock of Shanghai, and the file says nothing of it."""
    sqlite = f"sqlite:///{tmp_path}/shop.db"
    url = sqlite if database == "sqlite" else str(request.getfixturevalue("pg_url"))
    now = datetime.now(UTC)
    wall = now.astimezone(ZoneInfo("Asia/Shanghai")).strftime("%Y-%m-%d %H:%M:%S")
    rows = [world.make_order(n) for n in range(ROWS)]
    world.fill_table(url, ORDERS, [{**row, "updated_at": wall} for row in rows])
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, LOST)
    gaps = tuple(
        replace(gap, first_time=now - timedelta(minutes=1), last_time=now) for gap in lost.gaps
    )
    value = {"json": ["order_id", "status"]}
    stream = world.make_stream(
        lost.topic, mutable=False, message={"key": "order_id", "value": value}
    )
    made = world.make_request(
        kafka.bootstrap, stream, url, gaps, tmp_path / "staging", allow=frozenset(["proof"])
    )
    suspected = (
        "the times of rows lie 8 h after those of their messages in the log (20 compared): is "
        "`sources.shop.timezone` right? it is UTC, and the rows look like UTC+08:00"
    )
    with pytest.raises(Refused, match="no row was lost among 0 candidates") as refused:
        world.plan(spark, made)
    assert suspected in refused.value.hint
    until = now + timedelta(days=1)
    planned = world.plan(spark, replace(made, since=now - timedelta(hours=1), until=until))
    assert suspected in planned.warnings
    right = {"shop": world.make_source(url, timezone="Asia/Shanghai")}
    planned = world.plan(spark, replace(made, recovery_id="r-2", sources=right))
    assert planned.counts.rebuilt == LOST
    assert not any("timezone" in text for text in planned.warnings)
