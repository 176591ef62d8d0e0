"""What a sender does where something stands still: a lock, its database, its own thread, a table
that is too old.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, text

from backlog.errors import UsageError
from backlogctl_delivery.outbox import OutboxDatabaseError, Settings
from backlogctl_delivery.outbox.claims import Claims
from backlogctl_delivery.outbox.database import messages
from backlogctl_delivery.outbox.in_flight import InFlight
from backlogctl_delivery.outbox.messages import Message
from replay.cli import main
from tests.conftest import MakeTopic
from tests.delivery.outbox.shop import FAST, Shop
from tests.kafka_tools import wait_until


def test_of_a_table_of_an_older_version_nothing_is_sent(
    shop: Shop, topic: MakeTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows could be claimed, and never be marked: they would be sent again at each lease's end."""
    name = topic(1)
    shop.add(name, "a")
    with shop.engine.begin() as connection:
        connection.execute(text("ALTER TABLE backlog_outbox DROP COLUMN sent_offset"))
    with shop.sending() as sender:
        wait_until(lambda: sender.database_outage.is_on, what="it is told")
    assert main(["outbox", "run", "--bootstrap", shop.bootstrap, "--url", shop.url]) == 1
    assert "of an older version, without sent_offset" in capsys.readouterr().err
    assert shop.read_ids(name) == []


def test_what_could_not_be_marked_is_marked_before_more_is_claimed(
    shop: Shop, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the end: a short error of the database has nothing sent twice."""
    name, marking, calls = topic(1), Claims.mark_sent, [0]

    def mark(claims: Claims, delivered: Any) -> int:
        calls[0] += 1
        if calls[0] < 3:
            raise OutboxDatabaseError("away", subject="outbox", retryable=True)
        # Until then nothing else was claimed.
        assert shop.count("pending") == later
        return marking(claims, delivered)

    monkeypatch.setattr(Claims, "mark_sent", mark)
    later = 0
    shop.add(name, "a", "b")
    sender = shop.make_sender(replace(FAST, lease=timedelta(seconds=60)))
    sender.start()
    wait_until(lambda: calls[0] > 0, what="it could not be marked")
    sender.close()
    assert shop.count("sent") == 2
    assert len(shop.read_ids(name)) == 2


# SQLite has no locks of rows.
@pytest.mark.parametrize("url", ["postgres", "mariadb"], indirect=True)
def test_a_row_that_somebody_holds_open_holds_up_its_own_key_only(
    shop: Shop, topic: MakeTopic
) -> None:
    name = topic(1)
    shop.add(name, "a", "a", "a", "b", "b")
    ids = [row[0] for row in shop.list_rows("id")]
    with shop.engine.begin() as other:
        other.execute(select(messages.c.id).where(messages.c.id == ids[1]).with_for_update())
        with shop.sending():
            shop.await_sent(3)
            other.rollback()
            shop.await_sent(5)
    values = [message.value() for message in shop.read(name) if message.key() == b"a"]
    assert values == [b"0", b"1", b"2"]


def test_a_row_claimed_again_before_its_first_report_leaves_nothing_behind() -> None:
    """A thread that stood still for longer than its lease."""
    reports: list[Any] = []
    client = SimpleNamespace(
        produce=lambda *_, on_delivery, **__: reports.append(on_delivery), poll=lambda _: None
    )
    in_flight = InFlight(client, lambda: client, clock=lambda: 0.0)  # type: ignore[arg-type,return-value]
    first = Message(1, "old", "i-1", "t", 7, 0, 10, 0, b"k", b"v", [])
    run = [first, replace(first, id=2, message_id="i-2")]
    in_flight.start(run, lease_end=1.0)
    in_flight.start([replace(message, token="new") for message in run], lease_end=1.0)
    told = SimpleNamespace(partition=lambda: 0, offset=lambda: len(reports))
    while reports:
        reports.pop(0)(None, told)
    assert len(in_flight) == 0
    results = in_flight.take_results()
    assert [(one.message.id, one.message.token) for one in results.delivered] == [
        *((1, "old"), (1, "new"), (2, "old"), (2, "new"))
    ]


def test_ended_before_all_is_sent_is_no_success(pg_shop: Shop) -> None:
    """By a deadline of the job that runs it, while Kafka is away."""
    pg_shop.add("t", "a")
    words = ("outbox", "run", "--until-sent", "--bootstrap", "127.0.0.1:1")
    running = subprocess.Popen(
        [sys.executable, "-m", "replay.cli", *words],
        env={**os.environ, "BACKLOG_OUTBOX_URL": pg_shop.url},
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert running.stderr is not None
    while "no broker answers" not in running.stderr.readline():
        assert running.poll() is None
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=90)
    assert running.returncode == 1, err
    assert "1 not sent" in err


def test_a_time_limit_that_kafka_takes_for_none_is_refused() -> None:
    with pytest.raises(UsageError, match="too short"):
        Settings(lease=timedelta(milliseconds=2), delivery_timeout=timedelta(microseconds=900))
