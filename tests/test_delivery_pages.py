"""The code on the pages of `delivery`, run as it is pasted: block after block, against a real Kafka."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from fastapi.testclient import TestClient
from sqlalchemy import MetaData, create_engine, inspect

import backlogctl_delivery.outbox
from backlogctl.clock import Deadline
from backlogctl.config import load_config
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_admin
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.idempotent.sql import Marks
from backlogctl_delivery.lookback.messages import Prepared, read_envelope
from backlogctl_delivery.stamps import EVENT_ID, find_header
from tests.kafka_tools import properties_of, read_all
from tests.redis_server import EmbeddedRedis

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TOPICS = ("orders", "look_back_msg", "payments")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker of its own: the pages name their topics."""
    with EmbeddedKafka.start(tmp_path_factory.mktemp("kafka")) as running:
        admin = make_admin(properties_of(running.bootstrap))
        for name in _TOPICS:
            create_topic(admin, name, partitions=1, replication=1, config={}, deadline=Deadline(60))
        yield running


def read_blocks(page: str, language: str = "python") -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return [block for found, block in _BLOCK.findall(text) if found == language]


def run_blocks(page: str, number: slice, **changes: str) -> dict[str, Any]:
    """Runs some of them in one namespace."""
    names: dict[str, Any] = {"__name__": page}
    for block in read_blocks(page)[number]:
        for before, after in changes.items():
            block = block.replace(before, after)
        exec(compile(block, page, "exec"), names)
    return names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_values(kafka: EmbeddedKafka, topic: str) -> list[bytes | None]:
    return [m.value() for m in read_all(properties_of(kafka.bootstrap), topic, [0])]


def test_the_outbox_the_web_service_and_the_consumer(here: Path, broker: EmbeddedKafka) -> None:
    address = {"localhost:9092": broker.bootstrap}
    names = run_blocks("outbox.md", slice(0, 2), **address)
    with TestClient(names["app"]) as client:
        told = client.post("/orders/2")
        assert told.status_code == 200
        assert client.portal is not None
        client.portal.call(names["async_engine"].dispose)
    assert read_values(broker, "orders") == [b'{"id": 1}', b'{"id": 2}']
    last = read_all(properties_of(broker.bootstrap), "orders", [0])[-1]
    assert find_header(last.headers(), EVENT_ID) == told.json()["message"]  # type: ignore[arg-type]
    # The consumer of the other page reads them, and reads them again.
    names = run_blocks("idempotent-consumer.md", slice(0, 2), **address, **{"poll(10)": "poll(4)"})

    async def handle_again() -> None:
        await names["handle"](last)
        await names["async_engine"].dispose()

    asyncio.run(handle_again())
    names["consumer"].close()
    with sqlite3.connect(here / "payments.db") as payments:
        assert payments.execute("SELECT order_id FROM payments").fetchall() == [("1",), ("2",)]


def test_the_table_of_the_outbox_by_alembic(pg_url: str) -> None:
    """A migration, and a comparison that finds nothing more to do."""
    names = run_blocks("outbox.md", slice(2, 3))
    engine = create_engine(pg_url)
    own = MetaData()
    with engine.begin() as connection:
        context = MigrationContext.configure(connection)
        with Operations.context(context):
            assert compare_metadata(context, [own, backlogctl_delivery.outbox.metadata])  # type: ignore[arg-type]
            names["upgrade"]()
            assert compare_metadata(context, [own, backlogctl_delivery.outbox.metadata]) == []  # type: ignore[arg-type]
            names["downgrade"]()
        assert inspect(connection).get_table_names() == []
    engine.dispose()


def test_the_table_of_marks_by_alembic(pg_url: str) -> None:
    own = MetaData()
    marks = Marks("payments_handled", metadata=own)
    engine = create_engine(pg_url)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, own)
        with Operations.context(context) as op:
            marks.create_tables(op.get_bind())
        assert compare_metadata(context, own) == []
    engine.dispose()


def test_the_marks_in_redis(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedRedis() as redis_server:
        for _ in range(2):
            run_blocks("idempotent-consumer.md", slice(2, 3), **{"6379": str(redis_server.port)})
    assert capsys.readouterr().out == "the mail is sent\n"


def test_look_back_and_its_answers(here: Path, broker: EmbeddedKafka) -> None:
    names = run_blocks("look-back.md", slice(0, 2), **{"localhost:9092": broker.bootstrap})
    envelopes = [read_envelope(value) for value in read_values(broker, "look_back_msg")]
    assert isinstance(envelopes[0], Prepared)
    assert (envelopes[0].topic, envelopes[0].value) == ("payments", b'{"amount": 10}')
    assert envelopes[1].event == "committed"
    with sqlite3.connect(here / "payments.db") as payments:
        payments.execute("INSERT INTO payments VALUES ('42', 'paid')")
    client = TestClient(names["app"])
    for number, status in (("42", "committed"), ("43", "rolled_back")):
        question = {"biz_type": "payment", "biz_id": number}
        assert client.post("/look-back", json=question).json() == {"status": status}
    # What was answered stays true.
    payments = sqlite3.connect(here / "payments.db")
    with pytest.raises(sqlite3.IntegrityError):
        payments.execute("INSERT INTO payments VALUES ('43', 'paid')")
    payments.close()


def test_the_configuration_of_look_back(here: Path) -> None:
    (block,) = read_blocks("look-back.md", "yaml")
    clusters = {"clusters": {"main": {"bootstrap.servers": "localhost:9092"}}}
    file = here / "backlog.yaml"
    file.write_text(yaml.safe_dump(clusters) + block)
    config = load_config(file, {"LOOK_BACK_PASSWORD": "p", "ORDERS_TOKEN": "t"})
    assert config.look_back is not None
    assert set(config.look_back.services) == {"payments", "orders"}
