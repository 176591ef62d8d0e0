"""`watch` looks as a doctor does, and asks who is in a group that does not get on."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from backlogctl.monitoring.doctor.checks import CheckFinding
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.web import checkups
from backlogctl.replay.web.exporter import open_exporter
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import OutboxDatabase
from tests.conftest import MakeTopic
from tests.kafka_tools import join, publish, wait_until
from tests.monitoring.metric_lines import Scraped
from tests.replay.doctor.world import make_workspace

WATCH = {"interval": "500ms", "window": "2s", "doctor": "1h"}


def test_what_watch_finds_is_in_metrics_and_on_the_page(
    properties: dict[str, str], topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    name, group = topic(partitions=1), f"group-{unique}"
    publish(properties, name, {0: 20})
    workspace = make_workspace(tmp_path, properties, name, group, watch=WATCH)
    member = join(properties, group, name, client_id="worker-1")
    first = member.poll(30)
    assert first is not None
    member.commit(message=first, asynchronous=False)
    stop = threading.Event()
    with open_exporter(workspace, "127.0.0.1:0", "--listen", lambda *_: None) as exporter:
        loop = threading.Thread(
            target=watch_streams,
            args=(workspace.config, workspace.ledger, timedelta(milliseconds=500), stop),
            kwargs={"window": timedelta(seconds=2), "on_status": exporter.board.put_stream},
        )
        loop.start()
        try:

            def read() -> Scraped:
                member.poll(0)  # it stays in the group, and commits nothing
                return Scraped(httpx.get(f"{exporter.url}/metrics", timeout=30).text)

            wait_until(lambda: read().find("backlog_member_partitions"), what="members are asked")
            wait_until(lambda: read().find("backlog_doctor_findings"), what="the doctor looked")
            got = read()
            page = httpx.get(f"{exporter.url}/streams/orders", timeout=30).text
        finally:
            stop.set()
            loop.join(60)
            member.close()
    assert got.value("backlog_member_partitions", stream="orders", client_id="worker-1") == 1
    found = {"stream": "orders", "check": "replication-factor", "level": "loses"}
    assert got.value("backlog_doctor_findings", **found) == 1
    assert "worker-1" in page
    assert "replication factor 1, min.insync.replicas 1" in page


def test_a_look_that_fails_ends_no_others(
    properties: dict[str, str],
    topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bug in one look is in the log; the next look is made all the same."""

    def fail(*_: object) -> tuple[CheckFinding, ...]:
        raise ZeroDivisionError

    monkeypatch.setattr(checkups, "examine_tool", fail)
    workspace: Workspace = make_workspace(tmp_path, properties, topic(), watch=WATCH)
    with open_exporter(workspace, "127.0.0.1:0", "--listen", lambda *_: None) as exporter:
        wait_until(lambda: "orders" in exporter.board.seen.checkups, what="the stream is looked at")
        assert "" not in exporter.board.seen.checkups
    assert "a checkup of the tool failed" in caplog.text


def test_what_no_stream_is_about_is_with_the_tool(
    properties: dict[str, str], tmp_path: Path
) -> None:
    """Outboxes and look-back: `backlogctl doctor` without a stream says the same."""
    url = f"sqlite:///{tmp_path}/shop.db"
    database = OutboxDatabase(url)
    OutboxAdmin(database).create()
    database.close()
    workspace = make_workspace(
        tmp_path,
        properties,
        streams={},
        sources={"shop": {"url": url}},
        outboxes={"shop": {"cluster": "main"}},
        watch=WATCH,
    )
    with open_exporter(workspace, "127.0.0.1:0", "--listen", lambda *_: None) as exporter:

        def read() -> Scraped:
            return Scraped(httpx.get(f"{exporter.url}/metrics", timeout=30).text)

        wait_until(
            lambda: read().find("backlog_doctor_findings", check="outbox-locks"),
            what="the doctor looked",
        )
        assert read().value("backlog_doctor_findings", check="outbox-locks", stream="") == 1
        assert "it is in SQLite" in httpx.get(f"{exporter.url}/", timeout=30).text
