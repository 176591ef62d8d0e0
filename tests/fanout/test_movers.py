"""Who moved a group's offsets: the rules, and what the brokers' log of commits shows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, TopicPartition

from backlogctl.clock import utc_now
from backlogctl.fanout.movers import LoggedCommit, Stretch, read_history, trace_moves
from backlogctl.kafka import admin as verbs
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kit.kafka import wait_until


def by_member(offset: int) -> LoggedCommit:
    return LoggedCommit(offset, True, False)


def by_nobody(offset: int) -> LoggedCommit:
    return LoggedCommit(offset, False, False)


@pytest.mark.parametrize(
    ("start", "end", "made", "moves"),
    [
        (0, 20, [by_member(10), by_member(20)], [Stretch(0, 20, True)]),
        (0, 90, [by_member(10), by_nobody(90)], [Stretch(0, 10, True), Stretch(10, 90, False)]),
        # Its consumers went on behind it.
        (
            *(0, 99, [by_nobody(90), by_member(99)]),
            [Stretch(0, 90, False), Stretch(90, 99, True)],
        ),
        # It was set back, and read.
        (10, 90, [by_nobody(90), by_nobody(10), by_member(90)], [Stretch(10, 90, True)]),
        # Set back in part.
        (
            *(10, 95, [by_nobody(90), by_nobody(50), by_member(95)]),
            [Stretch(10, 50, False), Stretch(50, 95, True)],
        ),
        # A late commit of a member says nothing new.
        (10, 30, [by_member(30), by_member(20)], [Stretch(10, 30, True)]),
        # What came before the start; and a reader that is no member, by its epoch.
        (10, 40, [by_member(5), LoggedCommit(40, False, True)], [Stretch(10, 40, True)]),
        # Nobody knows who was in it, or what came last.
        (10, 40, [LoggedCommit(40, None, False)], [Stretch(10, 40, None)]),
        (10, 40, [by_member(30)], [Stretch(10, 30, True), Stretch(30, 40, None)]),
        (10, 10, [], []),
    ],
)
def test_how_a_group_came_from_one_offset_to_another(
    start: int, end: int, made: Sequence[LoggedCommit], moves: Sequence[Stretch]
) -> None:
    assert trace_moves(start, end, made) == tuple(moves)


def test_the_log_tells_members_from_a_tool(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    """Commits of a member that has come and gone, and those of a tool before and after."""
    name = topic(1, None, "moved")
    properties = {"bootstrap.servers": kafka.bootstrap}
    since = utc_now() - timedelta(minutes=1)
    verbs.set_group_offsets(properties, group, name, {0: 0})
    member = Consumer({**properties, "group.id": group, "session.timeout.ms": 6_000})
    member.subscribe([name])
    wait_until(lambda: bool(member.poll(0.2) is None and member.assignment()), what="it joined")
    place = TopicPartition(name, 0, 7)
    member.commit(offsets=[place], asynchronous=False)
    member.close()
    wait_until(lambda: not verbs.read_group_state(properties, group).is_active)
    verbs.set_group_offsets(properties, group, name, {0: 9})
    history = read_history(properties, group, name, since, {0: 9}, had_members=False)
    assert history is not None
    assert [one[:3] for one in history[0]] == [
        (0, False, False),
        (7, True, False),
        (9, False, False),
    ]
    assert trace_moves(0, 9, history[0]) == (Stretch(0, 7, True), Stretch(7, 9, False))
