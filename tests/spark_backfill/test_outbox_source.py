"""Rows of an outbox become the messages that its sender sent, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message
from sqlalchemy.orm import Session

from backlogctl.config import Stream
from backlogctl.config.streams import expand_outbox
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery import stamps
from backlogctl_delivery.outbox.database import messages as outbox_table
from tests.conftest import MakeTopic
from tests.delivery.kit import Shop, read_id
from tests.spark_backfill.reading import read_messages
from tests.spark_backfill.world import run_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOSTILE = '"; DROP TABLE x; --\n\x1b[31m\u202eevil\u00e9'


@pytest.fixture(params=["postgres", "sqlite"])
def shop(request: pytest.FixtureRequest, kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Shop]:
    """An application with an outbox."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    if request.param == "postgres":
        url = str(request.getfixturevalue("pg_url"))
    with Shop(url, kafka.bootstrap) as made:
        yield made


def make_stream(topic: str, **beside: Any) -> Stream:
    """All that the configuration says."""
    return Stream.model_validate(
        {
            "name": "orders",
            "cluster": "main",
            "topic": topic,
            "group": "order-service",
            "source": {"outbox": "shop", **beside},
        }
    )


def describe(message: Message) -> tuple[Any, ...]:
    return (message.key(), message.value(), message.headers(), message.partition())


def describe_built(built: dict[str, Any]) -> tuple[Any, ...]:
    headers = [(item["name"], _bytes(item["value"])) for item in built["header_list"]]
    headers += [(stamps.EVENT_ID, _bytes(built["header_values"][0]))]
    return (_bytes(built["key"]), _bytes(built["value"]), headers, built["home"])


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


GIVEN: list[dict[str, Any]] = [
    {"key": "k", "value": "v", "headers": {"type": "paid"}},
    {"key": b"\x00\xff", "value": b"\xff\x00\xfe", "headers": {"raw": b"\x00\xff", "none": None}},
    {"key": "k", "value": None},
    {"key": "k", "value": b""},
    {"key": "k", "value": ""},
    {"key": b"", "value": "v"},
    {"key": None, "value": "v", "headers": {}},
    {"key": None, "value": None, "headers": [("a", b"")]},
    {"key": "k", "value": "v", "headers": [("a", "1"), ("b", None), ("a", "2"), ("a", "1")]},
    {"key": "k", "value": "v", "headers": [(HOSTILE, HOSTILE), ("", ""), ("\N{SNOWMAN}", b"\x80")]},
    {"key": "1", "value": "1", "headers": {"1": "1"}},
    {"key": "1", "value": "1e5", "message_id": "12345678901234567890123456789012"},
    {"key": "1", "value": "v", "message_id": "1234567890123456789012345678901e"},
    {"key": "1", "value": "v", "message_id": "00000000000000000000000000000007"},
]


def test_a_row_becomes_the_message_that_was_sent(
    spark: SparkSession, shop: Shop, topic: MakeTopic
) -> None:
    name, other = topic(3), topic(3)
    with Session(shop.engine) as session, session.begin():
        for given in GIVEN:
            shop.outbox.add(session, topic=name, **given)
            shop.outbox.add(session, topic=other, key="k", value="of another topic")
    with shop.sending():
        shop.await_sent(2 * len(GIVEN))
    shop.add(name, "k", headers={"a": "not sent yet"})
    made = read_rows(spark, shop, name)
    assert [built["reason"] for built in made] == [None] * len(GIVEN)
    sent = {read_id(message): message for message in shop.read(name, 3)}
    assert len(sent) == len(GIVEN)
    for built in made:
        message = sent[bytes(built["identity"]).decode()]
        assert describe_built(built) == describe(message)


def read_rows(spark: SparkSession, shop: Shop, topic: str) -> list[dict[str, Any]]:
    return read_messages(spark, shop.url, make_stream(topic))


BROKEN = [
    "", "{", "null", "7", "[1]", '{"a": "MQ=="}', '[["a"]]', '[["a", "MQ==", "x"]]', '[[null, "MQ=="]]',
    '[["a", "no base64!"]]', '[["a", "MQ=="], null]', '[["a", "MQ=="]', '[["a", {"b": 1}]]', '[["a", "MQ=="]] x', '[["a", 1234]]', '[[1, "MQ=="]]', '[["a", "MQ"]]',
    '[["a", "MQ=="],]', "[", r'[["\q", null]]', "x" * 300,
]  # fmt: skip


def test_headers_that_cannot_be_read_put_their_row_into_quarantine(
    spark: SparkSession, shop: Shop
) -> None:
    """Someone wrote into the table by hand."""
    shop.add("orders", *("k" for _ in (*BROKEN, None)))
    run_sql(shop.url, "UPDATE backlog_outbox SET state = 'sent', sent_at = 1 + id")
    with shop.engine.begin() as connection:
        for number, text in enumerate(BROKEN, 1):
            change = outbox_table.update().where(outbox_table.c.id == number)
            connection.execute(change.values(headers=text))
    made = {int(built["p0"]): built for built in read_rows(spark, shop, "orders")}
    assert len(made) == len(BROKEN) + 1
    # No text, and no headers, are the same to the sender.
    assert [made[at]["header_list"] for at in (1, len(BROKEN) + 1)] == [[], []]
    found = {made[number]["reason"] for number in range(2, len(BROKEN) + 1)}
    assert found == {"its headers are no JSON list of [name, value in base64 or null]"}


def test_the_message_is_measured_with_its_headers(spark: SparkSession, shop: Shop) -> None:
    """2,000 bytes are the topic's limit here."""
    shop.add("orders", "k", headers=[("a", b"x" * 500), ("b" * 300, None)])
    shop.add("orders", "k", headers=[("a", b"x" * 500)] * 2 + [("b" * 600, None)])
    run_sql(
        shop.url,
        "UPDATE backlog_outbox SET state = 'sent', sent_at = id",
        "UPDATE backlog_outbox SET value = NULL WHERE id = 2",
    )
    small, large = read_rows(spark, shop, "orders")
    assert small["reason"] is None
    assert "larger than the topic allows" in large["reason"]


def test_the_section_names_the_columns_of_the_table() -> None:
    """The kernel may not import the room that makes the table."""
    section: Any = expand_outbox("orders", {"outbox": "shop"})
    known = set(outbox_table.c.keys())
    message = section["message"]
    used = {
        *section["primary_key"], *section["where"], *section["order_by"], section["time_column"],
        message["key"], message["partition"], message["value"]["column"], message["header_list"],
        message["headers"][stamps.EVENT_ID], section["identity"]["row"],
    }  # fmt: skip
    assert section["table"] == outbox_table.name
    assert used <= known
