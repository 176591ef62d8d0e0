"""`backlogctl outbox`: creates, sends, shows and mends, and shows no payload."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import Database, State
from replay.cli import main
from tests.conftest import MakeTopic
from tests.delivery.outbox.shop import Shop
from tests.kafka_tools import wait_until
from tests.monitoring.metric_lines import Scraped


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


def test_it_creates_shows_parks_retries_and_purges(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str]:
        code = main(["outbox", *words, "--url", sqlite_url])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    code, said = run("status")
    assert code == 1
    assert "backlogctl outbox create" in said
    assert run("create")[0] == 0
    assert run("create")[0] == 0
    shop = Shop(sqlite_url, "unused:1")
    shop.add("orders", "secret-key", "b")
    code, said = run("status")
    assert (code, "2 pending" in said) == (0, True)
    assert run("park", "1")[0] == 0
    assert run("status")[0] == 1
    for words in (["list"], ["show", "1"]):
        code, said = run(*words)
        assert code == 0
        assert "parked" in said
        assert "secret-key" not in said
    assert run("list", "--state", "wrong")[0] == 2
    assert run("show", "77")[0] == 2
    assert run("retry")[0] == 2
    assert run("retry", "--all")[0] == 0
    assert run("purge")[1].strip() == "0 deleted"
    assert run("park", "2")[0] == 0
    assert run("purge", "--discard", "2")[0] == 5
    assert run("purge", "--discard", "2", "--allow", "lose")[0] == 0
    assert run("list", "--topic", "other")[1].strip() == "no such message"
    assert run("run")[0] == 2
    shop.close()


def test_it_runs_until_it_is_asked_to_end(pg_shop: Shop, topic: MakeTopic) -> None:
    """A process of its own: it sends, serves its metrics, and ends at SIGTERM."""
    name = topic(1)
    given = pg_shop.add(name, "a", "b")
    running = subprocess.Popen(
        [
            *(sys.executable, "-m", "replay.cli", "outbox", "run", "--json"),
            *("--bootstrap", pg_shop.bootstrap, "--listen", "127.0.0.1:0"),
        ],
        env={**os.environ, "BACKLOG_OUTBOX_URL": pg_shop.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert running.stderr is not None
    try:
        found = re.search(r"http://\S+", running.stderr.readline())
        assert found is not None
        pg_shop.await_sent(2)

        def read_metrics() -> Scraped:
            with urllib.request.urlopen(found[0], timeout=30) as answer:
                return Scraped(answer.read().decode())

        def is_counted() -> bool:
            attempts = read_metrics().value("backlog_outbox_attempts_total", outcome="delivered")
            return attempts == 2

        wait_until(is_counted, what="two are counted")
        metrics = read_metrics()
        place = OutboxAdmin(Database(pg_shop.url)).name
        assert metrics.value("backlog_outbox_messages", outbox=place, state="parked") == 0
        assert metrics.value("backlog_outbox_away", outbox=place, what="kafka") == 0
    finally:
        running.send_signal(signal.SIGTERM)
        out, _ = running.communicate(timeout=90)
    assert running.returncode == 0
    assert json.loads(out)["delivered"] == 2
    assert sorted(map(str, pg_shop.read_ids(name))) == sorted(given)


def test_it_ends_when_all_is_sent_or_waits_for_a_parked_message(
    pg_shop: Shop, topic: MakeTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(1)

    def run() -> tuple[int, str]:
        told = ("--bootstrap", pg_shop.bootstrap, "--url", pg_shop.url)
        code = main(["outbox", "run", "--until-sent", *told])
        return code, capsys.readouterr().out.strip()

    given = pg_shop.add(name, "a", "b", None)
    assert run() == (0, "3 delivered, 0 parked")
    entries = OutboxAdmin(pg_shop.database).list_entries([State.SENT], None, 10)
    assert {(entry.partition, entry.offset) for entry in entries} == {(0, 0), (0, 1), (0, 2)}
    pg_shop.add(name, "a", "b")
    OutboxAdmin(pg_shop.database).park([pg_shop.list_rows("id")[3][0]])
    pg_shop.add(name, "a")
    # The last one waits for the parked one of its key: that is no reason to go on.
    assert run() == (1, "1 delivered, 0 parked")
    assert pg_shop.count("pending") == 1
    assert set(given) < set(map(str, pg_shop.read_ids(name)))


def test_the_age_of_the_oldest_is_unknown_without_one(sqlite_url: str) -> None:
    shop = Shop(sqlite_url, "unused:1")
    desk = OutboxAdmin(Database(sqlite_url))
    assert desk.read_status().oldest_seconds is None
    shop.add("orders", "a")
    oldest = desk.read_status().oldest_seconds
    assert oldest is not None
    assert 0 <= oldest < 3_600
    shop.close()
