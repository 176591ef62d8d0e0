"""Look-back as Prometheus sees it: counted from 0, and no scrape waits for long."""

from __future__ import annotations

import time

from sqlalchemy import text

from backlogctl_delivery.lookback.messages import Incident
from backlogctl_delivery.lookback.metrics import CATALOGUE, Metrics
from backlogctl_delivery.lookback.tables import MESSAGES, Database
from tests.delivery.lookback.world import Teller
from tests.kafka_tools import wait_until
from tests.monitoring.metric_lines import scrape_registry


def test_all_of_the_catalogue_is_there_from_the_start(teller: Teller) -> None:
    """A counter that begins at 1 is no increase to Prometheus."""
    teller.prepare("1")
    got = scrape_registry(Metrics(teller.database, ["payments"]).registry)
    for metric in CATALOGUE:
        found = got.find(metric.exported_name)
        assert found, metric
        for labels in found:
            assert {name for name, _ in labels} == set(metric.labels)
        if metric.type == "counter":
            assert set(found.values()) == {0.0}
    assert got.labels_of("backlog_lookback_incidents_total", "kind") == set(Incident)
    assert got.labels_of("backlog_lookback_checks_total", "service") == {"payments", "not listed"}
    assert got.labels_of("backlog_lookback_oldest_seconds", "state") == {"prepared"}
    assert got.value("backlog_lookback_database_up") == 1


def test_a_database_that_hangs_holds_up_no_scrape(pg_database: Database) -> None:
    registry = Metrics(pg_database).registry
    with pg_database.write() as holder:
        holder.execute(text(f"LOCK TABLE {MESSAGES.name} IN ACCESS EXCLUSIVE MODE"))
        for _ in range(2):
            began = time.monotonic()
            got = scrape_registry(registry)
            assert time.monotonic() - began < 5
            assert got.value("backlog_lookback_database_up") == 0
            assert not got.find("backlog_lookback_messages")
            assert got.value("backlog_lookback_forwards_total", outcome="sent") == 0

    def is_up() -> bool:
        return scrape_registry(registry).value("backlog_lookback_database_up") == 1

    wait_until(is_up, what="the tables are seen again")
