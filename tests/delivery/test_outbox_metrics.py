"""Outboxes as Prometheus sees them: what is not known is absent, and no scrape waits for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text
from sqlalchemy.orm import Session

from backlogctl_delivery.outbox import Outbox
from backlogctl_delivery.outbox import sender as outages
from backlogctl_delivery.outbox.admin import OutboxAdmin, OutboxStatus
from backlogctl_delivery.outbox.claims import Claims
from backlogctl_delivery.outbox.database import OutboxDatabase, messages
from backlogctl_delivery.outbox.messages import Message
from backlogctl_delivery.outbox.metrics import CATALOGUE, OutboxCollector, collect_outboxes
from backlogctl_delivery.outbox.sender import OutboxSender
from tests.conftest import MakeTopic
from tests.delivery.kit import FAST, Shop
from tests.kit.kafka import properties_of, wait_until
from tests.kit.prometheus import scrape_registry


@pytest.fixture
def registry(pg_shop: Shop) -> Iterator[CollectorRegistry]:
    """Of a sender that is not started."""
    made, database = CollectorRegistry(), OutboxDatabase(pg_shop.url)
    sender = OutboxSender(pg_shop.engine, {"bootstrap.servers": pg_shop.bootstrap})
    made.register(OutboxCollector(OutboxAdmin(database), lambda: sender, "shop"))
    yield made
    database.close()


def test_each_outbox_has_its_figures_and_what_is_unknown_is_absent() -> None:
    registry = CollectorRegistry()
    statuses = {
        "shop": OutboxStatus(3, 2, 1, oldest_seconds=700.0, oldest_waiting_seconds=9.5),
        "held": OutboxStatus(0, 0, 1, oldest_seconds=700.0, oldest_waiting_seconds=None),
        "away\n": None,
    }

    class Source:
        def collect(self) -> object:
            return collect_outboxes(statuses)

    registry.register(Source())  # type: ignore[arg-type]
    got = scrape_registry(registry)
    assert got.value("backlog_outbox_messages", outbox="shop", state="parked") == 1
    assert got.value("backlog_outbox_messages", outbox="held", state="pending") == 0
    assert got.labels_of("backlog_outbox_messages", "outbox") == {"shop", "held"}
    assert got.value("backlog_outbox_oldest_seconds") == 9.5, "what is parked waits for nobody"
    assert got.value("backlog_outbox_away", outbox="shop", what="database") == 0
    assert got.value("backlog_outbox_away", outbox="away\\n", what="database") == 1


def test_an_application_exports_what_its_own_thread_does(pg_shop: Shop, topic: MakeTopic) -> None:
    name, registry = topic(), CollectorRegistry()
    with Outbox(pg_shop.engine, properties_of(pg_shop.bootstrap)) as outbox:
        outbox.export_metrics(registry, "own")
        attempts = "backlog_outbox_attempts_total"
        before = scrape_registry(registry)
        assert before.value(attempts, outbox="own", outcome="delivered") == 0
        assert not before.labels_of("backlog_outbox_away", "what") - {"database"}, "not begun yet"
        with Session(pg_shop.engine) as session, session.begin():
            outbox.add(session, topic=name, key="k", value="v")
        wait_until(
            lambda: (
                scrape_registry(registry).value(attempts, outbox="own", outcome="delivered") == 1
            ),
            what="it is counted",
        )
        assert scrape_registry(registry).value("backlog_outbox_away", what="kafka") == 0


def test_fault_162_a_thread_that_dies_begins_again_and_is_told(
    pg_shop: Shop,
    topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, registry, claim = topic(1), CollectorRegistry(), Claims.claim_hinted

    def fail(*_: Any) -> list[Message]:
        raise MemoryError("no room")

    def ask() -> float:
        return scrape_registry(registry).value("backlog_outbox_away", what="thread")

    monkeypatch.setattr(Claims, "claim_hinted", fail)
    monkeypatch.setattr(outages, "_LONGEST_SECONDS", 2.0)
    with Outbox(pg_shop.engine, properties_of(pg_shop.bootstrap), settings=FAST) as outbox:
        outbox.export_metrics(registry, "own")
        with Session(pg_shop.engine) as session, session.begin():
            given = [outbox.add(session, topic=name, key="k", value="v")]
        wait_until(
            lambda: (
                scrape_registry(registry).labels_of("backlog_outbox_away", "what") >= {"thread"}
            ),
            what="it has begun",
        )
        wait_until(lambda: ask() == 1, what="it is told")
        monkeypatch.setattr(Claims, "claim_hinted", claim)
        with Session(pg_shop.engine) as session, session.begin():
            given.append(outbox.add(session, topic=name, key="k", value="v"))
        pg_shop.await_sent(2)
        wait_until(lambda: ask() == 0, what="it works")
    assert pg_shop.read_ids(name) == given
    assert [line for line in caplog.messages if "thread" in line] == [
        "the sender's thread: it has ended, and begins again: MemoryError: no room",
        "the sender's thread: works again",
    ]


def test_fault_162_a_commit_goes_well_where_no_thread_can_be_started(
    pg_shop: Shop, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one starts it."""
    name = topic(1)

    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with Outbox(pg_shop.engine, properties_of(pg_shop.bootstrap), settings=FAST) as outbox:
        with monkeypatch.context() as patch, Session(pg_shop.engine) as session, session.begin():
            patch.setattr(threading.Thread, "start", refuse)
            outbox.add(session, topic=name, key="k", value="v")
            session.commit()
        with Session(pg_shop.engine) as session, session.begin():
            outbox.add(session, topic=name, key="k", value="v")
        pg_shop.await_sent(2)


def test_a_sender_serves_all_of_the_catalogue(pg_shop: Shop, registry: CollectorRegistry) -> None:
    pg_shop.add("orders", "k")
    got = scrape_registry(registry)
    for metric in CATALOGUE:
        found = got.find(metric.exported_name)
        assert found
        assert {tuple(name for name, _ in labels) for labels in found} == {
            tuple(sorted(metric.labels))
        }
    assert got.labels_of("backlog_outbox_away", "what") == {"database", "kafka", "thread"}


def test_a_database_that_hangs_holds_up_no_scrape(
    pg_shop: Shop, registry: CollectorRegistry
) -> None:
    with pg_shop.engine.begin() as holder:
        holder.execute(text(f"LOCK TABLE {messages.name} IN ACCESS EXCLUSIVE MODE"))
        for _ in range(2):
            began = time.monotonic()
            got = scrape_registry(registry)
            assert time.monotonic() - began < 10
            assert got.value("backlog_outbox_away", what="database") == 1
            assert not got.find("backlog_outbox_messages")
            assert got.value("backlog_outbox_parked_total") == 0

    def is_seen() -> bool:
        return bool(scrape_registry(registry).find("backlog_outbox_messages"))

    wait_until(is_seen, what="the table is seen again")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://user:secret@db.example:5433/shop?password=other", "db.example/shop"),
        ("postgresql:///shop?host=/run/postgresql", "shop"),
        ("mariadb://user:secret@db/shop", "db/shop"),
        ("sqlite:////var/lib/{place}/shop.db", "shop.db"),
    ],
)
def test_an_outbox_without_a_name_is_called_by_its_place(
    url: str, name: str, tmp_path: Path
) -> None:
    assert OutboxAdmin(OutboxDatabase(url.format(place=tmp_path))).name == name
