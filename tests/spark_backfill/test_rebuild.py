"""Plans of rebuilds against a real broker, Spark, PostgreSQL and SQLite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlog.embedded import EmbeddedKafka
from backlog.manifest import read_manifest
from spark_backfill.rebuild import plan_rebuild
from spark_backfill.staging import ChunkLimits
from tests.conftest import MakeTopic
from tests.spark_backfill import world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["postgresql", "sqlite"])
def shop_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own, of both kinds."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    return str(request.getfixturevalue("pg_url"))


def test_finds_exactly_the_lost_orders(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, shop_url: str, tmp_path: Path
) -> None:
    rows = [world.make_order(number) for number in range(1, 3001)]
    world.fill_table(shop_url, world.ORDERS, rows)
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, 1000)
    stream = world.make_stream(lost.topic)
    request = world.make_request(kafka.bootstrap, stream, shop_url, lost.gaps, tmp_path / "staging")
    outcome = plan_rebuild(spark, request, limits=ChunkLimits(messages=100))
    print(outcome)
    assert outcome.counts.rebuilt == outcome.counts.expected == 1000
    assert outcome.counts.surviving == 2000
    assert outcome.proof.rate == 1.0
    assert outcome.proof.compared == 200
    assert outcome.verdict == "short"  # only the lower bound is not sharp
    assert len(outcome.reasons) == 1
    staged = world.read_staged(request)
    made = {
        int(m["key"]): (m["value"], m["partition"]) for m in staged.select(
            ["key", "value", "partition"]).to_pylist()
    }
    assert made == {
        row["order_id"]: (
            world.encode_order(row),
            world.place_key(str(row["order_id"]).encode(), 3),
        )
        for row in rows[:1000]
    }
    manifest = read_manifest(request.directory, outcome.manifest_sha256)
    canaries = [chunk for chunk in manifest.chunks if chunk.canary]
    assert [chunk.count for chunk in canaries] == [10, 10, 10]
    assert len({chunk.slot for chunk in canaries}) == 1
    json.dumps(outcome.to_json())
