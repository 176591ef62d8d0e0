"""`backlogctl outbox` with outboxes of the configuration: which is meant, and how it is sent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backlogctl_delivery.sequenced.clients import place_crc32, place_murmur2
from tests.conftest import MakeTopic
from tests.delivery.outbox.shop import Shop
from tests.kafka_tools import wait_until
from tests.replay.calling import call_main

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


@contextmanager
def running(file: Path, *words: str) -> Iterator[str]:
    """`outbox run` as a process of its own; gives its address of /metrics."""
    process = subprocess.Popen(
        [*(sys.executable, "-m", "replay.cli", "outbox", "run", "--config", str(file)), *words],
        env={name: value for name, value in os.environ.items() if name != "BACKLOG_OUTBOX_URL"},
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        found = re.search(r"http://\S+", said)
        assert found is not None, said + process.stderr.read()
        yield found[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=90)
    assert process.returncode == 0


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
    with running(file, *(["--partitioner", option] if option else [])) as address:
        wait_until(lambda: pg_shop.count("pending") == 0, what="all are claimed")
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b"backlog_outbox_messages" in answer.read()
        wait_until(lambda: len(pg_shop.read(name, partitions)) == 20, what="all are sent")
    for message in pg_shop.read(name, partitions):
        assert message.partition() == places(message.key(), partitions)
    with running(file):
        wait_until(lambda: pg_shop.list_rows() == [], what="what was sent is deleted")


def test_without_a_word_keys_are_placed_as_by_java(pg_shop: Shop, topic: MakeTopic) -> None:
    """An application's own sender and `outbox run` place a key alike."""
    name, partitions = topic(8), 8
    pg_shop.add(name, *(f"key-{number}" for number in range(20)))
    with pg_shop.sending():
        pg_shop.await_sent(20)
    for message in pg_shop.read(name, partitions):
        assert message.partition() == place_murmur2(message.key(), partitions)
