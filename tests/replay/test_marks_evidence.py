"""The marks of an idempotent consumer are the evidence of what it handled, as they are."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from backlogctl.replay.audits.audit import AuditOptions
from backlogctl.replay.audits.consumed import ConsumedAuditing
from backlogctl_delivery.idempotent.sql import Marks
from tests.kafka_tools import read_all, set_offsets_raw
from tests.replay.shop import DONE, LOST, PARTITIONS, Shop

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark")]

TABLE = "orders_handled"


def handle(shop: Shop, marks: Marks, messages: Iterable[Any]) -> None:
    engine = sa.create_engine(shop.url, poolclass=sa.NullPool)
    marks.create_tables(engine)
    with engine.begin() as connection:
        for message in messages:
            with marks.handle_once(connection, message) as attempt:
                assert attempt.is_first


def name_marks(shop: Shop, message: str) -> None:
    """All that the configuration says of them."""
    source = json.loads((shop.directory / "backlog.yaml").read_text())["streams"]["orders"][
        "source"
    ]
    source["identity"] = {"row": "order_id", "message": message}
    source["consumed"] = {"database": "shop", "table": TABLE, "column": "message_id"}
    shop.write_config(source=source)


def test_a_rebuild_leaves_out_what_is_marked(shop: Shop) -> None:
    """Ten of the lost ones were handled, and the crash came before their offset was committed."""
    handle(shop, Marks(TABLE), [str(number) for number in range(DONE + 10)])
    name_marks(shop, "key")
    counts = shop.plan().plan["outcome"]["counts"]
    assert (counts["rebuilt"], counts["consumed"]) == (LOST - 10, DONE + 10)


def test_an_audit_finds_what_is_not_marked(empty_shop: Shop) -> None:
    shop = empty_shop
    producer = Producer(shop.properties)
    for number in range(60):
        headers: Any = [("order-id", str(number).encode())]
        producer.produce(shop.topic, b"v", b"k", number % PARTITIONS, headers=headers)
    assert producer.flush(60) == 0
    messages = read_all(shop.properties, shop.topic, range(PARTITIONS))
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())
    unhandled = {(message.partition(), message.offset()) for message in messages[20:27]}
    handle(shop, Marks(TABLE, identity="order-id"), messages[:20] + messages[27:])
    name_marks(shop, "header:order-id")
    workspace = shop.open()
    found = ConsumedAuditing().examine(
        workspace,
        workspace.config.stream(shop.stream),
        AuditOptions.model_validate({"grace": "1ms"}),
        lambda line: None,
    )
    (finding,) = found.findings
    assert (finding.check, found.figures["handled"]) == ("unprocessed", 53)
    assert {
        (item["partition"], at)
        for item in finding.detail["ranges"]
        for at in range(item["first"], item["last"] + 1)
    } == unhandled
