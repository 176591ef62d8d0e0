"""Consumers that people start and stop: says what to do, and waits until the group shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from backlog.clock import Deadline
from backlog.errors import KafkaFailure
from backlog.kafka.admin import (
    committed_offsets,
    describe_group_state,
    read_group_state,
    read_topic_id,
)
from backlog.kafka.clients import Admin, make_admin
from fanout.launchers.interface import Fleet, Look, Role, Say

Answer = TypeVar("Answer")

_LOOK_EVERY = 0.5
_ASK_WITHIN = 10.0
# Longer than the five seconds after which Kafka's clients commit by default.
_STILL = 6.0
_QUIET = ("empty", "dead")


class ManualLauncher:
    """Asks people, and never gives up by itself: `look` ends the waiting."""

    name = "manual"

    def __init__(self, properties: Mapping[str, str], say: Say) -> None:
        self._properties = properties
        self._say = say
        self._admin: Admin | None = None

    def scale(self, fleet: Fleet, count: int, look: Look) -> None:
        """Waits until the group has at least `count` members.

        Consumers that assign partitions to themselves never show as members: there, until the
        group's committed offsets move.
        """
        if count == 0:
            self.stop(fleet, look)
            return
        running = self._ask(lambda: self._count_members(fleet), look)
        if running == count:
            return
        where = _tell_where(fleet)
        if running > count:
            self._say(f"End {running - count} of the {running} consumers {where}: {count} will do.")
            return
        before = self._ask(lambda: self._read_commits(fleet), look)
        more = f"{count - running} more consumers" if running else _tell_number(count)
        self._say(f"Start {more} {where}; waiting until the group has {_tell_members(count)}.")
        while True:
            members = self._ask(lambda: self._count_members(fleet), look)
            if members >= count:
                return
            if not members and self._ask(lambda: self._read_commits(fleet), look) != before:
                return
            _pause(look)

    def stop(self, fleet: Fleet, look: Look) -> None:
        """Waits until the group is empty.

        Where it had no members to begin with, until its committed offsets have not moved for a
        while too: its consumers may be of those that never show as members.
        """
        had_members = not self._ask(lambda: self._is_quiet(fleet), look)
        self._say(f"Stop every consumer {_tell_where(fleet)}; waiting until the group is empty.")
        while not self._ask(lambda: self._is_quiet(fleet), look):
            _pause(look)
        if had_members:
            return
        commits = self._ask(lambda: self._read_commits(fleet), look)
        still = Deadline(_STILL)
        while not still.expired:
            _pause(look)
            now = self._ask(lambda: self._read_commits(fleet), look)
            if now != commits or not self._ask(lambda: self._is_quiet(fleet), look):
                commits, still = now, Deadline(_STILL)

    def count_running(self, fleet: Fleet) -> int | None:
        """The group's members; consumers that assign partitions to themselves do not show."""
        return self._count_members(fleet)

    def describe(self, fleet: Fleet) -> str:
        """For a plan: that somebody must be there."""
        return (
            f"by hand: the run says when consumers {_tell_where(fleet)} start and stop, and waits"
        )

    def _connect(self) -> Admin:
        if self._admin is None:
            self._admin = make_admin(self._properties)
        return self._admin

    def _is_quiet(self, fleet: Fleet) -> bool:
        state = read_group_state(self._connect(), fleet.group, Deadline(_ASK_WITHIN))
        return state.state in _QUIET

    def _count_members(self, fleet: Fleet) -> int:
        # The coordinator is asked for members only where there are some, see `read_commits`.
        if self._is_quiet(fleet):
            return 0
        state = describe_group_state(self._connect(), fleet.group, Deadline(_ASK_WITHIN))
        return len(state.members)

    def _read_commits(self, fleet: Fleet) -> dict[int, int | None]:
        admin, limit = self._connect(), Deadline(_ASK_WITHIN)
        partitions = range(read_topic_id(admin, fleet.topic, limit)[1])
        return committed_offsets(admin, fleet.group, fleet.topic, partitions, limit)

    def _ask(self, question: Callable[[], Answer], look: Look) -> Answer:
        """The cluster's answer; brokers may be away for a while, people are slower."""
        while True:
            look()
            try:
                return question()
            except KafkaFailure as error:
                if not error.retryable:
                    raise
            _pause(look)


def _pause(look: Look) -> None:
    look()
    time.sleep(_LOOK_EVERY)


def _tell_number(count: int) -> str:
    return f"{count} consumer{'' if count == 1 else 's'}"


def _tell_members(count: int) -> str:
    return f"{count} member{'' if count == 1 else 's'}"


def _tell_where(fleet: Fleet) -> str:
    recovery = f" (recovery {fleet.recovery_id})" if fleet.role is Role.RECOVERY else ""
    return (
        f"of group {fleet.group} on topic {fleet.topic} at {fleet.bootstrap_servers} "
        f"for stream {fleet.stream}{recovery}"
    )
