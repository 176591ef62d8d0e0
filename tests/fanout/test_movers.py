"""Who moved a group's offsets: the rules, and what the brokers' log of commits shows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from confluent_kafka import TopicPartition

from backlogctl.clock import utc_now
from backlogctl.fanout.movers import Advance, LoggedCommit, _sort, read_commit_history, trace_moves
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.commit_log import LogRecord
from backlogctl.kafka.commit_records import CommitRecord, MembersRecord
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kit.kafka import join, wait_until


def by_member(offset: int) -> LoggedCommit:
    return LoggedCommit(offset, True, False)


def by_nobody(offset: int) -> LoggedCommit:
    return LoggedCommit(offset, False, False)


def by_unknown(offset: int) -> LoggedCommit:
    return LoggedCommit(offset, None, False)


@pytest.mark.parametrize(
    ("start", "end", "made", "moves"),
    [
        (0, 20, [by_member(10), by_member(20)], [(0, 20, True)]),
        (0, 90, [by_member(10), by_nobody(90)], [(0, 10, True), (10, 90, False)]),
        # Its consumers went on behind it.
        (0, 99, [by_nobody(90), by_member(99)], [(0, 90, False), (90, 99, True)]),
        # It was set back, and read.
        (10, 90, [by_nobody(90), by_nobody(10), by_member(90)], [(10, 90, True)]),
        # Set back in part.
        (10, 95, [by_nobody(90), by_nobody(50), by_member(95)], [(10, 50, False), (50, 95, True)]),
        # The same, and nobody knows who was in it: what is read behind it is read.
        (10, 95, [by_unknown(90), by_unknown(10), by_member(95)], [(10, 95, True)]),
        # A late commit of a member says nothing new.
        (10, 30, [by_member(30), by_member(20)], [(10, 30, True)]),
        # What came before the start; and a reader that is no member, by its epoch.
        (10, 40, [by_member(5), LoggedCommit(40, False, True)], [(10, 40, True)]),
        # Nobody knows who was in it, or what came last.
        (10, 40, [by_unknown(40)], [(10, 40, None)]),
        (10, 40, [by_member(30)], [(10, 30, True), (30, 40, None)]),
        (10, 10, [], []),
        # Of before the start, when nobody knows who was in it.
        (90, 99, [by_unknown(50), by_unknown(90)], [(90, 99, None)]),
    ],
)
def test_how_a_group_came_from_one_offset_to_another(
    start: int,
    end: int,
    made: Sequence[LoggedCommit],
    moves: Sequence[tuple[int, int, bool | None]],
) -> None:
    assert trace_moves(start, end, made) == tuple(moves)


@pytest.mark.parametrize(
    ("is_new", "had_members", "changes", "found"),
    [(True, None, True, False), (False, False, True, None), (False, True, False, True)],
)
def test_who_was_there_before_the_first_change_of_members(
    is_new: bool, had_members: bool | None, changes: bool, found: bool | None
) -> None:
    """It may have been that way at the time that is known, or only before."""
    now = utc_now()
    commit = CommitRecord("g", "t", 0, 5, None, "", now, (3, 10))
    joined = MembersRecord("g", 1, True, 1, "consumer", (), now, (3, 11))
    records: list[LogRecord] = [joined, commit] if changes else [commit]
    (made,) = _sort(records, "t", is_new=is_new, had_members=had_members)[0]
    assert made.had_members is found


def test_the_log_tells_members_from_a_tool(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    """Commits of a member that has come and gone, and those of a tool before and after."""
    name = topic(1, None, "moved")
    properties = {"bootstrap.servers": kafka.bootstrap}
    since = utc_now() - timedelta(minutes=1)
    verbs.set_group_offsets(properties, group, name, {0: 0})
    member = join(properties, group, name, session_timeout_ms="6000")
    member.commit(offsets=[TopicPartition(name, 0, 7)], asynchronous=False)
    member.close()
    wait_until(lambda: not verbs.describe_group_state(properties, group).is_active)
    verbs.set_group_offsets(properties, group, name, {0: 9})
    history = read_commit_history(properties, group, name, since, {0: 9}, is_new=True)
    assert history is not None
    assert [one[:3] for one in history[0]] == [
        (0, False, False),
        (7, True, False),
        (9, False, False),
    ]
    assert trace_moves(0, 9, history[0]) == (Advance(0, 7, True), Advance(7, 9, False))
