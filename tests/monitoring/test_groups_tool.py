"""Lags of hundreds of groups in every state, beside what Kafka's own tool says of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition

from backlogctl.kafka.admin import create_topic, describe_group_state
from backlogctl.kafka.clients import make_admin, make_consumer
from backlogctl.monitoring.groups.dating import Tails, make_tail_reader
from backlogctl.monitoring.groups.reader import BulkReader
from backlogctl.monitoring.groups.survey import Survey, SurveyScope
from backlogctl.monitoring.verdict.status import GroupStatus
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.java_tools import run_line, write_script
from tests.kafka_tools import (
    delete_group,
    join,
    move_log_start,
    properties_of,
    publish,
    set_offsets_raw,
    wait_until,
)

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
            lambda: late.poll(0.1) is None and find_state(properties) == "preparing_rebalancing",
            what="the group waits for its first member",
        )
        yield


def commit_some(member: Consumer, topic: str) -> None:
    places = [TopicPartition(topic, p, 2 + 3 * p) for p in range(TOPICS[topic])]
    for answer in member.commit(offsets=places, asynchronous=False) or ():
        assert answer.error is None


def find_state(properties: Mapping[str, str]) -> str:
    return describe_group_state(properties, "rebalancing").state


def look_at_all(properties: Mapping[str, str]) -> tuple[GroupStatus, ...]:
    tails = Tails(make_tail_reader(dict(properties)))
    with closing(Survey(BulkReader(dict(properties)), SurveyScope("main"), tails)) as survey:
        done = survey.look()
    assert (done.unreadable, done.left_out) == (0, 0)
    return done.groups


def list_all_rows(groups: Iterable[GroupStatus]) -> dict[Place, Row]:
    return dict(row for status in groups for row in list_rows(status))


def list_rows(status: GroupStatus) -> Iterator[tuple[Place, Row]]:
    for part in status.partitions:
        place = (status.group, status.topic, part.partition)
        # What retention has deleted unread is no lag of ours, but a loss.
        behind = None if part.lag is None else part.lag + (part.lost or 0)
        yield place, Row(part.committed, part.end, behind)


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
        again = list_all_rows(look_at_all(properties))
    ours = list_all_rows(seen)
    assert ours == again, "nothing moves"
    assert {status.group_state for status in seen} >= {"empty", "stable", "preparingrebalance"}
    committed = {place: row for place, row in ours.items() if row.committed is not None}
    assert len({group for group, _, _ in committed}) >= 300 - 1  # without the one that is deleted
    assert committed == {p: row for p, row in theirs.items() if row.committed is not None}
    # Where nothing is committed neither has a lag.
    assert [place for place in ours.keys() - committed.keys() if ours[place].lag is not None] == []
    assert "deleted" not in {group for group, _, _ in (*ours, *theirs)}
