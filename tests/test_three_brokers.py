"""Fault 176: what works on three brokers goes on while leaders, coordinators and controllers move."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from backlogctl.clock import Deadline
from backlogctl.errors import ClusterUnreachable, KafkaFailure
from backlogctl.fanout.relay import guard, partition
from backlogctl.fanout.relay.interface import (
    RECORD,
    WIRE,
    SourceRange,
    name_relay_transactional_id,
)
from backlogctl.fanout.relay.session import RelaySession
from backlogctl.fanout.relay.worker import make_relay_engine
from backlogctl.kafka.admin import (
    alter_topic_config,
    create_topic,
    delete_group,
    delete_records,
    delete_topic,
    describe_group_state,
    set_group_offsets,
)
from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.kafka.coordinator import read_all_commits
from backlogctl.kafka.transactions import read_open_transactions
from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets.lag import count_lag
from backlogctl.monitoring.offsets.observation import observe_stream
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.injection.brakes import Brake, CombinedBrakes, InjectionProgress
from backlogctl.spark_backfill.injection.producing import AttemptError, SlotProducer
from backlogctl.spark_backfill.injection.transactional import (
    ChunkMessages,
    TransactionalWriter,
    name_transactional_id,
)
from backlogctl.wire.produce import WireProducer
from tests.crash.scenario import make_scenario
from tests.delivery.kit import FAST, Shop
from tests.fanout.relay.doing import (
    RelayWorld,
    check_copied,
    check_until,
    fill,
    filling,
    relay,
)
from tests.fanout.relay.test_guard import session_of
from tests.kit.disturbing import KINDS, UNCOORDINATED, Cluster, Disturber, disturb
from tests.kit.kafka import StreamStub, commit, set_offsets_raw
from tests.spark_backfill.injection.doing import assert_same_set, inject_here


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("brokers")
    safe = {"default.replication.factor": "3", "min.insync.replicas": "2"}
    with EmbeddedKafka.start(place, brokers=3, heap="256m", properties=safe) as kafka:
        yield Cluster(kafka)


@pytest.fixture
def name(cluster: Cluster) -> str:
    """Of what a test makes; all brokers are there."""
    cluster.await_all()
    return uuid.uuid4().hex[:8]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", [RECORD, WIRE])
def test_fault_176_a_relay(
    cluster: Cluster,
    name: str,
    engine: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In processes, as a run has them: a client that hangs ends its own, not the test's."""
    # A machine that stands still lets a transaction time out more than once.
    monkeypatch.setattr("backlogctl.fanout.relay.session.FENCED_AGAIN_SECONDS", 0.0)
    source, target, group = f"orders-{name}", f"orders-{name}.recovery", f"shop-{name}"
    cluster.make_topic(source, 3)
    cluster.make_topic(target, 9, kind)
    set_offsets_raw(cluster.properties, group, source, dict.fromkeys(range(3), 0))
    world = RelayWorld(cluster.properties, source, target, group, 3, 9)
    first = name_relay_transactional_id("backlog", source, 0)
    stopped = threading.Event()

    def await_transactions(session: RelaySession) -> None:
        """One of each relay, from now on."""
        before = session.positions
        while any(session.positions.get(part) == before.get(part) for part in range(3)):
            if stopped.wait(0.05):
                return

    def disturb_each(session: RelaySession) -> None:
        for step in disturb(cluster, kind, target, {group: "GROUP", first: "TRANSACTION"}):
            await_transactions(session)
            if stopped.is_set():
                return
            step()
        await_transactions(session)

    with (
        ThreadPoolExecutor(1) as beside,
        closing(session_of(world, tmp_path, engine=engine)) as session,
        ExitStack() as ending,
    ):
        ending.callback(stopped.set)
        session.join()
        session.start(lambda: [SourceRange(number, 0) for number in range(3)])
        with filling(cluster.properties, source, 3):
            disturbing = beside.submit(disturb_each, session)
            check_until(session, disturbing.done)
            disturbing.result()
        check_until(session, lambda: world.commits() == world.ends())
        session.stop_relays()
        cluster.await_all(target)
    relayed = sum(position.relayed for position in session.positions.values())
    assert relayed == sum(world.ends().values())
    assert check_copied(world) == []
    assert world.commits() == world.ends()


CHUNKS = 6  # of each slot


class EachWave(Brake):
    """Tells of each wave before it, while the first slot is between two of its transactions."""

    def __init__(self, come_on: Callable[[], object]) -> None:
        self._come_on = come_on

    def look(self, progress: InjectionProgress) -> str:
        if 0 < progress.chunks.get(0, 0) < CHUNKS:
            self._come_on()
        return ""


@pytest.mark.parametrize("kind", KINDS)
def test_fault_176_an_injection(cluster: Cluster, name: str, kind: str, tmp_path: Path) -> None:
    topic = f"orders-{name}"
    cluster.make_topic(topic, 3, kind)
    job = make_scenario(
        cluster.kafka.bootstrap, tmp_path, chunks=CHUNKS, topic=topic, ledger=f"ledger-{name}"
    ).job
    first = name_transactional_id(job.prefix, topic, 0)
    disturber = Disturber(disturb(cluster, kind, topic, {first: "TRANSACTION"}))
    inject_here(job, CombinedBrakes([EachWave(disturber.come_on)]))
    disturber.end(cluster, job.topic)
    assert_same_set(job)


ALONE = {"min.insync.replicas": "1", "retention.ms": "-1"}


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_fault_183_an_injection_ends_while_nobody_leads(
    cluster: Cluster, name: str, outcome: str, tmp_path: Path
) -> None:
    """The coordinator of Kafka 4.3 and 4.4 leaves out the marker of such a partition."""
    topic = f"orders-{name}"
    create_topic(cluster.properties, topic, partitions=1, replication=1, config=ALONE)
    job = make_scenario(
        cluster.kafka.bootstrap, tmp_path, slots=1, chunks=4, topic=topic, ledger=f"ledger-{name}"
    ).job
    ended: list[str] = []

    class Leaderless(TransactionalWriter):
        def _require_newest(self, producer: SlotProducer, sent: ChunkMessages) -> None:
            ended.append(outcome)
            if len(ended) == 2:
                cluster.let_leaderless(topic)
            # The same producer's next end, an abort, must not be that of what it committed.
            if len(ended) == 2 + (outcome == "commit"):
                raise AttemptError(KafkaFailure("refused", retryable=True), abortable=True)

    inject_here(job, writer=Leaderless)
    cluster.await_all(topic)
    assert len(ended) > 3
    assert read_open_transactions(cluster.properties, topic, [0], Deadline(60.0)) == ()
    assert_same_set(job)


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_fault_183_a_relay_ends_while_nobody_leads(
    cluster: Cluster, name: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, group = f"orders-{name}", f"orders-{name}.recovery", f"shop-{name}"
    create_topic(cluster.properties, source, partitions=1, config={"retention.ms": "-1"})
    create_topic(cluster.properties, target, partitions=6, replication=1, config=ALONE)
    for first in range(0, 3_000, 500):  # a batch each, at least
        fill(cluster.properties, source, {0: 500}, first=first, size=200)
    set_offsets_raw(cluster.properties, group, source, {0: 0})
    world = RelayWorld(cluster.properties, source, target, group, 1, 6)
    # The broker that goes may be the group's coordinator: its guard stays a member meanwhile.
    for setting in ("session.timeout.ms", "max.poll.interval.ms"):
        monkeypatch.setitem(guard._SETTINGS, setting, 45_000)
    monkeypatch.setattr(partition, "_FIRST_BYTES", 1 << 16)
    monkeypatch.setattr(partition, "_GROWTH", 1.0)
    ended: list[str] = []
    commit_as_ever = WireProducer.commit_transaction

    def commit_leaderless(producer: WireProducer, seconds: float) -> None:
        ended.append(outcome)
        if len(ended) == 2:
            cluster.let_leaderless(target)
        if len(ended) == 2 + (outcome == "commit"):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        commit_as_ever(producer, seconds)

    monkeypatch.setattr(WireProducer, "commit_transaction", commit_leaderless)
    with world.guarded() as task:
        with suppress(KafkaFailure):
            relay(make_relay_engine(WIRE), task, world.ranges())
        relay(make_relay_engine(WIRE), task, world.ranges())
    cluster.await_all(target)
    assert len(ended) > 3
    assert read_open_transactions(cluster.properties, target, range(6), Deadline(60.0)) == ()
    assert check_copied(world) == []
    assert world.commits() == world.ends()


@pytest.mark.parametrize("kind", KINDS)
def test_fault_176_no_gap_is_seen(cluster: Cluster, name: str, kind: str, ledger: Ledger) -> None:
    """A sample may fail, and then says so; none takes what it could not see for lost."""
    topic, group = f"orders-{name}", f"shop-{name}"
    cluster.make_topic(topic, 3, kind)
    fill(cluster.properties, topic, dict.fromkeys(range(3), 100))
    commit(cluster.properties, group, topic, dict.fromkeys(range(3), 40))
    disturber = Disturber(disturb(cluster, kind, topic, {group: "GROUP"}))
    stream, seen = StreamStub(topic, group), list[Any]()
    for _ in range(12):
        with suppress(ClusterUnreachable):
            seen.append(observe_stream(ledger, stream, cluster.properties))
        disturber.come_on()
    disturber.end(cluster, topic)
    seen.append(observe_stream(ledger, stream, cluster.properties))
    assert not ledger.gaps.list()
    parts = [part for each in seen for part in each.sample.partitions]
    assert {count_lag(part, "read_committed") for part in parts} == {60}


@pytest.mark.parametrize("kind", UNCOORDINATED)
def test_fault_176_an_outbox(cluster: Cluster, name: str, kind: str, pg_url: str) -> None:
    topic = f"orders-{name}"
    cluster.make_topic(topic, 3, kind)
    shop = Shop(pg_url, cluster.kafka.bootstrap)
    disturber = Disturber(disturb(cluster, kind, topic))
    with shop.sending(FAST):
        for at in range(1, 9):
            shop.add(topic, *(f"k{number % 7}" for number in range(20)))
            if at > 1:
                disturber.come_on()
            shop.await_sent(20 * at)
    disturber.end(cluster, topic)
    ids = shop.read_ids(topic, 3)
    assert len(set(ids)) == 160
    assert len(ids) == 160
    shop.close()


@pytest.mark.parametrize("how", ["hangs", "dies"])
def test_fault_184_changes_while_a_broker(cluster: Cluster, name: str, how: str) -> None:
    """It is the one that a client knows as the controller, or the coordinator: it is not waited for
    once there is another. (A hanging active controller stops all changes, of everybody.)"""
    properties, topic, old, group = cluster.properties, f"orders-{name}", f"old-{name}", f"g-{name}"
    create_topic(properties, old, partitions=3)
    fill(properties, old, dict.fromkeys(range(3), 9))
    set_offsets_raw(properties, group, old, {0: 4})
    made: list[str] = []

    def within() -> Deadline:
        return Deadline(90.0)  # three brokers that elect on a busy machine

    def make(admin: Admin) -> None:
        config = {"retention.ms": "-1"}
        made.append(create_topic(admin, topic, partitions=4, config=config, deadline=within()))

    by_controller: tuple[Callable[[Admin], object], ...] = (
        make,
        lambda admin: alter_topic_config(admin, topic, {"retention.ms": "3600000"}, within()),
        lambda admin: delete_records(admin, old, {0: 4}, within()),
        lambda admin: delete_topic(admin, topic, made[0], within()),
    )
    by_coordinator: tuple[Callable[[Admin], object], ...] = (
        lambda admin: set_group_offsets(admin, group, old, {0: 5}, within()),
        lambda admin: read_all_commits(admin, [group], within())[group],
        lambda admin: delete_group(admin, group, within()),
    )
    for change in by_controller + by_coordinator:
        admin, away = _know(cluster, how)
        if change in by_coordinator:
            away = cluster.find_coordinator(group)
        with cluster.without(away, how):
            change(admin)
        cluster.await_all(old)
    assert describe_group_state(properties, group).state == "dead"


def _know(cluster: Cluster, how: str) -> tuple[Admin, int]:
    """A client, and whom brokers named to it; not the active one, if that would stop everybody."""
    active = cluster.find_controller()
    while True:
        admin = make_admin(cluster.properties)
        named = admin.list_topics(timeout=30).controller_id
        if how == "dies" or named != active:
            return admin, named
