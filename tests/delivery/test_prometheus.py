"""A real Prometheus asks outboxes, look-back and marks: alerts say what to type, panels show it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from backlogctl.config import Config
from backlogctl.sandbox.secured import HOST
from backlogctl_delivery.idempotent.metrics import OnceCollector
from backlogctl_delivery.idempotent.sql import Marks
from backlogctl_delivery.lookback.admin import park_message
from backlogctl_delivery.lookback.metrics import Metrics
from backlogctl_delivery.lookback.tables import LookBackDatabase, create_tables
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import OutboxDatabase
from backlogctl_delivery.outbox.metrics import OutboxCollector
from backlogctl_delivery.outbox.sender import OutboxSender
from tests.delivery.kit import Shop, Teller
from tests.kafka_tools import wait_until
from tests.monitoring.prometheus import EmbeddedPrometheus
from tests.monitoring.test_dashboards import DASHBOARDS, fill_variables, list_targets
from tests.monitoring.test_rules import FILES, split_as_bash
from tests.replay.calling import call_main

CONFIG = """\
clusters: {main: {bootstrap.servers: "localhost:9092"}}
sources: {shop: {url: sqlite:///shop.db}}
outboxes: {shop: {cluster: main}}
look_back: {database: sqlite:///look-back.db, cluster: main}
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a sender, an instance of look-back and a consumer; each of them has a parked message, or
    work that was done without a mark."""
    (tmp_path / "backlog.yaml").write_text(CONFIG)
    registry = CollectorRegistry()
    with Shop(f"sqlite:///{tmp_path}/shop.db", "unused:1") as shop:
        shop.add("orders", "a")
        desk = OutboxAdmin(OutboxDatabase(shop.engine))
        desk.park([1])
        sender = OutboxSender(shop.engine, {"bootstrap.servers": "unused:1"})
        registry.register(OutboxCollector(desk, lambda: sender, "shop"))

        settings = Config.from_text(CONFIG, tmp_path).look_back
        assert settings is not None
        database = LookBackDatabase(settings.reveal_url())
        create_tables(database)
        teller = Teller(database, settings.to_settings())
        teller.prepare("1")
        park_message(database, teller.find("1")["id"], "me")
        metrics = Metrics(database, ["payments"])
        metrics.incidents.labels("unreadable").inc()
        metrics.forwards.delivered += 1
        registry.register(metrics.registry)

        marks = Marks("payments_handled")
        marks.create_tables(shop.engine)
        with shop.engine.begin() as connection, marks.handle_once(connection, "m-1") as attempt:
            assert attempt.is_first
        marks.counts.add("conflict")
        registry.register(OnceCollector(marks))
        server, thread = start_http_server(0, HOST, registry)
        yield f"{HOST}:{server.server_port}"
        server.shutdown()
        server.server_close()
        thread.join()
        database.close()


@pytest.mark.prometheus
def test_alerts_say_what_to_type_and_panels_show_what_is_wrong(
    address: str, tmp_path: Path
) -> None:
    with EmbeddedPrometheus(tmp_path, address, FILES) as prometheus:
        found: dict[str, Any] = {}
        commands = {
            "BacklogOutboxParked": "backlogctl outbox list --outbox shop --state parked",
            "BacklogLookBackParked": "backlogctl lookback list --state parked",
            "BacklogLookBackConflict": "backlogctl lookback list --incidents",
            "BacklogOnceBroken": "backlogctl status",
        }

        def are_there() -> bool:
            found.update((name, prometheus.list_alerts(name)) for name in commands)
            return all(found.values())

        wait_until(are_there, what="the alerts are pending or fire")
        for name, command in commands.items():
            (alert,) = found[name]
            assert alert["annotations"]["next_command"] == command
        for name in ("BacklogOutboxParked", "BacklogLookBackParked"):
            _, *words = split_as_bash(commands[name])
            code, out, err = call_main((*words, "--json"), tmp_path, {})
            assert code == 0, err
            assert len(json.loads(out)["messages"]) == 1
        for name in ("BacklogOutboxGone", "BacklogOutboxUnseen", "BacklogLookBackGone"):
            assert prometheus.list_alerts(name) == []
        assert prometheus.list_rule_errors() == []

        (board,) = (board for board in DASHBOARDS if board["uid"] == "backlog-delivery")
        queries = {
            (panel["title"], one["refId"]): re.sub(r"\$\w+", ".*", fill_variables(one["expr"]))
            for panel, one in list_targets(board)
        }

        def list_empty() -> set[str]:
            return {title for (title, _), expr in queries.items() if not prometheus.query(expr)}

        quiet = {
            # No row waits, and nothing is asked or fails.
            "Oldest that waits",
            "Outboxes, the worst first",
            "Outboxes: age of the oldest row that waits",
            "Look-back: oldest",
            "Look-back: age of the oldest message",
            "Look-back: questions each minute",
            "Look-back: records that did not fit, in an hour",
            "Look-back: failures of its parts each minute",
            "Idempotent consumers: what else came of messages, each minute",
        }
        wait_until(lambda: list_empty() == quiet, what="the panels show what is there")
        assert _read(prometheus, queries["Parked in outboxes", "A"]) == 1
        assert _read(prometheus, queries["Look-back: parked", "A"]) == 1
        assert _read(prometheus, queries["Databases that nobody reads", "A"]) == 0


def _read(prometheus: EmbeddedPrometheus, expr: str) -> float:
    (row,) = prometheus.query(expr)
    return float(row["value"][1])
