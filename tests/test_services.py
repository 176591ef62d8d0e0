"""The services of the test run work together."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from sqlalchemy import create_engine, text

from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import listens
from tests.borrowing import Lender, borrow
from tests.kafka_tools import wait_until

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


def test_postgres_ends_with_an_owner_that_was_killed() -> None:
    """One of several processes of a run may be killed."""
    program = (
        "import time; from tests.services import EmbeddedPostgres as Server;"
        "print(Server().start()._data, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    data = Path(owner.stdout.readline().strip())
    process = Path("/proc", (data / "db" / "postmaster.pid").read_text().split()[0])
    assert process.exists()
    owner.kill()
    owner.communicate()
    wait_until(lambda: not process.exists(), what="the server has ended")
    shutil.rmtree(data, ignore_errors=True)  # its children end a moment later


def test_what_nobody_asks_for_is_not_started_and_what_several_ask_for_once(tmp_path: Path) -> None:
    happened: list[str] = []

    @contextmanager
    def run(folder: Path) -> Iterator[str]:
        happened.append(f"starts {folder.name}")
        yield "localhost:9"
        happened.append(f"stops {folder.name}")

    lender = Lender(tmp_path / "shared", {"one": run, "other": run})
    assert [borrow(tmp_path / "shared", "one") for _ in range(2)] == ["localhost:9"] * 2
    assert happened == ["starts one"]
    lender.close()
    assert happened == ["starts one", "stops one"]


def test_what_could_not_be_started_is_told_to_all(tmp_path: Path) -> None:
    def run(folder: Path) -> AbstractContextManager[str]:
        raise OSError("no disk")

    lender = Lender(tmp_path / "shared", {"one": run})
    for _ in range(2):
        with pytest.raises(AssertionError, match="one: failed: no disk"):
            borrow(tmp_path / "shared", "one")
    lender.close()


def test_what_is_lent_ends_with_a_lender_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tests.borrowing import Lender;"
        "Lender(Path(sys.argv[1])); print(flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "shared"],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    owner.stdout.readline()
    port = int(borrow(tmp_path / "shared", "kafka").rpartition(":")[2])
    assert listens(port)
    owner.kill()
    owner.communicate()
    wait_until(lambda: not listens(port), what="the broker has ended")


def test_spark_reads_kafka_and_postgres(
    spark: SparkSession, kafka: EmbeddedKafka, topic: Callable[..., str], pg_url: str
) -> None:
    name = topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(100):
        producer.produce(name, str(number), key=str(number))
    assert producer.flush(90) == 0
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
