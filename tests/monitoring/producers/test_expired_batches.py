"""What clients leave in the log when batches expire: real ones, on a broker that hangs or dies.

The findings claim no more than what is seen here.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.kafka.raw_client import RawClient
from backlogctl.monitoring.producers.findings import SuspicionCode, find_suspicions
from backlogctl.monitoring.producers.profile import BreakKind, LogProfile
from backlogctl.monitoring.producers.reader import profile_topic
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.kit.java import write_script
from tests.kit.kafka import properties_of, wait_until
from tests.kit.transactions import open_raw, produce_raw
from tests.monitoring.producers.makers import send

_PLACES = [0, 1] * 10
# Without the socket's, a message on the way fails only when its broker answers again.
_EXPIRE = {"linger.ms": 0, "message.timeout.ms": 2_000, "socket.timeout.ms": 1_500}
# Tried more than once before it expires, on a busy machine too: what expires on its first way
# keeps its epoch.
_JAVA = (
    "delivery.timeout.ms=6000",
    "request.timeout.ms=1000",
    "linger.ms=5",
    "reconnect.backoff.max.ms=200",
    "retry.backoff.max.ms=200",
    # Without any broker it would forget the topic, and block what sends (KIP-899).
    "metadata.recovery.strategy=none",
)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka.start(tmp_path_factory.mktemp("own"), heap="384m") as kafka:
        yield kafka


@pytest.fixture
def orders(own: EmbeddedKafka, unique: str) -> str:
    name = f"orders-{unique}"
    create_topic(make_admin(properties_of(own.bootstrap)), name, partitions=2, replication=1)
    return name


def check_epoch(profile: LogProfile) -> None:
    """One suspicion, of one producer that raised its epoch, and no other."""
    (found,) = find_suspicions(profile)
    assert found.code is SuspicionCode.EPOCH_RESTARTED
    assert "may be missing" in found.sentence
    assert {one.kind for one in profile.breaks} == {BreakKind.EPOCH}
    assert all(one.after.sequence == 0 for one in profile.breaks)
    assert found.from_time is not None
    assert found.to_time is not None
    assert found.to_time > found.from_time


@contextmanager
def unanswered(kafka: EmbeddedKafka, *, hangs: bool) -> Iterator[None]:
    """Meanwhile the broker hangs, or is dead."""
    if hangs:
        os.kill(kafka.pid, signal.SIGSTOP)
    else:
        kafka.kill()
    try:
        yield
    finally:
        if hangs:
            os.kill(kafka.pid, signal.SIGCONT)
        else:
            kafka.restart()


@pytest.mark.parametrize("hangs", [True, False])
def test_librdkafka_raises_its_epoch_for_batches_that_expire(
    own: EmbeddedKafka, orders: str, hangs: bool
) -> None:
    """Where it hangs some that failed are there: they were on the way. Else none of them is."""
    properties = properties_of(own.bootstrap)
    producer = make_producer(properties, _EXPIRE)
    failed: list[int] = []
    send(producer, orders, _PLACES, failed)
    assert producer.flush(30) == 0
    with unanswered(own, hangs=hangs):
        send(producer, orders, _PLACES, failed)
        wait_until(lambda: producer.poll(0.1) is not None and len(failed) == 20, 30)
    again: list[int] = []
    send(producer, orders, _PLACES, again)
    assert producer.flush(60) == 0
    profile = profile_topic(properties, orders)
    check_epoch(profile)
    if hangs:
        assert not again
        assert 40 <= profile.messages <= 60
    else:
        assert profile.messages == 40 - len(again)


def test_a_broker_that_dies_and_comes_back_in_time_is_not_suspect(
    own: EmbeddedKafka, orders: str
) -> None:
    properties = properties_of(own.bootstrap)
    producer = make_producer(properties, {"linger.ms": 0})
    send(producer, orders, _PLACES)
    assert producer.flush(30) == 0
    with unanswered(own, hangs=False):
        send(producer, orders, _PLACES)
    send(producer, orders, _PLACES)
    assert producer.flush(90) == 0
    profile = profile_topic(properties, orders)
    assert profile.messages == 60
    assert find_suspicions(profile) == ()
    assert max(one.leader_epochs for one in profile.partitions) == 2


@pytest.mark.parametrize("hangs", [True, False])
def test_the_java_client(own: EmbeddedKafka, orders: str, tmp_path: Path, hangs: bool) -> None:
    """It raises its epoch for batches that were on the way. What expires unsent leaves no trace."""
    properties = properties_of(own.bootstrap)
    script = write_script(tmp_path / "producer.sh", "ConsoleProducer")
    settings = [part for one in _JAVA for part in ("--command-property", one)]
    command = [str(script), "--bootstrap-server", own.bootstrap, "--topic", orders, *settings]
    command += ["--reader-property", "parse.key=true"]
    errors = tmp_path / "errors.log"

    def is_at(count: int) -> bool:
        return sum(list_offsets(properties, orders, range(2), "latest").values()) >= count

    with (
        errors.open("w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log) as java,
    ):
        assert java.stdin is not None
        stdin = java.stdin

        def put() -> None:
            stdin.write(b"".join(b"%d\tvalue\n" % number for number in range(20)))
            stdin.flush()

        put()
        wait_until(lambda: is_at(20), 60)
        with unanswered(own, hangs=hangs):
            put()
            wait_until(lambda: errors.read_text().count("TimeoutException") >= 20)
        put()
        wait_until(lambda: is_at(60 if hangs else 40), 60)
        stdin.close()
        java.wait(60)
    profile = profile_topic(properties, orders)
    if hangs:
        # All of those that it says have failed are there.
        assert profile.messages == 60
        check_epoch(profile)
    else:
        assert profile.messages == 40
        assert find_suspicions(profile) == ()


# A broker that has forgotten a producer takes any sequence number of it: a real jump in a log.
#
# The client numbers its batches itself here, as one would whose batches in between were lost.

_OUT_OF_ORDER = 45
_FORGETS = {
    "producer.id.expiration.ms": "500",
    "producer.id.expiration.check.interval.ms": "100",
}


def test_a_jump_that_a_broker_took(tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path, heap="384m", properties=_FORGETS) as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(make_admin(properties), "orders", partitions=1, replication=1)
        with open_raw(properties) as client:
            refusals: list[int] = []

            def is_taken(sequence: int) -> bool:
                refusals.append(_produce(client, 77, sequence))
                assert refusals[-1] in (0, _OUT_OF_ORDER)
                return refusals[-1] == 0

            assert is_taken(0)
            assert is_taken(5)
            assert not is_taken(40), "a broker that knows the producer refuses a jump"
            wait_until(lambda: is_taken(40), 30, "the broker forgets the producer")
            wait_until(lambda: is_taken(0), 30, "and once more")
        profile = profile_topic(properties, "orders")
    assert profile.messages == 20
    jump, restart = find_suspicions(profile)
    assert jump.code is restart.code is SuspicionCode.SEQUENCE_JUMP
    assert jump.producer_id == 77
    assert "goes from 9 to 40, without 30" in jump.sentence
    assert "begins again at 0 after 44" in restart.sentence


def _produce(client: RawClient, producer: int, sequence: int) -> int:
    """Five messages; returns the broker's error code."""
    from kafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(2, 0, False, producer, 0, sequence, 100_000)
    for offset in range(5):
        builder.append(offset, None, None, b"value", [])
    return produce_raw(client, "orders", builder)
