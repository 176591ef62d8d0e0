"""Random bad days of an offload, and of the night after it, all from one seed.

A stream with traffic is offloaded: runners are killed at points and at moments, or stopped and woken
up late; at times it is cancelled. In every second one somebody deletes records, the group or a
commit after a kill. Then what waits in the archive is put back, by runners that are killed too. The
oracle is asked while it is offloaded, and at the end.
"""

from __future__ import annotations

import functools
import random
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from backlogctl.config import SparkSection
from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import list_offsets
from backlogctl.replay.kinds.offload.plan import FORWARD
from backlogctl.values import Recovery
from examples.stage import SHORT_LIVED_JVM
from tests.crash.offload.world import (
    DONE,
    CrashWorld,
    judge_cancelled,
    judge_end,
    judge_offloaded,
    judge_outsiders,
)
from tests.crash.points import OFFLOAD_POINTS, POINT_OF_NO_RETURN, POINTS
from tests.kit.kafka import delete_topic, move_log_start
from tests.kit.shortened import WORLD, shorten_crash
from tests.replay.expand.test_commits_and_retention import forget
from tests.replay.expand.world import PARTITIONS
from tests.replay.offload.world import find_fence

BACKLOG = 480
NOTHING = "nothing"
# A run takes about as long on a quiet machine; later moments would kill nothing.
_LATEST_MOMENT = 14.0
# What a runner of an injection comes to when nothing goes wrong.
_BACK_POINTS = tuple(point for point in POINTS if not point.startswith("p3.6"))
_NO_RETURN = OFFLOAD_POINTS.index(POINT_OF_NO_RETURN)


@dataclass(frozen=True)
class Blow:
    """A runner is killed at a point, or some seconds after its start; or it is stopped there, and
    wakes up when all is over."""

    point: str = ""
    moment: float = 0.0
    stopped: bool = False
    act: str = NOTHING  # what somebody does then

    def __str__(self) -> str:
        told = self.point or f"{self.moment:.1f} s"
        told += " (stopped)" if self.stopped else ""
        return told if self.act == NOTHING else f"{told} then {self.act}"


def _delete(world: CrashWorld, ends: Mapping[int, int], share: float) -> None:
    """Of each partition a share of what the group has not read, while nobody is in it: what members
    may have fetched is a suspicion, and no gap."""
    if world.find_members():
        return
    lows, commits = world.read_lows(), world.read_commits()
    starts = {number: max(lows[number], commits[number] or 0) for number in ends}
    wanted = {n: at + round((ends[n] - at) * share) for n, at in starts.items() if at < ends[n]}
    if wanted:
        move_log_start(world.properties, world.topic, wanted)


def _delete_below(world: CrashWorld, recovery: Recovery) -> None:
    """Half of what is unread below the fence, or of all where there is none yet."""
    fence = find_fence(world, recovery)
    _delete(world, fence or _read_ends(world), 0.5)


def _delete_above(world: CrashWorld, recovery: Recovery) -> None:
    """As retention does that empties a partition: all of it, whose ever."""
    ends = _read_ends(world)
    _delete(world, {0: ends[0]}, 1.0)


def _read_ends(world: CrashWorld) -> dict[int, int]:
    return list_offsets(world.properties, world.topic, range(PARTITIONS), "latest")


def _forget(what: str) -> Callable[[CrashWorld, Recovery], None]:
    def act(world: CrashWorld, recovery: Recovery) -> None:
        if not world.find_members():  # brokers keep what members have
            forget(world, what)

    return act


ACTS: Mapping[str, Callable[[CrashWorld, Recovery], None]] = {
    NOTHING: lambda world, recovery: None,
    "delete records below the fence": _delete_below,
    "delete all records of a partition": _delete_above,
    "delete the group": _forget("group"),
    "delete a commit": _forget("one commit"),
}


@dataclass(frozen=True)
class OffloadSchedule:
    """One to three blows to the offload, none to two to what puts back."""

    seed: int
    blows: tuple[Blow, ...]
    back: tuple[Blow, ...]
    cancelled: bool  # after the last blow
    hanging: str  # a transaction that is open all through the offload: "", "commit", "abort"

    @classmethod
    def draw(cls, seed: int) -> OffloadSchedule:
        """The schedule of a seed, the same on every machine."""
        chance = random.Random(seed)
        cancelled = chance.random() < 0.35
        # Half of the cancels come before the group is moved.
        last = _NO_RETURN if cancelled and chance.random() < 0.5 else len(OFFLOAD_POINTS)
        count = chance.randint(1, 3)
        # In the protocol's order: a later run is past the earlier points.
        points = sorted(chance.sample(range(last), count))
        blows = [Blow(OFFLOAD_POINTS[at], stopped=chance.random() < 0.2) for at in points]
        if chance.random() < 0.5:
            blows.insert(0, Blow(moment=chance.uniform(1.0, _LATEST_MOMENT)))
        back = [
            Blow(f"{chance.choice(_BACK_POINTS)}:{chance.randint(1, 2)}")
            if chance.random() < 0.7
            else Blow(moment=chance.uniform(2.0, _LATEST_MOMENT))
            for _ in range(chance.choice((0, 1, 1, 2)))
        ]
        hanging = chance.choice(("", "", "commit", "abort"))
        if chance.random() < 0.5:
            acts = sorted(ACTS)
            blows = [
                blow if blow.stopped else replace(blow, act=chance.choice(acts)) for blow in blows
            ]
        return cls(seed, tuple(blows), tuple(back), cancelled, hanging)

    @property
    def is_orderly(self) -> bool:
        """Whether no outsider took part."""
        return all(blow.act == NOTHING for blow in self.blows)

    def __str__(self) -> str:
        told = f"seed {self.seed}: offload, killed at {', '.join(map(str, self.blows))}"
        told += ", then cancelled" if self.cancelled else ""
        told += f"; open transaction: {self.hanging}" if self.hanging else ""
        return told + (f"; night: {', '.join(map(str, self.back))}" if self.back else "")


@dataclass(frozen=True)
class OffloadVerdict:
    """What became of a schedule."""

    killed: int
    state: str
    archived: int
    told: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Nothing is nowhere, nothing was put back twice."""
        return not self.problems


def run_offload(bootstrap: str, directory: Path, schedule: OffloadSchedule) -> OffloadVerdict:
    """Runs one schedule on a topic of its own."""
    _keep_spark()
    with make_crash_world(bootstrap, directory, schedule.seed) as world:
        return Story(world, schedule).tell()


@functools.cache
def _keep_spark() -> object:
    """This process's own Spark, for what is not killed; no world's."""
    from backlogctl.spark_backfill.spark.session import open_session

    return open_session(SparkSection(master="local[2]"), "backlogctl crash")


@contextmanager
def make_crash_world(bootstrap: str, directory: Path, seed: int) -> Iterator[CrashWorld]:
    """A topic of its own with traffic and consumers; nothing of it stays."""
    name = f"orders-{seed}-{uuid.uuid4().hex[:8]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(WORLD, str(directory))
        patch.setenv("JDK_JAVA_OPTIONS", SHORT_LIVED_JVM)
        shorten_crash(patch.setattr)
        world = CrashWorld(directory, bootstrap, name, f"group-of-{name}", patch, seed=seed)
        try:
            world.begin(BACKLOG)
            yield world
        finally:
            world.end()
            delete_topic(world.properties, name)


class Story:
    """One schedule, carried out."""

    def __init__(self, world: CrashWorld, schedule: OffloadSchedule) -> None:
        self._world, self._schedule = world, schedule
        self._stopped: list[subprocess.Popen[str]] = []
        self._told: list[str] = []
        self._killed = 0

    def tell(self) -> OffloadVerdict:
        """The offload, the oracle, the night, the oracle."""
        world, schedule = self._world, self._schedule
        if schedule.hanging:
            world.traffic.begin(20)
        world.traffic.mix(40)
        recovery = world.plan_approved()
        with world.traffic.going_on():
            for blow in schedule.blows:
                self._strike(recovery, blow)
            if schedule.cancelled:
                self._cancel(recovery)
            self._told += world.finish(recovery)
        self._wake()
        problems = (self._judge if schedule.is_orderly else self._judge_outsiders)(recovery)
        state = str(world.read(recovery).state)
        archived = world.open().ledger.archives.find(recovery.id)
        count = 0 if archived is None or archived.purged_at else archived.messages
        return OffloadVerdict(self._killed, state, count, tuple(self._told), tuple(problems))

    def _judge(self, recovery: Recovery) -> list[str]:
        world, schedule = self._world, self._schedule
        forward = any(
            event.action == FORWARD for event in world.open().ledger.events.list(recovery.id)
        )
        state = "cancelled" if str(world.read(recovery).state) == "cancelled" else "verified"
        problems = judge_offloaded(world, recovery, state) if forward else []
        world.traffic.end_open(commit=schedule.hanging == "commit")
        if not forward:
            return judge_cancelled(world, recovery)
        back: Recovery | None = None
        try:
            back = world.plan_putting_back()
        except BacklogError as error:
            return [*problems, f"nothing is put back: {error.message}"]
        with world.traffic.going_on():
            for blow in schedule.back:
                self._strike(back, blow)
            self._told += world.finish(back)
        return [*problems, *judge_end(world, recovery, back)]

    def _judge_outsiders(self, recovery: Recovery) -> list[str]:
        """Whatever outsiders did: it comes to an end, nothing is lost in silence or put back twice,
        and what waits in the archive is put back."""
        world, schedule = self._world, self._schedule
        problems = []
        if str(world.read(recovery).state) not in DONE:
            self._told += [f"cancel: {world.cancel(recovery).state}"]
        world.traffic.end_open(commit=schedule.hanging == "commit")
        back: Recovery | None = None
        if world.open().ledger.gaps.list_waiting():
            back = world.plan_putting_back()
            with world.traffic.going_on():
                for blow in schedule.back:
                    self._strike(back, blow)
                self._told += world.finish(back)
            if str(world.read(back).state) != "verified":
                problems.append(f"what puts back is {world.read(back).state}")
        return [*problems, *judge_outsiders(world, recovery)]

    def _strike(self, recovery: Recovery, blow: Blow) -> None:
        if str(self._world.read(recovery).state) in DONE:
            return
        if blow.stopped:
            self._stopped.append(self._world.stop(recovery, blow.point))
        else:
            self._killed += self._world.kill(recovery, blow.point, blow.moment)
        self._world.note()
        ACTS[blow.act](self._world, recovery)
        self._world.note()

    def _cancel(self, recovery: Recovery) -> None:
        if str(self._world.read(recovery).state) in DONE:
            return
        try:
            self._world.cancel(recovery)
        except BacklogError as error:
            self._told.append(f"cancel: {type(error).__name__} {error.message}")

    def _wake(self) -> None:
        """What was stopped goes on when all is over."""
        for process in self._stopped:
            self._told.append(self._world.wake(process))
