"""Consumers that people start and stop: says what to do, and waits until the group shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure
from backlogctl.fanout.launchers.interface import CheckStop, Fleet, Launcher, Role
from backlogctl.formats import Say, format_plural
from backlogctl.kafka.admin import (
    committed_offsets,
    describe_group_state,
    read_group_state,
    read_topic_id,
)
from backlogctl.kafka.clients import Admin, make_admin

# Consumers that are left as they are: a person starts and ends them.


class LeftLauncher:
    """Says what is left to do, and does nothing; for a launcher that fails."""

    name = "left"

    def __init__(self, real: Launcher, say: Say) -> None:
        self._real = real
        self._say = say

    def scale(self, fleet: Fleet, count: int, check_stop: CheckStop) -> None:
        """Nobody is started; says who is to be."""
        self._say(
            f"start {format_plural(count, 'consumer')} of group {fleet.group} on topic "
            f"{fleet.topic} yourself: {self._real.describe(fleet)}"
        )

    def stop(self, fleet: Fleet, check_stop: CheckStop) -> None:
        """Nobody is ended: the caller looks at the group, and names who is in it."""

    def count_running(self, fleet: Fleet) -> int | None:
        return None

    def explain(self, fleet: Fleet) -> str | None:
        return None

    def describe(self, fleet: Fleet) -> str:
        return "started and ended by you"

    def logs(self, fleet: Fleet) -> str:
        return self._real.logs(fleet)

    def check(self, original: Fleet, recovery: Fleet | None, count: int) -> tuple[str, ...]:
        return ()


Answer = TypeVar("Answer")

_POLL_SECONDS = 0.5
_ASK_WITHIN = 10.0
# Longer than the five seconds after which Kafka's clients commit by default.
_STILL = 6.0
_QUIET = ("empty", "dead")
_STOPPED = -1  # in the place of a number that was asked for: that was done


class ManualLauncher:
    """Asks people once for each thing, and never gives up by itself: `check_stop` ends the waiting.

    A request that is made again before it was carried out, or a stop where nothing has been started
    since, is not said again. What was carried out and is needed anew is.
    """

    name = "manual"

    def __init__(self, properties: Mapping[str, str], say: Say) -> None:
        self._properties = properties
        self._say = say
        self._admin: Admin | None = None
        self._asked: dict[str, int] = {}  # the number last asked for, by group

    def scale(self, fleet: Fleet, count: int, check_stop: CheckStop) -> None:
        """Waits until the group has at least `count` members.

        Consumers that assign partitions to themselves never show as members: there, until the
        group's committed offsets move.
        """
        if count == 0:
            self.stop(fleet, check_stop)
            return
        running = self._ask(lambda: self._count_members(fleet), check_stop)
        if running == count:
            return
        where = _describe_fleet(fleet)
        if running > count:
            told = f"End {running - count} of the {running} consumers {where}: {count} will do."
            self._ask_people(fleet, count, told)
            return
        before = self._ask(lambda: self._read_commits(fleet), check_stop)
        more = f"{count - running} more consumers" if running else format_plural(count, "consumer")
        members = format_plural(count, "member")
        told = f"Start {more} {where}; waiting until the group has {members}."
        self._ask_people(fleet, count, told)
        while True:
            running = self._ask(lambda: self._count_members(fleet), check_stop)
            moved = not running and before != self._ask(
                lambda: self._read_commits(fleet), check_stop
            )
            if running >= count or moved:
                del self._asked[fleet.group]  # where some end, they are asked for again
                return
            _pause(check_stop)

    def stop(self, fleet: Fleet, check_stop: CheckStop) -> None:
        """Waits until the group is empty.

        Where it had no members to begin with, until its committed offsets have not moved for a
        while too: its consumers may be of those that never show as members.
        """
        had_members = not self._ask(lambda: self._is_quiet(fleet), check_stop)
        if had_members or self._asked.get(fleet.group) != _STOPPED:
            told = (
                f"Stop every consumer {_describe_fleet(fleet)}; waiting until the group is empty."
            )
            self._ask_people(fleet, 0, told)
        while not self._ask(lambda: self._is_quiet(fleet), check_stop):
            _pause(check_stop)
        if not had_members:
            self._await_still(fleet, check_stop)
        self._asked[fleet.group] = _STOPPED

    def _await_still(self, fleet: Fleet, check_stop: CheckStop) -> None:
        """Until the group's commits have not moved for a while."""
        commits = self._ask(lambda: self._read_commits(fleet), check_stop)
        still = Deadline(_STILL)
        while not still.expired:
            _pause(check_stop)
            now = self._ask(lambda: self._read_commits(fleet), check_stop)
            if now != commits or not self._ask(lambda: self._is_quiet(fleet), check_stop):
                commits, still = now, Deadline(_STILL)

    def count_running(self, fleet: Fleet) -> int | None:
        """The group's members; consumers that assign partitions to themselves do not show."""
        return self._count_members(fleet)

    def explain(self, fleet: Fleet) -> str | None:
        return None

    def describe(self, fleet: Fleet) -> str:
        """For a plan: somebody must start and stop them."""
        return (
            f"by hand: the run says when to start and stop consumers {_describe_fleet(fleet)}, "
            "and waits"
        )

    def logs(self, fleet: Fleet) -> str:
        return "where who started them put them"

    def check(self, original: Fleet, recovery: Fleet | None, count: int) -> tuple[str, ...]:
        return ()

    def _ask_people(self, fleet: Fleet, count: int, text: str) -> None:
        if self._asked.get(fleet.group) != count:
            self._asked[fleet.group] = count
            self._say(text)

    def _connect(self) -> Admin:
        if self._admin is None:
            self._admin = make_admin(self._properties)
        return self._admin

    def _is_quiet(self, fleet: Fleet) -> bool:
        state = read_group_state(self._connect(), fleet.group, Deadline(_ASK_WITHIN))
        return state.state in _QUIET

    def _count_members(self, fleet: Fleet) -> int:
        state = describe_group_state(self._connect(), fleet.group, Deadline(_ASK_WITHIN))
        return len(state.members)

    def _read_commits(self, fleet: Fleet) -> dict[int, int | None]:
        admin, limit = self._connect(), Deadline(_ASK_WITHIN)
        partitions = range(read_topic_id(admin, fleet.topic, limit)[1])
        return committed_offsets(admin, fleet.group, fleet.topic, partitions, limit)

    def _ask(self, question: Callable[[], Answer], check_stop: CheckStop) -> Answer:
        """The cluster's answer; brokers may be away for a while, people are slower."""
        while True:
            check_stop()
            try:
                return question()
            except KafkaFailure as error:
                if not error.retryable:
                    raise
            _pause(check_stop)


def _pause(check_stop: CheckStop) -> None:
    check_stop()
    time.sleep(_POLL_SECONDS)


def _describe_fleet(fleet: Fleet) -> str:
    recovery = f" (recovery {fleet.recovery_id})" if fleet.role is Role.RECOVERY else ""
    return (
        f"of group {fleet.group} on topic {fleet.topic} at {fleet.bootstrap_servers} "
        f"for stream {fleet.stream}{recovery}"
    )
