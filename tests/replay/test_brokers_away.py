"""Brokers that are not there are told within ten seconds, each with what was tried; a run that
waits says it, too."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from backlogctl.clock import Deadline
from backlogctl.config import Stream
from backlogctl.fanout.disk import PartitionBacklog, estimate_copy
from backlogctl.kafka.admin import create_topic, set_group_offsets
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.coordinator import describe_group_states
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.kafka.room import RoomWatch
from backlogctl.replay.engine.brokers import BrokerWatch
from backlogctl.replay.observe.stream import _waits_for
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import free_port
from backlogctl.values import DiskFloor
from tests.kit.kafka import (
    find_coordinator,
    forward,
    leave_at,
    properties_of,
    publish,
    set_offsets_raw,
    wait_until,
)
from tests.kit.refusing import start_refusing
from tests.kit.shop import call_main

SOON = 20.0
LATE = 60.0
CONSUMERS = {"launcher": "manual", "replicas": 1}


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def write_config(directory: Path, bootstrap: str, **streams: Any) -> None:
    stream = {"cluster": "main", "topic": "orders", "group": "service", "consumers": CONSUMERS}
    document = {
        "ledger": f"sqlite:///{directory}/ledger.db",
        "clusters": {"main": properties_of(bootstrap)},
        "streams": {"orders": stream, **streams},
    }
    (directory / "backlog.yaml").write_text(json.dumps(document))


@pytest.mark.parametrize(
    "words",
    [
        ("status", "orders"),
        ("doctor",),
        ("plan", "expand", "orders"),
        ("watch", "--rounds", "1"),
    ],
    ids=" ".join,
)
def test_a_cluster_that_is_away_is_told_soon(
    silent: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    write_config(tmp_path, f"127.0.0.1:1,nowhere.invalid:9092,{silent}")
    began = time.monotonic()
    code, out, err = call_main(words, tmp_path, {})
    took = time.monotonic() - began
    assert code == (2 if words[0] == "doctor" else 1)
    said = " ".join((out + err).split())
    for text in (
        "127.0.0.1:1 (connection refused)",
        "nowhere.invalid:9092 (there is no such host)",
        f"{silent} (takes connections)",
    ):
        assert text in said
    assert took < SOON


def test_a_group_of_no_stream_too(tmp_path: Path) -> None:
    began = time.monotonic()
    words = ("status", "--bootstrap", "127.0.0.1:1", "--group", "service")
    code, _, err = call_main(words, tmp_path, {})
    assert code == 1
    assert "127.0.0.1:1 (connection refused)" in " ".join(err.split())
    assert time.monotonic() - began < SOON


def test_brokers_that_are_not_where_the_cluster_says(tmp_path: Path) -> None:
    """The usual trap of containers: the bootstrap answers, and names an address of its own."""
    port = free_port()
    own = {"advertised.listeners": f"PLAINTEXT://127.0.0.2:{port}"}
    with ExitStack() as stack:
        with forward("127.0.0.2", ("127.0.0.1", port), port):
            started = EmbeddedKafka.start(tmp_path / "kafka", properties=own, port=port)
            kafka = stack.enter_context(started)
        write_config(tmp_path, kafka.bootstrap)
        began = time.monotonic()
        code, _, err = call_main(("status", "orders"), tmp_path, {})
        took = time.monotonic() - began
    assert code == 1
    said = " ".join(err.split())
    assert f"{kafka.bootstrap} answered, and names brokers that cannot be reached" in said
    assert f"1 at 127.0.0.2:{port} (connection refused)" in said
    assert "advertised.listeners" in said
    assert took < SOON


def test_an_answer_that_names_no_broker_is_not_taken_for_all_there(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    with start_refusing(kafka.bootstrap) as proxy:
        write_config(tmp_path, proxy.bootstrap)
        proxy.refusals.nameless = True
        for words in (("status", "orders"), ("doctor", "orders"), ("plan", "expand", "orders")):
            began = time.monotonic()
            code, out, err = call_main(words, tmp_path, {})
            assert time.monotonic() - began < SOON
            assert code == (2 if words[0] == "doctor" else 1)
            said = " ".join((out + err).replace("│", " ").split())
            assert f"{proxy.bootstrap} answered, and names no broker" in said


def test_one_broker_of_three(tmp_path: Path) -> None:
    """Who is away is told beside what the others say, though the cluster does not know it yet."""
    own = {"broker.session.timeout.ms": "120000"}
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=3, properties=own) as kafka:
        properties = properties_of(kafka.bootstrap)
        admin = make_admin(properties)
        for name, broker in (("orders", 3), ("bills", 1)):
            new = NewTopic(name, 1, replica_assignment=[[broker]])
            admin.create_topics([new])[name].result(60)
        publish(properties, "orders", {0: 9})
        set_offsets_raw(properties, "service", "orders", {0: 4})
        write_config(tmp_path, kafka.bootstrap)
        gone = kafka.bootstrap.split(",")[2]
        groups = [f"service-{number}" for number in range(20)]
        at = {name: _leave(properties, name) for name in groups}
        kafka.kill(3)
        waits = {
            (topic, at[name] == 3): _waits_for(
                properties,
                Stream(name="x", cluster="main", topic=topic, group=name),
                [f"3 at {gone}"],
            )
            for topic in ("orders", "bills")
            for name in groups
        }
        assert waits == {
            ("orders", True): True,
            ("orders", False): True,
            ("bills", True): True,
            ("bills", False): False,
        }
        for words in (("status",), ("status", "orders")):
            began = time.monotonic()
            code, out, err = call_main(words, tmp_path, {})
            assert time.monotonic() - began < SOON
            assert code == 1
            said = " ".join((out + err).split())
            assert f"broker 3 at {gone} cannot be reached: connection refused" in said


def test_fault_177_one_silent_broker_is_not_waited_for(tmp_path: Path) -> None:
    """One of three hangs, then is gone; it leads nothing of the stream, and the others do not know
    of it yet. What they know is told as ever."""
    own = {"broker.session.timeout.ms": "120000", "default.replication.factor": "2"}
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=3, heap="256m", properties=own) as kafka:
        properties = properties_of(kafka.bootstrap)
        admin = make_admin(properties)
        new = NewTopic("orders", 1, replica_assignment=[[1, 2]])
        admin.create_topics([new])["orders"].result(60)
        publish(properties, "orders", {0: 9})
        groups = (f"service-{number}" for number in range(20))
        group = next(one for one in groups if _leave(properties, one) != 3)
        stream = {"cluster": "main", "topic": "orders", "group": group, "consumers": CONSUMERS}
        write_config(tmp_path, kafka.bootstrap, orders=stream)
        asked = (("status", "orders"), ("gaps", "orders"))
        assert [call_main(words, tmp_path, {})[0] for words in asked] == [0, 0]
        os.kill(kafka.pids[2], signal.SIGSTOP)
        try:
            frozen = {words: _time(words, tmp_path) for words in asked}
        finally:
            os.kill(kafka.pids[2], signal.SIGCONT)
        kafka.kill(3)
        dead = {words: _time(words, tmp_path) for words in asked}
        kafka.kill()  # it would wait for the one that is gone
    assert max(*frozen.values(), *dead.values()) < SOON, (frozen, dead)


def test_fault_177_disks_of_the_others_are_known(tmp_path: Path) -> None:
    """One of three hangs: what it holds is unknown, by its name; what the others hold is not."""
    own = {"broker.session.timeout.ms": "120000"}
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=3, heap="256m", properties=own) as kafka:
        properties = properties_of(kafka.bootstrap)
        admin = make_admin(properties)
        for name, brokers in (("orders", [1, 2]), ("bills", [3, 1])):
            new = NewTopic(name, 1, replica_assignment=[brokers])
            admin.create_topics([new])[name].result(60)
        publish(properties, "orders", {0: 9})
        floor = DiskFloor(0, "B")
        watches = {name: RoomWatch(properties, name, floor) for name in ("orders", "bills")}
        assert [watch.look({}) for watch in watches.values()] == ["", ""]
        os.kill(kafka.pids[2], signal.SIGSTOP)
        try:
            began = time.monotonic()
            found = read_log_dirs(properties, "orders", Deadline(15.0))
            took = time.monotonic() - began
            told = {name: watch.look({}) for name, watch in watches.items()}
        finally:
            os.kill(kafka.pids[2], signal.SIGCONT)
        assert [one.broker for one in found.brokers or ()] == [1, 2]
        assert found.silent == (3,)
        assert "broker 3" in found.reason
        assert found.replica_bytes.keys() == {(1, 0), (2, 0)}
        assert took < 12.0
        # What is held goes by who holds the topic.
        assert told["orders"] == ""
        assert "not known: the disks of broker 3 cannot be read: it did not answer" in told["bills"]
        # Unknown is what is unknown: the others may be too full, and cannot be enough alone.
        needs = (PartitionBacklog(0, 9, 0, 9),)
        assert estimate_copy(found, needs, replication=2).enough is None
        full = DiskFloor(100, "%")
        assert estimate_copy(found, needs, replication=2, floor=full).enough is False
        kafka.kill(3)
        wait_until(lambda: _is_refused(properties), what="the one that is gone is told, too")
        kafka.kill()


def _is_refused(properties: dict[str, str]) -> bool:
    found = read_log_dirs(properties, "orders", Deadline(15.0))
    assert {one.broker for one in found.brokers or ()} == {1, 2}
    return found.silent == (3,) and "did not answer" not in found.reason


def test_fault_184_a_coordinator_that_hangs_hides_no_other_ones_groups(tmp_path: Path) -> None:
    own = {"broker.session.timeout.ms": "120000", "default.replication.factor": "2"}
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=3, heap="256m", properties=own) as kafka:
        admin = make_admin(properties_of(kafka.bootstrap))
        create_topic(admin, "orders", partitions=1)
        groups = [f"service-{number}" for number in range(12)]
        for group in groups:
            set_group_offsets(admin, group, "orders", {0: 0})
        of = {group: find_coordinator(admin.properties, group) for group in groups}
        first = of[groups[0]]
        others = [at for number, at in enumerate(kafka.bootstrap.split(","), 1) if number != first]
        os.kill(kafka.pids[first - 1], signal.SIGSTOP)
        try:
            there = make_admin(properties_of(",".join(others)))
            found = describe_group_states(there, groups, Deadline(12.0))
        finally:
            os.kill(kafka.pids[first - 1], signal.SIGCONT)
    expected = {group for group in groups if of[group] != first}
    assert expected
    assert found.keys() == expected


def _leave(properties: dict[str, str], group: str) -> int:
    """The group stands in the topic; who coordinates it."""
    leave_at(properties, group, "orders", {0: 4})
    return find_coordinator(properties, group)


def _time(words: tuple[str, ...], directory: Path) -> float:
    began = time.monotonic()
    code, out, err = call_main(words, directory, {})
    assert code == 0, out + err
    return time.monotonic() - began


def test_fault_128_a_run_hears_who_is_away_and_who_is_back(tmp_path: Path) -> None:
    """One of three that is killed, and all that do not answer."""
    told: list[str] = []

    def hear(text: str) -> None:
        wait_until(lambda: any(text in one for one in told), LATE, text)
        told.clear()

    with EmbeddedKafka.start(tmp_path / "kafka", brokers=3) as kafka:
        places = kafka.bootstrap.split(",")
        with BrokerWatch(properties_of(kafka.bootstrap), told.append) as watch:
            wait_until(lambda: len(watch._known) == 3, what="all are known")
            kafka.kill(3)
            hear(f"broker 3 at {places[2]} is away since")
            kafka.restart(3)
            hear(f"broker 3 at {places[2]} is back, after")
            for pid in kafka.pids:
                os.kill(pid, signal.SIGSTOP)
            hear(f"broker 2 at {places[1]} is away since")
            for pid in kafka.pids:
                os.kill(pid, signal.SIGCONT)
            hear(f"broker 2 at {places[1]} is back, after")


def test_a_cluster_that_nobody_ever_reached_is_told_by_its_address(silent: str) -> None:
    told: list[str] = []
    with BrokerWatch(properties_of(f"127.0.0.1:1,{silent}"), told.append):
        wait_until(lambda: told, LATE, "it is told")
    assert told[0].startswith("broker 127.0.0.1:1 is away since")
    assert "connection refused" in told[0]
