"""What somebody sees who set something up wrong: what it is, that it is true, and the way out."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import URL

from backlogctl_delivery.outbox import Outbox, OutboxSender
from tests.conftest import MakeTopic
from tests.delivery.kit import Shop, list_own
from tests.kit.kafka import wait_until
from tests.kit.secured import start_secured
from tests.kit.shop import call_main


def run(tmp_path: Path, *words: str) -> str:
    """What the command says."""
    _, out, err = call_main(("outbox", *words), tmp_path, {})
    return out + err


def test_a_broker_that_is_not_there_is_told_at_once_and_nothing_is_claimed(
    pg_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    pg_shop.add("orders", "a")
    with pg_shop.sending(kafka={"bootstrap.servers": "127.0.0.1:1"}) as sender:
        wait_until(lambda: sender.kafka_outage.is_on, 10, "it is told")
        assert pg_shop.list_rows("state", "attempts") == [("pending", 0)]
    (warned,) = [record.getMessage() for record in list_own(caplog)]
    assert warned.startswith("Kafka: no broker answers: ")
    assert "Connection refused" in warned
    assert "bootstrap.servers 127.0.0.1:1" in warned


def test_a_refused_login_is_told_as_that(
    pg_shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_secured(tmp_path) as secured:
        kafka = secured.login("admin", "not-the-password")
        with pg_shop.sending(kafka=kafka) as sender:
            wait_until(lambda: sender.kafka_outage.is_on, 20, "it is told")
    warned = list_own(caplog)[0].getMessage()
    assert "refused the login" in warned
    assert "sasl.password" in warned
    assert "not-the-password" not in caplog.text


def test_a_topic_that_is_not_there(
    pg_shop: Shop, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"nowhere-{unique}"
    pg_shop.add(name, "a")
    with caplog.at_level(logging.WARNING), pg_shop.sending():
        wait_until(lambda: list_own(caplog), what="the second refusal is told")
    assert "is tried again: UNKNOWN_TOPIC_OR_PART" in caplog.text
    assert f"to topic {name}" in caplog.text
    assert "there is no such topic: create it; see `backlogctl outbox list`" in caplog.text


def test_a_refusal_just_before_the_end_is_told(
    pg_shop: Shop, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"nowhere-{unique}"
    with (
        Outbox(pg_shop.engine, kafka={"bootstrap.servers": pg_shop.bootstrap}) as outbox,
        pg_shop.engine.begin() as connection,
    ):
        outbox.add(connection, topic=name, value="v")
    assert "there is no such topic: create it" in caplog.text


def test_status_says_that_some_were_tried(pg_shop: Shop, unique: str, tmp_path: Path) -> None:
    pg_shop.add(f"nowhere-{unique}", "a")
    with pg_shop.sending():
        wait_until(lambda: pg_shop.list_rows("last_error") != [(None,)], what="it is refused")
    said = run(tmp_path, "status", "--url", pg_shop.url)
    assert "tried before, and waiting: 1; `backlogctl outbox list` says why" in said
    pg_shop.add("orders", "b")
    assert '"failed": 1' in run(tmp_path, "status", "--url", pg_shop.url, "--json")


def test_a_message_that_is_too_large_for_the_client(
    pg_shop: Shop, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(1)
    with pg_shop.engine.begin() as connection:
        pg_shop.outbox.add(connection, topic=name, value="x" * 2_000_000)
    with pg_shop.sending():
        wait_until(lambda: pg_shop.list_rows("last_error") != [(None,)], what="it is refused")
    said = " ".join(run(tmp_path, "show", "1", "--url", pg_shop.url).split())
    assert "MSG_SIZE_TOO_LARGE" in said
    assert "raise message.max.bytes of the sender and max.message.bytes of the topic" in said


def test_a_user_of_the_database_without_rights(
    pg_shop: Shop, reader_url: URL, caplog: pytest.LogCaptureFixture
) -> None:
    pg_shop.add("orders", "a")
    with closing(OutboxSender(reader_url, {"bootstrap.servers": pg_shop.bootstrap})) as sender:
        sender.start()
        wait_until(lambda: sender.database_outage.is_on, what="it is told")
    assert "permission denied for table backlog_outbox" in caplog.text
    assert "give this right to the user" in caplog.text
