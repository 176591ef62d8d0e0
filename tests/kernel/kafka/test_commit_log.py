"""What real groups commit, followed in the brokers' own log of it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count, pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import ClusterUnreachable
from backlogctl.kafka import commit_log
from backlogctl.kafka.admin import alter_topic_config, create_topic, list_offsets
from backlogctl.kafka.clients import make_admin, make_consumer, make_producer
from backlogctl.kafka.commit_log import COMMIT_LOG, CommitLog, LogCondition, LogRecord, LogState
from backlogctl.kafka.commit_records import CommitRecord, MembersRecord, find_log_partition
from backlogctl.kafka.groups import EndsBehind
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.borrowing import start_kafka
from tests.kit.java import join_streams_group
from tests.kit.kafka import (
    delete_group,
    delete_topic,
    join,
    need_kafka,
    properties_of,
    publish,
    read_all,
    repeating,
    set_offsets_raw,
    wait_until,
)

FOLLOWED, HELD = LogCondition.FOLLOWED, LogCondition.HELD


class Follower:
    """A log, and all that it gave so far."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self.records: list[LogRecord] = []

    def read(self, seconds: float = 20.0) -> tuple[LogRecord, ...]:
        found = self.log.read(Deadline(seconds))
        self.records += found
        return found

    def read_until(self, condition: LogCondition = FOLLOWED) -> None:
        """Until that is the condition of all groups."""

        def is_so() -> bool:
            self.read()
            return {state.condition for state in self.log.state.values()} == {condition}

        try:
            wait_until(is_so, what=f"the log is {condition}")
        except AssertionError as error:
            raise AssertionError(self.log.state) from error

    @property
    def state(self) -> LogState:
        """Of the only group, or the first."""
        return next(iter(self.log.state.values()))

    def commits(self, group: str) -> list[int | None]:
        return [one.offset for one in self.list_commits(group)]

    def list_commits(self, group: str) -> list[CommitRecord]:
        return [r for r in self.records if isinstance(r, CommitRecord) and r.group == group]

    def members(self, group: str) -> list[int | None]:
        """Who was in the group at each of its commits."""
        known, found = None, []
        for record in sorted(self.records, key=lambda one: one.place):
            if record.group == group and isinstance(record, MembersRecord):
                known = record.members
            elif record.group == group:
                found.append(known)
        return found


@contextmanager
def following(
    properties: dict[str, str], group: str, since: datetime | None = None
) -> Iterator[Follower]:
    """From then on, or from now on."""
    with CommitLog(properties, [group], since or utc_now()) as log:
        yield Follower(log)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker of its own: open transactions of other tests would hold the log."""
    with start_kafka(tmp_path_factory.mktemp("kafka")) as running:
        set_offsets_raw(properties_of(running.bootstrap), "first", make_topic(running, "f"), {0: 0})
        yield running


def make_topic(kafka: EmbeddedKafka, unique: str, name: str = "orders") -> str:
    create_topic(properties_of(kafka.bootstrap), f"{name}-{unique}", partitions=1)
    return f"{name}-{unique}"


@pytest.fixture
def properties(own: EmbeddedKafka) -> dict[str, str]:
    return properties_of(own.bootstrap)


@pytest.fixture
def name(own: EmbeddedKafka, unique: str) -> str:
    """A topic with 30 messages."""
    made = make_topic(own, unique)
    publish(properties_of(own.bootstrap), made, {0: 30})
    return made


@pytest.fixture
def follow(properties: dict[str, str], group: str) -> Iterator[Follower]:
    with following(properties, group) as follower:
        follower.read_until()
        yield follower


def commit_as(consumer: Consumer, topic: str, *offsets: int) -> None:
    for offset in offsets:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


def consume(consumer: Consumer, messages: int) -> None:
    while messages:
        message = consumer.poll(1)
        if message is not None and not message.error():
            messages -= 1


def test_a_classic_group_that_commits_by_itself(
    properties: dict[str, str], name: str, group: str, follow: Follower
) -> None:
    started = utc_now()
    consumer = make_consumer(
        properties,
        {
            "group.id": group,
            "client.id": "orders-1",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,
            "enable.auto.offset.store": True,
            "auto.commit.interval.ms": 100,
        },
    )
    consumer.subscribe([name])
    consume(consumer, 30)
    wait_until(lambda: consumer.poll(0.05) or (follow.read() and 30 in follow.commits(group)))
    (*_, last) = follow.list_commits(group)
    assert last[:6] == (group, name, 0, 30, 0, "")
    assert started <= last.at <= utc_now()
    assert set(follow.members(group)) == {1}
    (inside,) = [r for r in follow.records if isinstance(r, MembersRecord) and r.members]
    assert (inside.generation, inside.protocol_type, inside.is_exact) == (1, "consumer", True)
    assert inside.clients == (("orders-1", "127.0.0.1"),)
    consumer.close()
    set_offsets_raw(properties, group, name, {0: 5})
    follow.read_until()
    assert follow.commits(group)[-1] == 5
    assert follow.members(group)[-1] == 0
    assert follow.log.state[group].complete_to is not None
    assert follow.log.skipped == {}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_commit_what_they_consumed_and_what_they_say(
    properties: dict[str, str], name: str, group: str, follow: Follower, protocol: str
) -> None:
    """Only what was consumed has an epoch; both are commits of members."""
    consumer = join(properties, group, name, group_protocol=protocol, client_id="orders-1")
    message = consumer.poll(30)
    assert message is not None
    consumer.commit(message=message, asynchronous=False)
    commit_as(consumer, name, 7, 11)
    follow.read_until()
    assert [(one.offset, one.epoch) for one in follow.list_commits(group)] == [
        (1, 0),
        (7, None),
        (11, None),
    ]
    assert follow.members(group) == [1, 1, 1]
    told = [r for r in follow.records if isinstance(r, MembersRecord) and r.members]
    assert told[-1].clients == (("orders-1", "127.0.0.1"),)
    assert told[-1].protocol_type == "consumer"
    consumer.close()
    follow.read_until()
    set_offsets_raw(properties, group, name, {0: 5})
    follow.read_until()
    assert (follow.commits(group)[-1], follow.members(group)[-1]) == (5, 0)


def test_members_come_and_go(
    own: EmbeddedKafka, properties: dict[str, str], group: str, unique: str, follow: Follower
) -> None:
    """A log that is followed from a time when somebody is in the group does not know how many."""
    create_topic(properties, f"two-{unique}", partitions=2)
    first = join(properties, group, f"two-{unique}", group_protocol="consumer")
    with following(properties, group) as late:
        late.read_until()
        commit_as(first, f"two-{unique}", 1)
        with repeating(lambda: first.poll(0)):  # it gives a partition away
            second = join(properties, group, f"two-{unique}", group_protocol="consumer")
        commit_as(second, f"two-{unique}", 2)
        first.close()
        second.close()
        set_offsets_raw(properties, group, f"two-{unique}", {0: 3})
        late.read_until()
        set_offsets_raw(properties, group, f"two-{unique}", {0: 4})
        late.read_until()
    follow.read_until()
    assert (follow.commits(group), follow.members(group)) == ([1, 2, 3, 4], [1, 2, 0, 0])
    assert (late.commits(group), late.members(group)) == ([1, 2, 3, 4], [1, 1, None, 0])
    known = [r for r in late.records if isinstance(r, MembersRecord)]
    assert (known[0].is_exact, known[-1].is_exact) == (False, True)


def test_a_reader_that_never_joins_and_an_operator(
    properties: dict[str, str], name: str, group: str, follow: Follower
) -> None:
    """Nothing tells them apart: no members, and no epoch."""
    consumer = make_consumer(properties, {"group.id": group})
    consumer.assign([TopicPartition(name, 0, 0)])
    consumer.commit(offsets=[TopicPartition(name, 0, 3, "note")], asynchronous=False)
    consumer.close()
    set_offsets_raw(properties, group, name, {0: 9})
    follow.read_until()
    follow.read_until()
    assert follow.members(group) == [0, 0]
    assert [(c.offset, c.epoch, c.metadata[:4]) for c in follow.list_commits(group)] == [
        (3, None, "note"),
        (9, None, ""),
    ]


def begin_commit(producer: Producer, properties: dict[str, str], place: TopicPartition) -> None:
    consumer = make_consumer(properties, {"group.id": place.metadata})
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition(place.topic, place.partition, place.offset)],
        consumer.consumer_group_metadata(),
        30,
    )
    consumer.close()


def test_transactions_committed_aborted_and_open(
    properties: dict[str, str], name: str, group: str, follow: Follower
) -> None:
    producer = make_producer(properties, {"transactional.id": group})
    producer.init_transactions(30)
    begin_commit(producer, properties, TopicPartition(name, 0, 3, group))
    producer.commit_transaction(30)
    follow.read_until()
    began = utc_now()
    begin_commit(producer, properties, TopicPartition(name, 0, 4, group))
    producer.abort_transaction(30)
    begin_commit(producer, properties, TopicPartition(name, 0, 5, group))
    set_offsets_raw(properties, group, name, {0: 1})
    follow.read_until(HELD)
    follow.read_until(HELD)
    assert follow.commits(group) == [3]
    held, state = follow.state.held_since, follow.state
    assert held is not None
    assert held >= began
    assert state.complete_to is not None
    assert state.complete_to < held
    producer.commit_transaction(30)
    follow.read_until()
    assert follow.commits(group) == [3, 5, 1]
    # Their ends are holes that are explained: nothing is missing.
    assert follow.state.complete_since < began
    assert follow.state.held_since is None


def test_a_transaction_that_began_before(properties: dict[str, str], name: str, group: str) -> None:
    """Its commits count from its end on."""
    producer = make_producer(properties, {"transactional.id": group})
    producer.init_transactions(30)
    begin_commit(producer, properties, TopicPartition(name, 0, 3, group))
    set_offsets_raw(properties, group, name, {0: 9})
    time.sleep(0.01)
    with following(properties, group) as follow:
        follow.read_until(HELD)
        producer.commit_transaction(30)
        follow.read_until()
        assert follow.commits(group) == [3, 9]


def test_what_is_deleted_is_told(
    properties: dict[str, str], name: str, group: str, follow: Follower
) -> None:
    set_offsets_raw(properties, group, name, {0: 9})
    deleted = utc_now()
    delete_group(properties, group)
    follow.read_until()
    (first, gone) = follow.list_commits(group)
    assert (first.offset, gone.offset) == (9, None)
    assert deleted - timedelta(seconds=1) <= gone.at <= utc_now()
    assert gone.place > first.place


def test_only_the_partitions_of_the_groups_are_read(
    properties: dict[str, str], name: str, group: str, unique: str, follow: Follower
) -> None:
    """And of these only their records are given."""
    place = find_log_partition(group, 5)
    names = [f"other-{unique}-{number}" for number in range(40)]
    beside = next(one for one in names if find_log_partition(one, 5) == place)
    apart = next(one for one in names if find_log_partition(one, 5) != place)
    for each in (beside, apart, group):
        set_offsets_raw(properties, each, name, {0: 9})
    follow.read_until()
    assert {(r.group, r.place[0]) for r in follow.records} == {(group, place)}


def test_what_was_committed_before_is_read_from_its_time_on(
    properties: dict[str, str], name: str, group: str
) -> None:
    for offset in (1, 2, 3):
        set_offsets_raw(properties, group, name, {0: offset})
    time.sleep(0.01)
    since = utc_now()
    time.sleep(0.01)
    for offset in (4, 5):
        set_offsets_raw(properties, group, name, {0: offset})
    with following(properties, group, since) as follow:
        follow.read_until()
    assert follow.commits(group)[-2:] == [4, 5]
    assert len(follow.commits(group)) <= 3  # one record before shows that nothing is missing
    assert follow.state.complete_since == since


def test_much_is_read_in_pieces(
    properties: dict[str, str], name: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "_MOST_RECORDS", 20)
    monkeypatch.setattr(commit_log, "_AT_ONCE", 5)
    since = utc_now()
    consumer = make_consumer(properties, {"group.id": group})
    commit_as(consumer, name, *range(1, 101))
    consumer.close()
    with following(properties, group, since) as follow:
        follow.read()
        assert follow.state.condition is LogCondition.BEHIND
        assert 70 <= follow.state.behind <= 80
        (*_, last) = follow.list_commits(group)
        assert follow.state.complete_to is not None
        assert last.at <= follow.state.complete_to <= last.at + timedelta(seconds=5)
        later = utc_now()
        sizes = [len(follow.read())]
        while follow.state.behind:
            sizes.append(len(follow.read()))
        assert follow.state.complete_to > later
    assert all(size <= 26 for size in sizes)
    assert [one for one in follow.commits(group) if one] == list(range(1, 101))


def test_no_time_is_no_answer(properties: dict[str, str], group: str) -> None:
    with CommitLog(properties, [group], utc_now()) as log:
        assert log.state[group].condition is LogCondition.AWAY
        log.read(Deadline(0))
        state = log.state[group]
        # A client that was ahead of us may have come to the end: then it says up to when.
        assert (state.complete_to is None) == (state.condition is not LogCondition.FOLLOWED)


@pytest.fixture(scope="module")
def cleaning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that compacts within a second, and may be stopped."""
    need_kafka(4, 1)
    properties = {
        "log.cleaner.backoff.ms": "200",
        "broker.session.timeout.ms": "9000",
        "group.coordinator.rebalance.protocols": "classic,consumer,streams",
    }
    with EmbeddedKafka.start(tmp_path_factory.mktemp("kafka"), properties=properties) as running:
        yield running


def count_records(properties: dict[str, str], partition: int) -> int:
    return len(read_all(properties, COMMIT_LOG, [partition]))


def test_before_any_commit_and_after_the_first(cleaning: EmbeddedKafka, group: str) -> None:
    """Runs first: nobody has committed on this broker yet, so its log of commits is not there."""
    properties, since = properties_of(cleaning.bootstrap), utc_now()
    with following(properties, group, since) as follow:
        follow.read_until(LogCondition.MISSING)
        assert follow.state.complete_to is not None
        assert follow.state.error is None
        set_offsets_raw(properties, group, make_topic(cleaning, group), {0: 3})
        follow.read_until()
        assert follow.commits(group) == [3]
        assert follow.state.complete_since == since


def test_a_streams_group_has_members(cleaning: EmbeddedKafka, group: str, tmp_path: Path) -> None:
    """KIP-1071; no broker lists it to us, so there may be more of them."""
    properties, name = properties_of(cleaning.bootstrap), make_topic(cleaning, group)
    set_offsets_raw(properties, f"{group}-other", name, {0: 1})  # from now on the log is there
    with following(properties, group) as follow:
        follow.read_until()
        join_streams_group(properties, group, name, {0: 3}, tmp_path)
        follow.read_until()
        assert (follow.commits(group), follow.members(group)) == ([3], [1])
        (*_, told) = [r for r in follow.records if isinstance(r, MembersRecord)]
        assert (told.protocol_type, told.is_exact) == ("streams", False)
        # Its assignments and its topology.
        assert follow.log.skipped.keys() <= {"key 20", "key 21", "key 22", "key 23"}
        assert follow.log.skipped


def test_compaction_is_noticed(cleaning: EmbeddedKafka, group: str) -> None:
    """Who had read it before knows all; who comes later knows since when nothing is missing."""
    properties, since = properties_of(cleaning.bootstrap), utc_now()
    name, place = make_topic(cleaning, group), find_log_partition(group, 5)
    set_offsets_raw(properties, group, name, {0: 1})
    with (
        following(properties, group, since) as follow,
        following(properties, group, since) as behind,
    ):
        for offset in range(2, 21):
            set_offsets_raw(properties, group, name, {0: offset})
        follow.read_until()
        before = count_records(properties, place)
        rolling = {"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}
        alter_topic_config(properties, COMMIT_LOG, rolling)
        offsets = count(21)

        def is_cleaned() -> bool:
            set_offsets_raw(properties, group, name, {0: next(offsets)})
            follow.read_until()  # before it is compacted away itself
            return count_records(properties, place) < before

        wait_until(is_cleaned, what="the log is compacted")
        alter_topic_config(properties, COMMIT_LOG, dict.fromkeys(rolling))
        follow.read_until()
        behind.read_until()
        last = next(offsets) - 1
        seen = [one for one in follow.commits(group) if one is not None]
        assert seen == list(range(1, last + 1))
        assert follow.state.complete_since == since
        complete = behind.state.complete_since
        assert complete > since
        assert behind.commits(group) != follow.commits(group)
        known = [one for one in follow.list_commits(group) if one.at >= complete]
        assert known == [one for one in behind.list_commits(group) if one.at >= complete]
        assert known


def test_an_offset_that_is_gone(cleaning: EmbeddedKafka, group: str) -> None:
    """Where the log is also cut by age."""
    properties, place = properties_of(cleaning.bootstrap), find_log_partition(group, 5)
    name, since = make_topic(cleaning, group), utc_now()
    with (
        following(properties, group, since) as follow,
        following(properties, group, since) as witness,
    ):
        set_offsets_raw(properties, group, name, {0: 1})
        follow.read_until()
        witness.read_until()
        end = list_offsets(properties, COMMIT_LOG, [place], "latest")[place]
        cutting = {"cleanup.policy": "compact,delete", "segment.ms": "500", "retention.ms": "500"}
        alter_topic_config(properties, COMMIT_LOG, cutting)
        offsets = count(2)

        def is_cut() -> bool:
            set_offsets_raw(properties, group, name, {0: next(offsets)})
            witness.read_until()
            return list_offsets(properties, COMMIT_LOG, [place], "earliest")[place] > end

        wait_until(is_cut, what="the log is cut")
        alter_topic_config(properties, COMMIT_LOG, {**cutting, **dict.fromkeys(cutting)})
        for each in (follow, witness):
            set_offsets_raw(properties, group, name, {0: next(offsets)})
            each.read_until()
        complete = follow.state.complete_since
        assert witness.state.complete_since == since < complete
        assert follow.commits(group) != witness.commits(group)[: len(follow.commits(group))]
        known = [one for one in witness.list_commits(group) if one.at >= complete]
        assert known[:-1] == [one for one in follow.list_commits(group) if one.at >= complete]
        assert len(known) > 1


def commit_alone(properties: dict[str, str], group: str, name: str, offset: int) -> None:
    """Until it is taken: perhaps twice. (An admin client would abort the process where the
    coordinator goes away, librdkafka's issue 4605.)"""
    consumer = make_consumer(properties, {"group.id": group})

    def is_taken() -> bool:
        try:
            commit_as(consumer, name, offset)
        except KafkaException:
            return False
        return True

    wait_until(is_taken, what="it is committed")
    consumer.close()


def unrepeated(offsets: Sequence[int | None]) -> list[int | None]:
    return [one for one, before in pairwise([*offsets, None]) if one != before]


def test_a_broker_that_is_away_and_comes_back(cleaning: EmbeddedKafka, group: str) -> None:
    properties, name = properties_of(cleaning.bootstrap), make_topic(cleaning, group)
    with following(properties, group) as follow:
        commit_alone(properties, group, name, 1)
        follow.read_until()
        known = follow.state.complete_to
        commit_alone(properties, group, name, 2)
        cleaning.kill()
        try:
            assert follow.read(2) == ()
            assert follow.state.condition is LogCondition.AWAY
            assert isinstance(follow.state.error, ClusterUnreachable)
            assert follow.state.complete_to == known
        finally:
            cleaning.restart()
        commit_alone(properties, group, name, 3)
        follow.read_until()
        assert unrepeated(follow.commits(group)) == [1, 2, 3]
        # The first one may be of the very moment at which the log was opened.
        assert follow.state.complete_since <= follow.list_commits(group)[1].at


def test_a_log_that_ends_before_what_was_read(
    cleaning: EmbeddedKafka, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are lost: it is not taken for one where nothing is new."""
    properties, place = properties_of(cleaning.bootstrap), find_log_partition(group, 5)
    name = make_topic(cleaning, group)
    with following(properties, group) as follow:
        for offset in range(1, 9):
            commit_alone(properties, group, name, offset)
        follow.read_until()
        known = follow.state.complete_to
        cleaning.kill()
        shutil.rmtree(cleaning.data_dir / "broker-1" / "data" / f"{COMMIT_LOG}-{place}")
        cleaning.restart()
        commit_alone(properties, group, name, 20)
        follow.read_until(LogCondition.AWAY)
        assert isinstance(follow.state.error, EndsBehind)
        assert follow.state.complete_to == known
        monkeypatch.setattr(commit_log, "TRUNCATED_SECONDS", 0.0)
        follow.read_until()
        assert follow.commits(group)[-1] == 20
        assert follow.state.complete_since > follow.list_commits(group)[-1].at


def test_a_log_that_is_made_anew(cleaning: EmbeddedKafka, group: str) -> None:
    """Runs last on this broker, whose groups it forgets."""
    properties, name = properties_of(cleaning.bootstrap), make_topic(cleaning, group)
    with following(properties, group) as follow:
        commit_alone(properties, group, name, 1)
        follow.read_until()
        deleted = utc_now()
        delete_topic(properties, COMMIT_LOG)
        follow.read_until(LogCondition.MISSING)
        commit_alone(properties, group, name, 2)
        follow.read_until()
        assert unrepeated(follow.commits(group)) == [1, 2]
        assert follow.state.complete_since > deleted


def test_a_leader_dies_and_comes_back(tmp_path: Path, group: str) -> None:
    with EmbeddedKafka.start(tmp_path, brokers=2, heap="384m") as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(properties, "orders", partitions=1, replication=2)
        commit_alone(properties, "first", "orders", 0)
        leaders = make_admin(properties).list_topics(COMMIT_LOG, 30).topics[COMMIT_LOG].partitions
        names = [f"{group}-{number}" for number in range(100)]
        second = next(n for n in names if leaders[find_log_partition(n, 5)].leader == 2)
        with following(properties, second) as follow:
            commit_alone(properties, second, "orders", 1)
            follow.read_until()
            kafka.kill(2)
            commit_alone(properties, second, "orders", 2)
            follow.read_until()
            assert unrepeated(follow.commits(second)) == [1, 2]
            kafka.restart(2)
            commit_alone(properties, second, "orders", 3)
            follow.read_until()
            assert unrepeated(follow.commits(second)) == [1, 2, 3]
            assert follow.state.complete_since < follow.list_commits(second)[0].at
