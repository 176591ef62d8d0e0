"""Outboxes and look-back are looked at beside each other: who is away is unknown, and told once."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import create_engine, text

from backlogctl.config import Config
from backlogctl.errors import BacklogError
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.web.deliveries import (
    DeliveryLook,
    DeliveryWatch,
    LookBackStatus,
    collect_deliveries,
)
from backlogctl.replay.web.exporter import open_exporter
from backlogctl_delivery.lookback.tables import LookBackDatabase, create_tables
from backlogctl_delivery.outbox.admin import OutboxStatus
from tests.delivery.kit import Shop
from tests.kit.kafka import wait_until
from tests.kit.prometheus import Scraped, scrape_registry

PATIENCE = timedelta(seconds=1)


class Told:
    """What the log is told."""

    def __init__(self) -> None:
        self.outages: list[tuple[str, str]] = []

    def __call__(self, what: str, error: BacklogError | None) -> None:
        self.outages.append((what, "" if error is None else error.message))

    def of(self, what: str) -> list[str]:
        return [problem for name, problem in self.outages if name == what]


def configure(directory: Path, look_back: str = "", **urls: str) -> Config:
    document: dict[str, Any] = {
        "clusters": {"main": {"bootstrap.servers": "127.0.0.1:1"}},
        "sources": {name: {"url": url} for name, url in urls.items()},
        "outboxes": {name: {"cluster": "main"} for name in urls},
        "watch": {"interval": "100ms", "window": "10s"},
    }
    if look_back:
        document["look_back"] = {"database": look_back, "cluster": "main"}
    return Config.from_text(json.dumps(document), directory, {})


@contextmanager
def watching(config: Config, told: Told) -> Iterator[DeliveryWatch]:
    with DeliveryWatch(config, told, PATIENCE) as watch:
        yield watch


def find(watch: DeliveryWatch, outbox: str) -> DeliveryLook:
    (look,) = (one for one in watch.read() if one.outbox == outbox)
    return look


def scrape(watch: DeliveryWatch) -> Scraped:
    registry = CollectorRegistry()

    class Collector:
        def collect(self) -> Any:
            return collect_deliveries(watch.read)

    registry.register(Collector())
    return scrape_registry(registry)


def test_each_is_known_or_unknown_by_itself(pg_url: str, mariadb_url: str, tmp_path: Path) -> None:
    shop, told = Shop(pg_url, "unused:1"), Told()
    shop.add("orders", "a", "b", "c")
    shop.make_claims(most=1).claim_due()
    create_tables(LookBackDatabase(f"sqlite:///{tmp_path}/look-back.db"))
    config = configure(
        tmp_path,
        "sqlite:///look-back.db",
        shop=pg_url,
        bills=mariadb_url,
        notes=f"sqlite:///{tmp_path}/nobody.db",
    )
    with watching(config, told) as watch:
        wait_until(
            lambda: all(look.taken_at is not None for look in watch.read()),
            what="all are looked at",
        )
        status = find(watch, "shop").status
        assert isinstance(status, OutboxStatus)
        assert (status.pending, status.in_progress, status.parked) == (2, 1, 0)
        look_back = find(watch, "").status
        assert isinstance(look_back, LookBackStatus)
        assert (sum(one.messages for one in look_back.counts), look_back.incidents) == (0, 0)
        bills, notes = find(watch, "bills"), find(watch, "notes")
        assert bills.status is None
        assert "its tables are missing" in bills.problem
        assert notes.status is None
        assert "there is no file" in notes.problem
        figures = scrape(watch)
        assert figures.value("backlog_outbox_messages", outbox="shop", state="pending") == 2
        assert figures.value("backlog_outbox_oldest_seconds", outbox="shop") >= 0
        assert figures.value("backlog_outbox_away", outbox="shop", what="database") == 0
        assert figures.labels_of("backlog_outbox_messages", "outbox") == {"shop"}
        for name in ("bills", "notes"):
            assert figures.value("backlog_outbox_away", outbox=name, what="database") == 1
        assert figures.value("backlog_lookback_database_up") == 1
        assert figures.value("backlog_lookback_messages", state="parked") == 0
        Shop(mariadb_url, "unused:1").close()  # makes the table
        wait_until(lambda: find(watch, "bills").status is not None, what="the table is seen")
        wait_until(lambda: len(told.of("outbox bills")) == 2, what="its end is told")
    assert [bool(problem) for problem in told.of("outbox bills")] == [True, False]
    assert len(told.of("outbox notes")) == 1
    assert told.of("outbox shop") == told.of("look-back") == []
    assert not (tmp_path / "nobody.db").exists(), "looking makes no file"
    shop.close()


def test_a_database_that_hangs_is_unknown_and_holds_up_nobody(pg_url: str, tmp_path: Path) -> None:
    hung, well, told = Shop(pg_url, "unused:1"), tmp_path / "well.db", Told()
    Shop(f"sqlite:///{well}", "unused:1").close()
    config = configure(tmp_path, shop=pg_url, well=f"sqlite:///{well}")
    engine = create_engine(pg_url)
    with watching(config, told) as watch:
        wait_until(lambda: find(watch, "shop").status is not None, what="it is seen")
        with engine.begin() as connection:
            connection.execute(text("LOCK TABLE backlog_outbox IN ACCESS EXCLUSIVE MODE"))
            wait_until(lambda: find(watch, "shop").status is None, what="it is unknown")
            assert "has not answered" in find(watch, "shop").problem
            began = time.monotonic()
            assert scrape(watch).value("backlog_outbox_away", outbox="shop", what="database") == 1
            assert time.monotonic() - began < 1
            before = find(watch, "well").taken_at
            assert before is not None
            wait_until(lambda: find(watch, "well").taken_at != before, what="the other goes on")
            assert len(told.of("outbox shop")) == 1
        wait_until(lambda: find(watch, "shop").status is not None, what="it is seen again")
        wait_until(lambda: told.of("outbox shop")[1:] == [""], what="its end is told")
    assert told.of("outbox well") == []
    engine.dispose()
    hung.close()


def test_watch_serves_them(tmp_path: Path) -> None:
    """The parts of `watch` put together: the page and /metrics have them."""
    shop = Shop(f"sqlite:///{tmp_path}/shop.db", "unused:1")
    shop.add("orders", "a")
    config = configure(tmp_path, shop="sqlite:///shop.db", away="sqlite:///away.db")
    workspace = open_workspace(config)
    with open_exporter(workspace, "127.0.0.1:0", "--listen", Told()) as exporter:

        def get(path: str) -> str:
            with urllib.request.urlopen(f"{exporter.url}{path}", timeout=30) as answer:
                return str(answer.read().decode())

        line = 'backlog_outbox_messages{outbox="shop",state="pending"} 1.0'
        wait_until(lambda: line in get("/metrics"), what="it is exported")
        assert 'backlog_outbox_away{outbox="away",what="database"} 1.0' in get("/metrics")
        page = get("/")
        assert "1 message is about to be sent." in page
        assert "there is no file" in page
    workspace.ledger.close()
    shop.close()


def test_what_was_not_looked_at_yet_is_not_away(tmp_path: Path) -> None:
    config = configure(tmp_path, shop="sqlite:///shop.db")
    watch = DeliveryWatch(config, Told())
    assert find(watch, "shop") == DeliveryLook("shop")
    assert scrape(watch).text == ""


@pytest.mark.parametrize("kind", ["outbox", "look-back"])
def test_fault_59_no_password_is_in_what_is_told(tmp_path: Path, kind: str) -> None:
    url = "postgresql+psycopg://app:${env:SECRET}@127.0.0.1:1/shop"
    document: dict[str, Any] = {
        "clusters": {"main": {"bootstrap.servers": "127.0.0.1:1"}},
        "sources": {"shop": {"url": url}},
        "outboxes": {"shop": {"cluster": "main"}} if kind == "outbox" else {},
        "watch": {"interval": "100ms", "window": "10s"},
    }
    if kind == "look-back":
        document["look_back"] = {"database": url, "cluster": "main"}
    config = Config.from_text(json.dumps(document), tmp_path, {"SECRET": "hunter2-outbox"})
    told = Told()
    with watching(config, told) as watch:
        wait_until(lambda: watch.read()[0].problem != "", what="it is unknown")
        assert "hunter2-outbox" not in watch.read()[0].problem
    assert "hunter2-outbox" not in str(told.outages)
