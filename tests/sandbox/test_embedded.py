"""The embedded Kafka and its jars: it keeps its data, and never outlives its owner."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from backlogctl.errors import EmbeddedError
from backlogctl.jars import cache_dir, ensure_jars, find_java, read_jars
from backlogctl.sandbox.embedded import (
    EmbeddedKafka,
    broker_state,
    ensure_kafka_jars,
    make_class_archive,
    start_broker,
    stop_broker,
)
from backlogctl.sandbox.secured import HOST, free_port
from backlogctl.spark_backfill.spark.session import SPARK_JARS, ensure_spark_jars
from tests.kit.kafka import wait_until
from tests.kit.processes import is_running, start_backlogctl


def _gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _create(bootstrap: str, name: str, copies: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, copies)])[name].result(90)


def _produce(bootstrap: str, name: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    failures: list[object] = []
    producer.produce(name, value, key=b"key", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(90) == 0
    assert failures == [None]


def _values(bootstrap: str, name: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(name, 0, 0)])
    messages = consumer.consume(count, timeout=90)
    consumer.close()
    return [message.value() for message in messages]


@pytest.mark.kafka
def test_data_survive_restarts_and_a_port_that_is_taken(tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path) as kafka:
        before = kafka.bootstrap
        _create(before, "orders")
        _produce(before, "orders", b"one")
        for end, value in ((kafka.stop, b"two"), (kafka.kill, b"three")):
            old = kafka.pid
            end()
            assert not is_running(old)
            kafka.restart()
            assert kafka.bootstrap == before
            assert kafka.pid != old
            _produce(kafka.bootstrap, "orders", value)
        last = kafka.pid
    assert not is_running(last)
    port = int(before.rpartition(":")[2])
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind((HOST, port))
        squatter.listen()
        with EmbeddedKafka.start(tmp_path) as kafka:
            assert not kafka.bootstrap.endswith(f":{port}")
            assert _values(kafka.bootstrap, "orders", 3) == [b"one", b"two", b"three"]


@pytest.mark.kafka
def test_a_broker_starts_from_the_classes_that_were_kept(tmp_path: Path) -> None:
    make_class_archive()
    loaded = tmp_path / "classes.log"
    with EmbeddedKafka.start(tmp_path / "kafka", jvm=(f"-Xlog:class+load:file={loaded}",)):
        sources = loaded.read_text()
    assert sources.count("shared objects file (top)") > 5000


@pytest.mark.kafka
def test_three_brokers_lose_each_in_turn(tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path, brokers=3, heap="256m") as kafka:
        assert len(set(kafka.pids)) == 3
        _create(kafka.bootstrap, "orders", copies=3)
        for number in (1, 2, 3):
            kafka.kill(number)
            _produce(kafka.bootstrap, "orders", b"%d" % number)
            kafka.restart(number)
        assert _values(kafka.bootstrap, "orders", 3) == [b"1", b"2", b"3"]


@pytest.mark.kafka
def test_the_broker_dies_with_a_killed_owner(tmp_path: Path) -> None:
    code = (
        "import sys, time; from backlogctl.sandbox.embedded import EmbeddedKafka\n"
        "print(EmbeddedKafka.start(sys.argv[1]).pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert is_running(pid)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert _gone_within(pid, 90)


@pytest.mark.kafka
@pytest.mark.parametrize("brokers", [1, 3])
def test_a_detached_broker_outlives_its_starter(tmp_path: Path, brokers: int) -> None:
    code = (
        "import sys; from backlogctl.sandbox.embedded import start_broker\n"
        "print(*start_broker(sys.argv[1], brokers=int(sys.argv[2]), heap='256m').pids)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(brokers)],
        capture_output=True,
        text=True,
        check=True,
    )
    try:
        state = broker_state(tmp_path)
        assert state is not None
        assert state.running
        assert state.pids == tuple(map(int, told.stdout.split()))
        assert len(state.pids) == brokers
        admin = AdminClient({"bootstrap.servers": state.bootstrap})
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(60)

        def count_replicas() -> list[int]:
            found = admin.list_topics("orders", timeout=60).topics["orders"]
            return [len(partition.replicas) for partition in found.partitions.values()]

        wait_until(lambda: count_replicas() == [brokers], 60.0, "as many replicas as brokers")
        assert start_broker(tmp_path, brokers=brokers) == state
        with pytest.raises(EmbeddedError, match="data of"):
            start_broker(tmp_path, brokers=4)
        # The same directory, said in another way.
        (tmp_path / "link").symlink_to(tmp_path)
        assert broker_state(tmp_path / "broker-1" / "..") == state
        assert start_broker(tmp_path / "link", brokers=brokers) == state
    finally:
        assert stop_broker(tmp_path)
    assert not any(map(is_running, state.pids))
    assert broker_state(tmp_path) is None
    assert not stop_broker(tmp_path)


def _call_broker(verb: str, directory: Path, *words: str) -> str:
    process = start_backlogctl(directory, "broker", verb, "--dir", str(directory), *words)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return " ".join(out.split())


@pytest.mark.kafka
@pytest.mark.parametrize("dead", [(2,), (1, 3)])
def test_a_second_start_starts_only_what_is_dead(tmp_path: Path, dead: tuple[int, ...]) -> None:
    """The others go on with their pids, and all with their addresses and data."""
    first = json.loads(_call_broker("start", tmp_path, "--brokers", "3", "--json"))
    try:
        assert first["started"] == [1, 2, 3]
        state = broker_state(tmp_path)
        assert state is not None
        _create(state.bootstrap, "orders", copies=3)
        _produce(state.bootstrap, "orders", b"before")
        for number in dead:
            os.kill(state.pids[number - 1], signal.SIGKILL)
            assert _gone_within(state.pids[number - 1], 60)
        alive = f"{3 - len(dead)} of 3 brokers run"
        assert f"{alive}; `backlogctl broker start" in _call_broker("status", tmp_path)
        port = [] if 1 in dead else ["--port", str(free_port())]  # nobody needs it
        said = _call_broker("start", tmp_path, "--brokers", "3", *port)
        named = ", ".join(f"broker {number}" for number in dead)
        assert f"started again: {named}; the others went on" in said
        after = broker_state(tmp_path)
        assert after is not None
        assert (after.running, after.bootstrap) == (True, state.bootstrap)
        pids = enumerate(zip(state.pids, after.pids, strict=True), 1)
        assert tuple(number for number, (old, new) in pids if old != new) == dead
        again = _call_broker("start", tmp_path, "--brokers", "3", "--json")
        assert json.loads(again)["started"] == []
        _produce(state.bootstrap, "orders", b"after")
        assert _values(state.bootstrap, "orders", 2) == [b"before", b"after"]
    finally:
        stop_broker(tmp_path)


@pytest.mark.kafka
def test_a_process_that_took_the_pid_over_is_not_stopped(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        (tmp_path / "broker.json").write_text(f'{{"pids": [{other.pid}], "bootstrap": "{HOST}:1"}}')
        assert not stop_broker(tmp_path)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.kafka
def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"num\.io\.threads"):
        EmbeddedKafka.start(tmp_path, properties={"num.io.threads": "many"})


@pytest.mark.kafka
def test_a_taken_port_that_was_asked_for_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as squatter:
        squatter.bind((HOST, 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        with pytest.raises(EmbeddedError, match=r"in use|BindException"):
            EmbeddedKafka.start(tmp_path, port=port)


@pytest.mark.kafka
def test_free_ports_are_outside_the_range_of_outgoing_connections() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert all(not low <= free_port() <= high for _ in range(50))


@pytest.mark.kafka
def test_free_ports_do_not_follow_a_seed() -> None:
    """Two processes with the same one would choose the same ports."""
    found = []
    state = random.getstate()
    for _ in range(2):
        random.seed(7)
        found.append([free_port() for _ in range(5)])
    random.setstate(state)
    assert found[0] != found[1]


@pytest.mark.kafka
def test_a_topic_of_the_shared_broker_is_each_tests_own(
    kafka: EmbeddedKafka, topic: Callable[..., str]
) -> None:
    first, second = topic(), topic(partitions=1, config={"cleanup.policy": "compact"})
    assert first != second
    _produce(kafka.bootstrap, second, b"one")
    assert _values(kafka.bootstrap, second, 1) == [b"one"]


@pytest.mark.kafka
def test_the_jars_hold_kafka_and_the_connector() -> None:
    names = " ".join(jar.name for jar in ensure_kafka_jars())
    for wanted in ("kafka_2.13-4.3.1", "kafka-clients", "slf4j-simple", "snappy-java", "zstd-jni"):
        assert wanted in names
    assert [jar.name for jar in ensure_spark_jars()] == [jar.name for jar in read_jars(SPARK_JARS)]
    # Cached: nothing is told, because nothing is fetched.
    told: list[str] = []
    assert ensure_kafka_jars(told.append)
    assert told == []


def test_an_unreachable_repository_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKLOG_CACHE", str(tmp_path))
    monkeypatch.setenv("BACKLOG_MAVEN", "http://127.0.0.1:9/")
    told: list[str] = []
    with pytest.raises(EmbeddedError, match="could not be fetched") as caught:
        ensure_spark_jars(told.append)
    assert "BACKLOG_MAVEN" in caught.value.hint
    assert caught.value.retryable
    assert len(told) == 1
    assert [path.name for path in (tmp_path / "jars").iterdir()] == [".spark.lock"]


def make_repository(place: Path) -> str:
    """A Maven repository of what this machine has fetched already: the network may be away."""
    kept = ensure_spark_jars()[0].parent
    for jar in read_jars(SPARK_JARS):
        (place / jar.path).parent.mkdir(parents=True)
        (place / jar.path).symlink_to(kept / jar.name)
    return f"{place.as_uri()}/"


@pytest.mark.kafka
def test_two_processes_may_fetch_at_the_same_time(tmp_path: Path) -> None:
    code = "from backlogctl.spark_backfill.spark.session import ensure_spark_jars; print(len(ensure_spark_jars()))"
    settings = (f"BACKLOG_CACHE={tmp_path}", f"BACKLOG_MAVEN={make_repository(tmp_path / 'maven')}")
    command = ["env", *settings, sys.executable, "-c", code]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=400) for process in both]
    jars = str(len(read_jars(SPARK_JARS)))
    assert [out.strip() for out, _ in answers] == [jars, jars]
    assert sum(f"fetching {jars} jars" in err for _, err in answers) == 1


def test_another_file_than_the_listed_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "one.jars"
    listed.write_text(f"a.b:c:1.0 {'0' * 64} 3\n")
    (jar,) = read_jars(listed)
    (tmp_path / "maven" / jar.path).parent.mkdir(parents=True)
    (tmp_path / "maven" / jar.path).write_bytes(b"bad")
    monkeypatch.setenv("BACKLOG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BACKLOG_MAVEN", (tmp_path / "maven").as_uri())
    with pytest.raises(EmbeddedError, match="another file") as caught:
        ensure_jars(listed)
    assert caught.value.subject.endswith("/a/b/c/1.0/c-1.0.jar")
    assert [path.name for path in (tmp_path / "cache" / "jars").iterdir()] == [".one.lock"]


def test_a_missing_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EmbeddedError, match="no Java") as caught:
        find_java()
    assert "17 or 21" in caught.value.hint


def test_an_old_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EmbeddedError, match="too old"):
        find_java()


def test_the_cache_is_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BACKLOG_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "backlogctl"
    monkeypatch.setenv("BACKLOG_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
