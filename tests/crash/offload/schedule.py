"""Random bad days of an offload, and of the night after it, all from one seed.

A stream with traffic is offloaded: runners are killed at points and at moments, or stopped and woken
up late; at times it is cancelled. Then what waits in the archive is put back, by runners that are
killed too. The oracle is asked while it is offloaded, and at the end.
"""

from __future__ import annotations

import functools
import random
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from backlogctl.config import SparkSection
from backlogctl.errors import BacklogError
from backlogctl.replay.kinds.offload.plan import FORWARD
from backlogctl.values import Recovery
from examples.stage import SHORT_LIVED_JVM
from tests.crash.offload.world import DONE, CrashWorld, judge_cancelled, judge_end, judge_offloaded
from tests.crash.points import OFFLOAD_POINTS, POINT_OF_NO_RETURN, POINTS
from tests.kit.kafka import delete_topic
from tests.kit.shortened import WORLD, shorten_crash

BACKLOG = 480
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

    def __str__(self) -> str:
        told = self.point or f"{self.moment:.1f} s"
        return f"{told} (stopped)" if self.stopped else told


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
        return cls(seed, tuple(blows), tuple(back), cancelled, hanging)

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
        problems = self._judge(recovery)
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

    def _strike(self, recovery: Recovery, blow: Blow) -> None:
        if str(self._world.read(recovery).state) in DONE:
            return
        if blow.stopped:
            self._stopped.append(self._world.stop(recovery, blow.point))
        else:
            self._killed += self._world.kill(recovery, blow.point, blow.moment)

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
