"""`backlogctl consumers`: the stream's own consumers, started, seen and stopped by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backlogctl.errors import Refused, UsageError
from backlogctl.fanout.launchers import Role
from backlogctl.replay.consumers.fleet import fleet_of, launcher_of
from backlogctl.replay.consumers.members import start_consumers
from backlogctl.values import RecoveryState
from tests.fanout.launchers.fleets import no_stop
from tests.kafka_tools import join, wait_until
from tests.replay.makers import open_desk
from tests.replay.shop import Shop

SERVICE = """\
import os, signal
from confluent_kafka import Consumer
ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
consumer = Consumer({
    "bootstrap.servers": os.environ["BACKLOG_BOOTSTRAP_SERVERS"],
    "group.id": os.environ["BACKLOG_GROUP"],
    "client.id": "order-service",
})
consumer.subscribe([os.environ["BACKLOG_TOPIC"]])
while not ending:
    consumer.poll(0.05)
consumer.close()
"""


def sleeping(**changes: Any) -> dict[str, Any]:
    stream = {"cluster": "main", "topic": "orders", "group": "service"}
    consumers = {"launcher": "process", "command": ["sleep", "600"], "replicas": 2}
    return {"streams": {"orders": {**stream, "consumers": {**consumers, **changes}}}}


@pytest.fixture
def service(empty_shop: Shop) -> Iterator[Shop]:
    """A shop whose order service is started by the tool."""
    program = empty_shop.directory / "service.py"
    program.write_text(SERVICE)
    path = empty_shop.directory / "backlog.yaml"
    document = json.loads(path.read_text())
    command = [sys.executable, str(program)]
    section = {"launcher": "process", "command": command, "replicas": 2, "stop_within": "60s"}
    document["streams"]["orders"]["consumers"] = section
    path.write_text(json.dumps(document))
    yield empty_shop
    empty_shop.run("consumers", "stop", "orders", "--json")


def test_started_seen_and_stopped(service: Shop) -> None:
    """They outlive the command; a member that is not ours is named."""
    started = service.run("consumers", "start", "orders", "--json").document
    assert (started["running"], started["replicas"], started["launcher"]) == (2, 2, "process")

    def see() -> dict[str, Any]:
        return service.run("--json", "consumers", "status", "orders").document

    wait_until(lambda: len(see()["members"]) == 2, 150, "both are members")
    seen = see()
    assert seen["running"] == 2
    assert {member["client_id"] for member in seen["members"]} == {"order-service"}
    pids = [consumer["pid"] for consumer in seen["consumers"]]
    again = service.run("consumers", "start", "orders", "--json").document
    assert [consumer["pid"] for consumer in again["consumers"]] == pids

    shown = service.run("consumers", "status", "orders").out
    assert "process" in shown
    assert str(pids[0]) in shown

    other = join(service.properties, service.group, service.topic, client_id="somebody-else")
    try:
        stopped = service.run("consumers", "stop", "orders", "--json")
    finally:
        other.close()
    assert stopped.document["running"] == 0
    assert [member["client_id"] for member in stopped.document["members"]] == ["somebody-else"]
    assert "the group still has 1 member: somebody-else at" in stopped.err
    quiet = service.run("consumers", "stop", "orders")
    assert "still has" not in quiet.err


def test_a_stream_without_the_section_says_so(tmp_path: Path) -> None:
    workspace = open_desk(tmp_path)
    with pytest.raises(UsageError, match="`consumers` section"):
        launcher_of(workspace, workspace.config.stream("orders"), print)


@pytest.mark.parametrize("state", ["approved", "running", "paused", "failed"])
def test_a_start_is_refused_while_an_expansion_has_stopped_them(
    tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = open_desk(tmp_path, **sleeping())
    stream = workspace.config.stream("orders")

    class Found:
        id, kind, stops_consumers = "r-1", "expand", True

        def __init__(self) -> None:
            self.state = RecoveryState(state)

    def find(*, stream: str, states: tuple[RecoveryState, ...]) -> list[Found]:
        assert stream == "orders"
        return [found for found in [Found()] if found.state in states]

    monkeypatch.setattr(workspace.ledger.recoveries, "list", find)
    with pytest.raises(Refused, match=f"r-1 is {state}"):
        start_consumers(workspace, stream, print)
    assert not fleet_of(workspace, stream, Role.ORIGINAL).directory.exists()


def test_without_a_cluster_the_processes_are_started_and_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backlogctl.kafka.groups.DEFAULT_SECONDS", 1.0)
    workspace = open_desk(tmp_path, **sleeping())
    stream = workspace.config.stream("orders")
    try:
        told = start_consumers(workspace, stream, print)
    finally:
        fleet = fleet_of(workspace, stream, Role.ORIGINAL)
        launcher_of(workspace, stream, print).stop(fleet, no_stop)
    assert (told["running"], told["group_state"]) == (2, None)
    assert "127.0.0.1:1" in told["problem"]


def test_a_fleet_has_a_directory_of_its_own(tmp_path: Path) -> None:
    workspace = open_desk(tmp_path, **sleeping())
    stream = workspace.config.stream("orders")
    original = fleet_of(workspace, stream, Role.ORIGINAL)
    assert original.directory == tmp_path / "staging" / "consumers" / "orders" / "original"
    assert (original.topic, original.group) == ("orders", "service")
    assert original.bootstrap_servers == "127.0.0.1:1"
    other = fleet_of(
        workspace, stream, Role.RECOVERY, "r-1", topic="t.recovery", group="g.recovery"
    )
    assert other.directory == tmp_path / "staging" / "consumers" / "orders" / "r-1"
    assert (other.topic, other.group, other.recovery_id) == ("t.recovery", "g.recovery", "r-1")
    for role, recovery_id in ((Role.RECOVERY, ""), (Role.ORIGINAL, "r-1")):
        with pytest.raises(ValueError, match="recovery id"):
            fleet_of(workspace, stream, role, recovery_id)
