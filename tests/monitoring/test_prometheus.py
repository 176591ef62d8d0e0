"""The exporter, the rules and a real Prometheus: a real loss fires an alert that says what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.kafka_tools import expire_unread, properties_of, wait_until
from tests.monitoring.prometheus import ROOT, EmbeddedPrometheus
from tests.monitoring.test_dashboards import DASHBOARDS, list_targets
from tests.monitoring.test_rules import FILES

OLD, READ = {0: 40, 1: 50}, {0: 10, 1: 50}


@contextmanager
def watch(config: Path) -> Iterator[str]:
    """`backlogctl watch` as a process; gives the address that it serves on."""
    log = config.with_name("watch.log")
    command = [sys.executable, "-m", "backlogctl.replay.cli", "watch", "--listen", "127.0.0.1:0"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--config", str(config)],
            cwd=config.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )

    def find_address() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text()
        return re.search(r"http://(127\.0\.0\.1:\d+)/metrics", log.read_text())

    try:
        wait_until(find_address, what="watch serves")
        found = find_address()
        assert found is not None
        yield found[1]
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@pytest.mark.prometheus
def test_a_real_loss_fires_an_alert_with_the_next_command(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, tmp_path: Path
) -> None:
    properties = properties_of(kafka.bootstrap)
    name = topic(partitions=2, config={"retention.ms": "-1"})
    document = {
        "ledger": f"sqlite:///{tmp_path}/ledger.db",
        "clusters": {"main": {"bootstrap.servers": kafka.bootstrap}},
        "watch": {"interval": "500ms", "window": "10s", "groups": {"allow": [group]}},
        "streams": {"orders": {"cluster": "main", "topic": name, "group": group}},
    }
    config = tmp_path / "backlog.yaml"
    config.write_text(json.dumps(document))  # JSON is YAML
    with watch(config) as address, EmbeddedPrometheus(tmp_path, address, FILES) as prometheus:
        wait_until(lambda: prometheus.query("backlog_verdict"), what="a verdict is scraped")
        assert prometheus.list_alerts("BacklogLost") == []

        expire_unread(properties, name, group, old=OLD, read=READ, young={0: 7, 1: 7})
        fired: list[dict[str, Any]] = []

        def fires() -> bool:
            # One scrape that comes too late, and it is silent until the next.
            fired[:] = prometheus.list_alerts("BacklogLost")
            return any(alert["state"] == "firing" for alert in fired)

        wait_until(fires, what="the alert fires")
        (alert,) = fired
        assert alert["labels"] == {
            "alertname": "BacklogLost",
            "severity": "page",
            "cluster": "main",
            "group": group,
            "topic": name,
            "stream": "orders",
        }
        notes = alert["annotations"]
        assert notes["summary"] == f"{group} lost up to 30 messages of {name}"
        assert notes["next_command"] == "backlogctl status orders"
        assert notes["runbook_url"].endswith("alerts.md#backloglost")

        # The dashboard shows the same.
        query = _find_query("Verdict")
        shown: list[list[str]] = []

        def shows() -> bool:
            shown.append([row["value"][1] for row in prometheus.query(query)])
            return bool(shown[-1])

        wait_until(shows, what="the dashboard shows it")
        assert shown[-1] == [str(Verdict.LOST.severity)]
        assert prometheus.list_rule_errors() == []


def _find_query(title: str) -> str:
    """The query of a panel of the stream's dashboard, for all groups."""
    board = next(board for board in DASHBOARDS if board["uid"] == "backlog-stream")
    exprs = [one["expr"] for panel, one in list_targets(board) if panel["title"] == title]
    return re.sub(r"\$\w+", ".*", exprs[0])
