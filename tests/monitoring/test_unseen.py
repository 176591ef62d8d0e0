"""What a user may not see is unknown, and said (faults 85, 90, 91); lags beside Kafka's own tool."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition

from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import create_topic, describe_group_state
from backlogctl.kafka.bulk import BulkReader
from backlogctl.kafka.clients import make_admin, make_consumer
from backlogctl.kafka.rights import Operation, Resource, Right, make_bindings
from backlogctl.ledger import Ledger
from backlogctl.monitoring.groups.dating import Tails, make_tail_reader
from backlogctl.monitoring.groups.sampler import GroupSampler
from backlogctl.monitoring.groups.survey import Survey, SurveyScope
from backlogctl.monitoring.metrics.groups import write_groups
from backlogctl.monitoring.metrics.scrape import Exported, Scrape
from backlogctl.monitoring.offsets.observation import observe_stream
from backlogctl.monitoring.verdict.status import GroupStatus, Verdict
from backlogctl.monitoring.watch.board import Board, ClusterPass
from backlogctl.replay.web.app import HealthCheck
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import add_rules
from backlogctl.values import Certainty
from tests.kit.java import run_line, write_script
from tests.kit.kafka import (
    StreamStub,
    delete_group,
    join,
    leave_at,
    move_log_start,
    properties_of,
    publish,
    set_offsets_raw,
    wait_until,
)
from tests.kit.prometheus import scrape
from tests.kit.secured import SecuredKafka, start_secured
from tests.kit.transactions import leave_open
from tests.monitoring.group_world import Topic, make_world
from tests.monitoring.live_watch import look, make_config, run_watch
from tests.monitoring.test_bookmarking import RebuiltStub, read_marks

STREAM = RebuiltStub("orders", "service")


def list_little(topic: str, group: str) -> tuple[Right, Right]:
    """Offsets and commits, and nothing else."""
    return (
        Right(Resource.TOPIC, topic, Operation.DESCRIBE, "read offsets"),
        Right(Resource.GROUP, group, Operation.DESCRIBE, "read commits"),
    )


LITTLE = list_little("orders", "service")
SETTINGS = Right(Resource.TOPIC, "orders", Operation.DESCRIBE_CONFIGS, "read retention")
READ = Right(Resource.TOPIC, "orders", Operation.READ, "read ages")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A topic whose retention goes by time and by size, with a group that is behind; another topic,
    and two groups that are one message behind."""
    config = {"retention.ms": "3600000", "retention.bytes": "1000000"}
    with start_secured(tmp_path_factory.mktemp("secured")) as found:
        create_topic(found.properties, "orders", partitions=1, config=config)
        publish(found.properties, "orders", {0: 9})
        set_offsets_raw(found.properties, "service", "orders", {0: 2})
        create_topic(found.properties, "bills", partitions=1)
        publish(found.properties, "bills", {0: 9})
        set_offsets_raw(found.properties, "billing", "bills", {0: 8})
        set_offsets_raw(found.properties, "hidden", "bills", {0: 8})
        yield found


def test_fault_85_a_loss_forecast_that_cannot_be_made_is_unknown(
    secured: SecuredKafka, ledger: Ledger
) -> None:
    status = look(ledger, secured.add_user("little", LITTLE), STREAM)
    assert status.lag == 7
    assert {one.what for one in status.unseen} == {"retention", "bookmarks"}
    assert status.seconds_to_loss is None
    told = status.to_json()["unseen"]
    assert "access denied" in json.dumps(told)
    lines = write_groups([status])["backlog_unseen"]
    text = lines.decode()
    assert 'what="retention"} 1' in text


def test_fault_85_ages_and_disks_too(secured: SecuredKafka, ledger: Ledger) -> None:
    status = look(ledger, secured.add_user("more", [*LITTLE, SETTINGS]), STREAM)
    assert {one.what for one in status.unseen} == {"oldest", "disks", "bookmarks"}


def test_who_may_see_all_is_told_nothing(secured: SecuredKafka, ledger: Ledger) -> None:
    rights = [
        *LITTLE,
        SETTINGS,
        READ,
        Right(Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE, "read disks"),
    ]
    assert look(ledger, secured.add_user("all", rights), STREAM).unseen == ()


def test_the_watch_says_it_once_and_is_degraded(secured: SecuredKafka, ledger: Ledger) -> None:
    """Bookmarks are noted from the moment on that the topic may be read."""
    properties = secured.add_user("watcher", LITTLE)
    board = Board()
    told: list[tuple[str, BacklogError | None]] = []
    with run_watch(
        make_config(properties, STREAM),
        *(ledger, 0.2),
        on_status=board.put_stream,
        on_outage=lambda *what: told.append(what),
        on_round=board.note_round,
    ):
        wait_until(lambda: board.seen.version >= 3)
        assert sorted(what for what, _ in told) == [
            "bookmarks of stream orders",
            "commit log of cluster main",
            "retention of stream orders",
        ]
        assert "access denied" in str(dict(told)["bookmarks of stream orders"])
        add_rules(make_admin(secured.properties), make_bindings([READ], "User:watcher"))
        wait_until(lambda: len(told) > 3, what="it may read the topic now")
    assert told[3:] == [("bookmarks of stream orders", None)]
    assert read_marks(ledger, make_admin(secured.properties), STREAM) == [(0, 2, 2)]
    ready = HealthCheck(board, lambda: True, timedelta(seconds=30), (), ()).check_readiness()
    assert ready.code == 200
    assert ready.body["status"] == "degraded"
    assert any("retention" in text for text in ready.body["unseen"]["orders"])


BILLS = (*list_little("bills", "billing"), replace(SETTINGS, name="bills"))
READ_BILLS = replace(READ, name="bills")
ALL_GROUPS = Right(Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE, "list all groups")
HIDDEN = Right(Resource.GROUP, "hidden", Operation.DESCRIBE, "read its commits")


def make_survey(properties: Mapping[str, str]) -> Survey:
    tails = Tails(make_tail_reader(dict(properties)))
    return Survey(BulkReader(dict(properties)), SurveyScope("main"), tails)


def look_at_cluster(properties: Mapping[str, str], times: int = 1) -> ClusterPass:
    with closing(make_survey(properties)) as survey:
        for _ in range(times):
            done = survey.look()
    return done


def test_fault_85_groups_that_may_not_be_listed_are_unknown(
    secured: SecuredKafka, ledger: Ledger
) -> None:
    done = look_at_cluster(secured.add_user("lister", [*BILLS, READ_BILLS]))
    assert [status.group for status in done.groups] == ["billing"], "the broker hides the other"
    (unseen,) = done.unseen
    assert str(unseen).startswith("unknown: which other groups")
    assert "may not list all groups (DESCRIBE on the cluster is missing)" in str(unseen)
    assert "backlogctl acl see STREAM --principal P" in unseen.error.hint
    board = Board()
    board.put_cluster(done)
    got = scrape(Scrape(board, ledger, Exported({}, ("main",))))
    assert got.labels_of("backlog_unseen", "what", group="") == {"groups"}
    ready = HealthCheck(board, lambda: True, timedelta(seconds=30), ("main",)).check_readiness()
    assert ready.code == 200
    assert ready.body["status"] == "degraded"
    assert ready.body["unseen"] == {"cluster main": [str(unseen)]}


def test_who_may_see_all_groups_is_told_nothing(secured: SecuredKafka) -> None:
    done = look_at_cluster(
        secured.add_user("all-groups", [*BILLS, READ_BILLS, ALL_GROUPS, HIDDEN]), times=2
    )
    assert [status.group for status in done.groups] == ["billing", "hidden"]
    assert done.unseen == ()
    assert [status.unseen for status in done.groups] == [(), ()]
    # Without an authorizer everything may be seen; that the world below says so too, is its part.
    assert make_world([5], Topic([0], [10])).look().unseen == ()


def test_a_broker_that_does_not_tell_is_no_proof_of_all_groups() -> None:
    world = make_world([5], Topic([0], [10]))
    world.cluster.sees_all = None
    (unseen,) = world.look().unseen
    assert "do not tell" in str(unseen)


def test_fault_85_retention_and_ends_of_groups_that_may_not_be_read(
    secured: SecuredKafka,
) -> None:
    done = look_at_cluster(secured.add_user("blind", [*BILLS[:2], ALL_GROUPS]), times=2)
    assert done.unreadable == 2
    (status,) = done.groups
    assert [one.what for one in status.unseen] == ["retention", "tails"]
    assert status.seconds_to_loss is None
    assert status.lag == 1, "it counts, since nobody knows better"
    (unseen,) = done.unseen
    assert unseen.what == "tails"
    assert "may not read 1 topic (bills): READ is missing" in str(unseen)
    done = look_at_cluster(secured.add_user("sighted", [*BILLS, READ_BILLS, ALL_GROUPS]), times=2)
    assert (done.groups[0].unseen, done.unseen) == ((), ())


def test_fault_85_the_end_of_a_stream_that_may_not_be_read(
    secured: SecuredKafka, ledger: Ledger
) -> None:
    properties = secured.add_user("streaming", [*BILLS, ALL_GROUPS])
    status = look(ledger, properties, StreamStub("bills", "billing"))
    told = {one.what: str(one) for one in status.unseen}
    assert "tails" in told
    assert "access denied" in told["tails"]


def test_what_is_hidden_is_said_once_and_when_it_ends(secured: SecuredKafka) -> None:
    properties = secured.add_user("group-watcher", [*BILLS, READ_BILLS])
    told: list[tuple[str, BacklogError | None]] = []
    board = Board()
    survey = make_survey(properties)
    interval = timedelta(milliseconds=50)
    with GroupSampler(survey, board, interval, lambda: None, lambda *what: told.append(what)):
        wait_until(lambda: board.seen.version >= 4, what="passes")
        ((what, error),) = told
        assert what == "the list of groups of cluster main"
        assert error is not None
        assert "unknown" in str(error)
        add_rules(make_admin(secured.properties), make_bindings([ALL_GROUPS], "User:group-watcher"))
        wait_until(lambda: told[1:] == [(what, None)], what="it may list all groups now")


def test_fault_90_who_may_not_ask_for_transactions_is_told_so(
    secured: SecuredKafka, ledger: Ledger
) -> None:
    describe, group = list_little("held", "holding")
    read = [
        replace(describe, operation=operation)
        for operation in (Operation.READ, Operation.DESCRIBE_CONFIGS)
    ]
    create_topic(secured.properties, "held", partitions=1)
    publish(secured.properties, "held", {0: 3})
    leave_open(secured.properties, "held", "left")
    set_offsets_raw(secured.properties, "holding", "held", {0: 3})
    stream = StreamStub("held", "holding")
    half = look(ledger, secured.add_user("half", [*read, group]), stream)
    assert half.verdict is Verdict.BLOCKED
    assert re.search(r"\(producer \d+, epoch 0, partition 0\)", half.sentence)
    assert "whether anybody will end it is not known" in half.sentence
    told = {one.what: str(one) for one in half.unseen}
    assert "DESCRIBE on them is missing" in told["transactions"]

    # A login that kafka-python cannot do asks nobody, as Kerberos does not.
    unchecked = {**secured.login("half"), "enable.ssl.certificate.verification": "false"}
    for properties in (unchecked, secured.add_user("blind-to-holders", [describe, group])):
        status = look(ledger, properties, stream)
        assert (status.verdict, status.held) == (Verdict.BLOCKED, 1)
        assert "1 message lies behind an open transaction" in status.sentence
        assert "by whom is not known" in status.sentence
        assert "transactions" in {one.what for one in status.unseen}
        (command,) = [one for one in status.next_commands if one.startswith("kafka-")]
        assert command.endswith("describe-producers --topic held --partition 0")


def test_fault_91_who_may_not_read_claims_no_exact_loss(
    secured: SecuredKafka, ledger: Ledger
) -> None:
    create_topic(secured.properties, "expired", partitions=1)
    publish(secured.properties, "expired", {0: 9})
    leave_at(secured.properties, "late", "expired", {0: 2})
    move_log_start(secured.properties, "expired", {0: 5})
    properties = secured.add_user("describer", list_little("expired", "late"))
    observe_stream(ledger, StreamStub("expired", "late"), properties)
    (gap,) = ledger.gaps.list()
    assert (gap.start, gap.end, gap.certainty, gap.maybe_empty) == (2, 5, Certainty.BOUNDED, True)
    assert "whether they are is unknown" in gap.reason


def test_one_denied_topic_does_not_take_the_turns_of_others() -> None:
    world = make_world([9, 9, 9], Topic([0, 0, 0], [10, 10, 10]))
    world.cluster.denied = {"orders"}
    world.look(2)
    world.cluster.tails.clear()
    world.look()
    assert len(world.cluster.tails) == 1, "one is enough to see that it may be read again"
    world.cluster.denied = set()
    world.look()
    assert [one.what for one in world.look().unseen] == []


TOPICS = {f"topic-{number}": 1 + number for number in range(6)}  # name -> partitions
MESSAGES = 40
EMPTY = 292
EXPIRED = 5  # of topic-5's first partition

Place = tuple[str, str, int]  # group, topic, partition


class Row(NamedTuple):
    """What one line says of a partition; None where the tool prints a dash."""

    committed: int | None
    end: int | None
    lag: int | None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Topics with messages."""
    with EmbeddedKafka.start(tmp_path_factory.mktemp("kafka")) as kafka:
        properties = properties_of(kafka.bootstrap)
        for name, partitions in TOPICS.items():
            create_topic(properties, name, partitions=partitions)
            publish(properties, name, {p: MESSAGES - 3 * p for p in range(partitions)})
        yield kafka


def make_empty_groups(properties: Mapping[str, str]) -> None:
    """Many groups that nobody is in: behind, up to date, in front of the log start, without a
    commit on some partitions, on several topics."""
    set_offsets_raw(properties, "first", "topic-0", {0: 0})  # until the coordinators are there
    admin = make_admin(dict(properties))
    names = list(TOPICS)
    futures = []
    for number in range(EMPTY):
        places = [
            TopicPartition(topic, partition, (number * 7 + partition) % (MESSAGES - 3 * partition))
            for topic in {names[number % 6], names[(number // 6) % 6]}
            for partition in range(TOPICS[topic])
            if (number + partition) % 4 or partition == 0
        ]
        request = [ConsumerGroupTopicPartitions(f"empty-{number:03}", places)]
        futures.append(admin.alter_consumer_group_offsets(request)[f"empty-{number:03}"])
    for future in futures:
        assert all(item.error is None for item in future.result(60).topic_partitions)
    set_offsets_raw(properties, "read-all", "topic-0", {0: MESSAGES})
    set_offsets_raw(properties, "deleted", "topic-1", {0: 1})
    delete_group(properties, "deleted")


@contextmanager
def run_members(properties: Mapping[str, str]) -> Iterator[None]:
    """Groups with members of each kind, which have committed and do not move any more."""
    kinds: Mapping[str, tuple[str, Mapping[str, str]]] = {
        "classic": ("topic-2", {"group_protocol": "classic"}),
        "modern": ("topic-3", {"group_protocol": "consumer"}),
        "static": ("topic-1", {"group_instance_id": "till-1"}),
        "static-modern": (
            "topic-4",
            {"group_protocol": "consumer", "group_instance_id": "till-2"},
        ),
        "unread": ("topic-2", {}),
        "rebalancing": ("topic-2", {"max_poll_interval_ms": "300000"}),
    }
    with ExitStack() as stack:
        for group, (topic, settings) in kinds.items():
            member = stack.enter_context(closing(join(properties, group, topic, **settings)))
            if group != "unread":
                commit_some(member, topic)
        # The first member does not poll, so it does not give up its partitions for the second.
        late = make_consumer(properties, {"group.id": "rebalancing"})
        stack.enter_context(closing(late)).subscribe(["topic-2"])
        wait_until(
            lambda: (
                late.poll(0.1) is None
                and describe_group_state(properties, "rebalancing").state == "preparing_rebalancing"
            ),
            what="the group waits for its first member",
        )
        yield


def commit_some(member: Consumer, topic: str) -> None:
    places = [TopicPartition(topic, p, 2 + 3 * p) for p in range(TOPICS[topic])]
    for answer in member.commit(offsets=places, asynchronous=False) or ():
        assert answer.error is None


def look_at_all(properties: Mapping[str, str]) -> tuple[GroupStatus, ...]:
    done = look_at_cluster(properties)
    assert (done.unreadable, done.left_out) == (0, 0)
    return done.groups


def list_rows(groups: Iterable[GroupStatus]) -> dict[Place, Row]:
    return {
        # What retention has deleted unread is no lag of ours, but a loss.
        (status.group, status.topic, part.partition): Row(
            *(part.committed, part.end),
            None if part.lag is None else part.lag + (part.lost or 0),
        )
        for status in groups
        for part in status.partitions
    }


def read_theirs(bootstrap: str, directory: Path) -> dict[Place, Row]:
    write_script(directory / "kafka-consumer-groups.sh", "consumer.group.ConsumerGroupCommand")
    line = f"kafka-consumer-groups.sh --bootstrap-server {bootstrap} --describe --all-groups"
    found: dict[Place, Row] = {}
    for text in run_line(line, directory).splitlines():
        words = text.split()
        if len(words) < 6 or words[:3] == ["GROUP", "TOPIC", "PARTITION"]:
            continue
        if words[2].isdecimal():
            numbers = (None if word == "-" else int(word) for word in words[3:6])
            found[words[0], words[1], int(words[2])] = Row(*numbers)
    return found


def test_300_groups_are_as_far_behind_as_kafkas_own_tool_says(
    broker: EmbeddedKafka, tmp_path: Path
) -> None:
    properties = properties_of(broker.bootstrap)
    make_empty_groups(properties)
    move_log_start(properties, "topic-5", {0: EXPIRED})
    with run_members(properties):
        seen = look_at_all(properties)
        theirs = read_theirs(broker.bootstrap, tmp_path)
        again = list_rows(look_at_all(properties))
    ours = list_rows(seen)
    assert ours == again, "nothing moves"
    assert {status.group_state for status in seen} >= {"simple", "stable", "preparing_rebalancing"}
    committed = {place: row for place, row in ours.items() if row.committed is not None}
    assert len({group for group, _, _ in committed}) >= 300 - 1  # without the one that is deleted
    assert committed == {p: row for p, row in theirs.items() if row.committed is not None}
    # Where nothing is committed neither has a lag.
    assert [place for place in ours.keys() - committed.keys() if ours[place].lag is not None] == []
    assert "deleted" not in {group for group, _, _ in (*ours, *theirs)}
