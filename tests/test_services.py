"""The services of the test run work together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from sqlalchemy import create_engine, text

from backlog.embedded import EmbeddedKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_each_test_has_an_empty_database(pg_url: str) -> None:
    engine = create_engine(pg_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int)"))
        tables = connection.execute(
            text("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        )
        assert tables.scalar_one() == 1
    engine.dispose()


def test_spark_reads_kafka_and_postgres(
    spark: SparkSession, kafka: EmbeddedKafka, topic: Callable[..., str], pg_url: str
) -> None:
    name = topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(100):
        producer.produce(name, str(number), key=str(number))
    assert producer.flush(30) == 0
    messages = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", name)
        .load()
    )
    assert messages.count() == 100

    engine = create_engine(pg_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders AS SELECT generate_series(1, 7) AS id"))
    engine.dispose()
    url = pg_url.replace("postgresql+psycopg://postgres@", "jdbc:postgresql://")
    rows = spark.read.jdbc(
        url, "orders", properties={"user": "postgres", "driver": "org.postgresql.Driver"}
    )
    assert rows.count() == 7


def test_a_test_is_marked_by_the_services_it_uses(
    request: pytest.FixtureRequest, pg_url: str
) -> None:
    assert pg_url
    marks = {mark.name for mark in request.node.iter_markers()}
    assert marks & {"kafka", "spark", "postgres"} == {"postgres"}
