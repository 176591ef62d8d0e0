"""What a broker refuses for good, or nobody knows for how long: few tries, and what they cost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from backlogctl.errors import KafkaFailure
from backlogctl.fanout.relay import pool
from backlogctl.fanout.relay.interface import (
    RECORD,
    Position,
    RelayEngine,
    SourceRange,
    UnexplainedRefusal,
)
from backlogctl.fanout.relay.pool import RelayPool, Spares
from backlogctl.fanout.relay.session import fence_relays
from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.kafka import LoginRefused
from tests.fanout.relay.conftest import KEPT
from tests.fanout.relay.doing import RelayWorld, fill, keep_checking, pool_of, relay
from tests.fanout.relay.test_guard import session_of
from tests.kit.kafka import properties_of, set_offsets_raw
from tests.kit.secured import start_secured

COUNT = 500


def test_fault_120_counters_that_the_broker_does_not_take(tmp_path: Path) -> None:
    """It refuses each commit, so each try copies all in vain: it is one."""
    settings = {"offset.metadata.max.bytes": "20"}
    with EmbeddedKafka.start(tmp_path / "kafka", properties=settings) as kafka:
        properties = properties_of(kafka.bootstrap)
        for name, partitions in (("source", 1), ("target", 2)):
            create_topic(properties, name, partitions=partitions, config=KEPT)
        here = RelayWorld(properties, "source", "target", "group", 1, 2)
        set_offsets_raw(properties, "group", "source", {0: 0})
        fill(properties, "source", {0: COUNT})
        session = session_of(here, tmp_path)
        session.join()
        session.start(lambda: [SourceRange(0, 0)])
        with pytest.raises(KafkaFailure, match="OFFSET_METADATA_TOO_LARGE") as caught:
            keep_checking(session)
        session.close()
        assert not caught.value.retryable
        assert "`offset.metadata.max.bytes`" in caught.value.hint
        ends = list_offsets(properties, "target", range(2), "latest")
        assert sum(ends.values()) <= COUNT + 2  # a marker in each partition
        assert here.commits() == {0: 0}


class Refusing(Spares):
    """Relays that write a report and end: partition 0 is refused, each other one goes on."""

    def take(self) -> subprocess.Popen[str]:
        refused = UnexplainedRefusal("could not commit").to_json()
        away = KafkaFailure("could not write", retryable=True).to_json()
        lines = {
            0: [{"failed": refused, "partition": 0}],
            1: [{"position": asdict(Position(1, 1))}, {"failed": away, "partition": 1}],
        }
        script = f"""
import json, sys
for part in json.loads(sys.stdin.readline())["parts"]:
    for line in {lines!r}[part["partition"]]:
        print(json.dumps(line))
"""
        return subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def test_fault_120_few_tries_though_other_partitions_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_BACK_OFF", (0.05,))
    task = RelayWorld({}, "source", "target", "group", 2, 4).task(b"")
    ranges, log = [SourceRange(0, 0), SourceRange(1, 0)], tmp_path / "log"
    running = RelayPool(task, ranges, log, spares=Refusing(log))
    running.start()
    with pytest.raises(UnexplainedRefusal, match=f"it went {pool.REFUSALS} times") as caught:
        keep_checking(running)
    running.kill()
    assert not caught.value.retryable
    assert running.positions == {1: Position(1, 1)}


SOON = 30.0  # a call of the client alone is given 60


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayWorld]:
    """A relay whose password is wrong."""
    with start_secured(tmp_path_factory.mktemp("secured")) as secured:
        yield RelayWorld(secured.login("admin", "wrong"), "source", "target", "group", 1, 2)


def test_fault_173_a_refused_login_ends_a_relay_at_once(
    stranger: RelayWorld, engine: RelayEngine
) -> None:
    began = time.monotonic()
    with pytest.raises(LoginRefused, match="refused the login of user admin"):
        relay(engine, stranger.task(b""), [SourceRange(0, 0)])
    assert time.monotonic() - began < SOON


def test_fault_173_a_refused_login_ends_the_run_at_once(
    stranger: RelayWorld, engine: RelayEngine, tmp_path: Path
) -> None:
    began = time.monotonic()
    with pool_of(stranger.task(b""), [SourceRange(0, 0)], tmp_path, engine=engine.name) as running:
        running.start()
        with pytest.raises(LoginRefused):
            keep_checking(running)
    assert time.monotonic() - began < SOON


def test_fault_173_a_refused_login_fences_nobody(stranger: RelayWorld) -> None:
    began = time.monotonic()
    with pytest.raises(LoginRefused):
        fence_relays(RECORD, stranger.task(b""), [0, 1], ends=True)
    assert time.monotonic() - began < SOON
