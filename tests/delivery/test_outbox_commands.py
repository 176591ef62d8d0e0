"""`backlogctl outbox`: creates, sends, shows and mends, and shows no payload."""

from __future__ import annotations

import gc
import json
import re
import signal
import subprocess
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from backlogctl.replay.cli import main
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import State
from backlogctl_delivery.sequenced.clients import place_crc32, place_murmur2
from tests.conftest import MakeTopic
from tests.delivery.kit import Shop
from tests.kit.kafka import wait_until
from tests.kit.processes import ROOT, start_backlogctl
from tests.kit.prometheus import Scraped
from tests.kit.shop import call_main


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
    for _ in range(2):
        code, said = run("create")
        assert (code, "the table is there" in said) == (0, True)
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


def test_each_verb_closes_what_it_opened(
    pg_shop: Shop, topic: MakeTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    pg_shop.add(topic(1), "a")
    row = str(pg_shop.list_rows("id")[0][0])
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        for words in (
            *(["create"], ["status"], ["list"], ["show", row], ["park", row], ["retry", row]),
            *(["retry", "77"], ["purge"], ["purge", "--discard", row, "--allow", "lose"]),
            ["run", "--until-sent", "--bootstrap", pg_shop.bootstrap],
        ):
            main(["outbox", *words, "--url", pg_shop.url])
            gc.collect()
            assert [str(one.message) for one in caught] == [], words
    assert "1 delivered" in capsys.readouterr().out


@dataclass
class Running:
    """`outbox run` while it serves its metrics; `out` is what it has printed when it has ended."""

    process: subprocess.Popen[str]
    address: str = ""
    out: str = ""

    def read_metrics(self) -> Scraped:
        with urllib.request.urlopen(self.address, timeout=30) as answer:
            return Scraped(answer.read().decode())


@contextmanager
def running(*words: str, **environment: str) -> Iterator[Running]:
    """A process of its own, which ends well at SIGTERM."""
    made = Running(start_backlogctl(ROOT, "outbox", "run", *words, environment=environment))
    assert made.process.stderr is not None
    try:
        found = re.search(r"http://\S+", said := made.process.stderr.readline())
        assert found is not None, said + made.process.stderr.read()
        made.address = found[0]
        yield made
    finally:
        made.process.send_signal(signal.SIGTERM)
        made.out, _ = made.process.communicate(timeout=400)
    assert made.process.returncode == 0


def test_it_runs_until_it_is_asked_to_end(pg_shop: Shop, topic: MakeTopic) -> None:
    name = topic(1)
    given = pg_shop.add(name, "a", "b")
    words = ("--json", "--bootstrap", pg_shop.bootstrap, "--listen", "127.0.0.1:0")
    with running(*words, BACKLOG_OUTBOX_URL=pg_shop.url) as sender:
        pg_shop.await_sent(2)

        def is_counted() -> bool:
            metrics = sender.read_metrics()
            return metrics.value("backlog_outbox_attempts_total", outcome="delivered") == 2

        wait_until(is_counted, what="two are counted")
        metrics = sender.read_metrics()
        place = pg_shop.database.name
        assert metrics.value("backlog_outbox_messages", outbox=place, state="parked") == 0
        assert metrics.value("backlog_outbox_away", outbox=place, what="kafka") == 0
    assert json.loads(sender.out)["delivered"] == 2
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
    desk = OutboxAdmin(shop.database)
    assert desk.read_status().oldest_seconds is None
    shop.add("orders", "a")
    oldest = desk.read_status().oldest_seconds
    assert oldest is not None
    assert 0 <= oldest < 3_600
    shop.close()


# `backlogctl outbox` with outboxes of the configuration: which is meant, and how it is sent.

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("BACKLOG_OUTBOX_URL", raising=False)

    def call(*words: str) -> tuple[int, str]:
        code, out, err = call_main(("outbox", *words), tmp_path, {})
        return code, out or err

    return call


def configure(directory: Path, outboxes: str, bootstrap: str = "localhost:1", **urls: str) -> Path:
    urls = urls or {"shop": "sqlite:///shop.db", "bills": "sqlite:///bills.db"}
    lines = [f"clusters: {{main: {{bootstrap.servers: '{bootstrap}'}}}}", "sources:"]
    lines += [f"  {name}: {{url: '{url}'}}" for name, url in urls.items()]
    file = directory / "backlog.yaml"
    file.write_text("\n".join([*lines, f"outboxes: {outboxes}"]) + "\n")
    return file


def test_the_only_one_need_not_be_named(tmp_path: Path, run: Run) -> None:
    configure(tmp_path, "{shop: {cluster: main}}")
    assert run("create")[0] == 0
    shop = Shop(f"sqlite:///{tmp_path}/shop.db", "unused:1")
    shop.add("orders", "a", "b")
    code, said = run("status", "--json")
    found = json.loads(said)
    assert (code, found["name"], found["pending"]) == (0, "shop", 2)
    assert run("park", "1", "--outbox", "shop")[0] == 0
    code, said = run("status")
    assert code == 1
    assert "shop: 2 not sent" in said
    assert "next: backlogctl outbox list --outbox shop --state parked" in said
    assert run("retry", "--all")[1].strip() == "1 due again"
    shop.close()


def test_of_several_one_is_named_or_all_are_shown(tmp_path: Path, run: Run) -> None:
    configure(tmp_path, "{shop: {cluster: main}, bills: {cluster: main}}")
    code, said = run("list")
    assert code == 2
    assert "--outbox shop or bills" in said
    code, said = run("create", "--outbox", "shopp")
    assert code == 2
    assert "unknown outbox; the nearest known outbox is `shop`" in said
    assert run("create", "--outbox", "shop")[0] == 0
    shop = Shop(f"sqlite:///{tmp_path}/shop.db", "unused:1")
    shop.add("orders", "a")
    shop.close()
    code, said = run("status", "--json")
    first, second = json.loads(said)["outboxes"]
    assert code == 1  # the other could not be read, which is not nothing
    assert (first["name"], first["pending"]) == ("shop", 1)
    assert second["name"] == "bills"
    assert "there is no such file" in second["error"]["message"]
    assert not (tmp_path / "bills.db").exists()
    code, said = run("status")
    assert code == 1
    assert "shop: 1 not sent" in said
    assert "bills: unknown: there is no such file" in said
    assert run("create", "--outbox", "bills")[0] == 0
    assert run("status")[0] == 0


def test_a_url_goes_before_the_configuration_and_a_name_before_the_variable(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, "{shop: {cluster: main}, bills: {cluster: main}}")
    other = f"sqlite:///{tmp_path}/other.db"
    monkeypatch.setenv("BACKLOG_OUTBOX_URL", other)
    assert "other.db" in run("create")[1]
    assert "bills.db" in run("create", "--outbox", "bills")[1]
    third = f"sqlite:///{tmp_path}/third.db"
    assert "third.db" in run("create", "--url", third)[1]
    assert "third.db" in run("create", "--url", third, "--outbox", "bills")[1]
    assert sorted(path.name for path in tmp_path.glob("*.db")) == [
        "bills.db",
        "other.db",
        "third.db",
    ]


def test_without_outboxes_it_must_be_told(tmp_path: Path, run: Run) -> None:
    configure(tmp_path, "{}")
    code, said = run("status")
    assert code == 2
    assert "--url, BACKLOG_OUTBOX_URL, or `outboxes`" in said


@pytest.mark.parametrize("option", ["", "murmur2"])
def test_it_is_sent_as_the_configuration_says_unless_an_option_does(
    pg_shop: Shop, topic: MakeTopic, tmp_path: Path, option: str
) -> None:
    name, partitions = topic(8), 8
    keys = [f"key-{number}" for number in range(20)]
    places = place_murmur2 if option else place_crc32
    configured = "{shop: {cluster: main, partitioner: crc32, listen: '127.0.0.1:0', keep: 1s}}"
    file = configure(tmp_path, configured, pg_shop.bootstrap, shop=pg_shop.url)
    pg_shop.add(name, *keys)
    words = ("--config", str(file))
    with running(*words, *(["--partitioner", option] if option else [])) as sender:
        wait_until(lambda: pg_shop.count("pending") == 0, what="all are claimed")
        assert sender.read_metrics().find("backlog_outbox_messages")
        wait_until(lambda: len(pg_shop.read(name, partitions)) == 20, what="all are sent")
    for message in pg_shop.read(name, partitions):
        assert message.partition() == places(message.key(), partitions)
    if not option:
        with running(*words):
            wait_until(lambda: pg_shop.list_rows() == [], what="what was sent is deleted")
