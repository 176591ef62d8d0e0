"""Random bad days of an expansion: runners are killed, and outsiders do what they do.

After each kill somebody may reset the group, delete the temporary topic, start a consumer of their
own, or kill the recovery's. Then it is brought to its end as the runbook says: run it, else cancel
it, else cancel it with `--rewind`. The oracle asks the consumers' own record.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from confluent_kafka import KafkaException

from backlogctl.errors import BacklogError
from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.values import Recovery
from tests.crash.points import RUNNER_POINTS
from tests.kit.kafka import delete_topic, move_log_start, read_all, wait_until
from tests.kit.shortened import WORLD
from tests.replay.expand.oracle import (
    KEPT,
    SETTINGS,
    await_handled,
    find_disorder,
    find_layout_problems,
    read_log,
)
from tests.replay.expand.test_commits_and_retention import empty_partition, forget
from tests.replay.expand.test_outsiders import set_to_latest
from tests.replay.expand.world import PARTITIONS, WITHIN, World

BACKLOG = 600
# What leaves the order of each key, and what was handled once, as they are.
HARMLESS = ("nothing", "publish", "kill consumers")
CUT = "delete half of the copy"
_ENDINGS = (("run",), ("cancel",), ("cancel", "--rewind"), ("cancel", "--leave-consumers"))
_DONE = ("verified", "cancelled")


@dataclass(frozen=True)
class Blow:
    """The runner is killed at a point, and then somebody acts."""

    point: str
    act: str

    def __str__(self) -> str:
        return f"{self.point} then {self.act}"


@dataclass(frozen=True)
class ExpandSchedule:
    """One to three blows, all from one seed."""

    seed: int
    blows: tuple[Blow, ...]

    @classmethod
    def draw(cls, seed: int) -> ExpandSchedule:
        """The schedule of a seed, the same on every machine."""
        chance = random.Random(seed)
        count = chance.randint(1, 3)
        # In the protocol's order: a later run is past the earlier points.
        points = sorted(chance.sample(range(len(RUNNER_POINTS)), count))
        blows = (Blow(RUNNER_POINTS[at], chance.choice(sorted(ACTS))) for at in points)
        return cls(seed, tuple(blows))

    @property
    def is_orderly(self) -> bool:
        """Whether no outsider took part."""
        return all(blow.act in HARMLESS for blow in self.blows)

    def __str__(self) -> str:
        return f"seed {self.seed}: expansion, killed at {'; '.join(map(str, self.blows))}"


@dataclass(frozen=True)
class ExpandVerdict:
    """What became of a schedule: how it was ended, and what the oracle found."""

    killed: int
    state: str
    endings: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Nothing is lost in silence, and the layout is as it was."""
        return not self.problems


def run_expansion(bootstrap: str, directory: Path, schedule: ExpandSchedule) -> ExpandVerdict:
    """Runs one schedule on a topic of its own."""
    name = f"orders-{schedule.seed}-{os.getpid()}"
    create_topic({"bootstrap.servers": bootstrap}, name, partitions=PARTITIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(WORLD, str(directory))
        world = World(directory, bootstrap, name, f"group-of-{name}", patch)
        try:
            return _run(world, schedule)
        finally:
            world.end()


def _run(world: World, schedule: ExpandSchedule) -> ExpandVerdict:
    world.write_config()
    world.publish(BACKLOG)
    world.start_originals()
    wait_until(lambda: "order-service-original" in world.find_members(), what="they have joined")
    recovery = world.plan_approved()
    killed = 0
    for blow in schedule.blows:
        process = world.start("run", recovery.id, "--json", crash_at=blow.point)
        process.communicate(timeout=WITHIN)
        killed += process.returncode == -signal.SIGKILL
        # What is not there yet, or no more, cannot be deleted; a group with members cannot be set.
        with suppress(BacklogError, KafkaException, AssertionError):
            ACTS[blow.act](world, recovery)
        world.publish(40)
    endings = _bring_to_an_end(world, recovery)
    world.release_holds()
    found = tuple(_find_problems(world, recovery, schedule))
    return ExpandVerdict(killed, str(world.read(recovery).state), endings, found)


def _bring_to_an_end(world: World, recovery: Recovery) -> tuple[str, ...]:
    """As the runbook says; what each command answered."""
    told: list[str] = []
    for verb, *options in _ENDINGS:
        if str(world.read(recovery).state) in _DONE:
            break
        said = world.call(verb, recovery.id, *options, "--json", code=None)
        answer = json.loads(said.out or "{}")
        error = answer.get("error") or answer
        told.append(f"{verb} {' '.join(options)}: {said.code} {error.get('message', '')}".strip())
    return tuple(told)


def _find_problems(world: World, recovery: Recovery, schedule: ExpandSchedule) -> list[str]:
    await_handled(world, 20.0 if not schedule.is_orderly else 90.0)
    state = str(world.read(recovery).state)
    problems = find_layout_problems(world, recovery, dict.fromkeys(SETTINGS), state)
    if state == "cancelled" and any(blow.act == CUT for blow in schedule.blows):
        # A copy that differs is kept for a person to look at.
        problems = [told for told in problems if told != KEPT]
    if state not in _DONE:
        problems.append(f"it did not come to an end: it is {state}")
    problems += _find_lost_in_silence(world, recovery, state)
    return [*problems, *(find_disorder(world) if schedule.is_orderly else [])]


def _find_lost_in_silence(world: World, recovery: Recovery, state: str) -> list[str]:
    """Messages that nobody handled and no gap names; and gaps beside a `verified`."""
    handled = {(line.key, line.sequence) for line in read_log(world)}
    gaps = [
        gap
        for gap in world.open().ledger.gaps.list(world.stream)
        if gap.start is not None and gap.end is not None
    ]
    left = silent = 0
    for message in read_all(world.properties, world.topic, range(PARTITIONS)):
        if ((message.key() or b"").decode(), int(message.value() or 0)) in handled:
            continue
        left += 1
        partition, offset = message.partition(), message.offset() or 0
        named = any(
            gap.partition == partition and (gap.start or 0) <= offset < (gap.end or 0)
            for gap in gaps
        )
        silent += not named
    problems = []
    if silent:
        problems.append(f"{silent} messages were handled by nobody and are in no gap")
    if left and state == "verified":
        problems.append(f"verified, and {left} messages were never handled")
    return problems


def _reset(spec: Literal["earliest", "latest"]) -> Callable[[World, Recovery], None]:
    def act(world: World, recovery: Recovery) -> None:
        wait_until(lambda: not world.find_members(), 15.0, "the group is empty")
        world.reset_group(spec)

    return act


def _delete_copy(world: World, recovery: Recovery) -> None:
    delete_topic(world.properties, recovery.plan["temporary"]["topic"])


def _let_one_join(world: World, recovery: Recovery) -> None:
    """A consumer of the group that handles what it gets, for a while."""
    intruder = world.start_intruder()
    with suppress(AssertionError):
        wait_until(lambda: "order-service-intruder" in world.find_members(), 10.0)
    intruder.terminate()
    intruder.wait(WITHIN)


def _kill_consumers(world: World, recovery: Recovery) -> None:
    for pid in world.list_pids(Role.RECOVERY, recovery):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _cut_copy(world: World, recovery: Recovery) -> None:
    """Half of each temporary partition, read or not."""
    layout = recovery.plan["temporary"]
    name, numbers = layout["topic"], range(layout["partitions"])
    ends = list_offsets(world.properties, name, numbers, "latest")
    move_log_start(world.properties, name, {n: at // 2 for n, at in ends.items() if at > 1})


def _forget(what: str) -> Callable[[World, Recovery], None]:
    def act(world: World, recovery: Recovery) -> None:
        if not world.find_members():  # brokers keep what members have
            forget(world, what)

    return act


ACTS: Mapping[str, Callable[[World, Recovery], None]] = {
    "nothing": lambda world, recovery: None,
    "publish": lambda world, recovery: world.publish(200),
    "kill consumers": _kill_consumers,
    "reset to latest": _reset("latest"),
    "reset to earliest": _reset("earliest"),
    "delete the copy": _delete_copy,
    "a consumer joins": _let_one_join,
    "set the copy forward": set_to_latest,
    CUT: _cut_copy,
    "delete the group": _forget("group"),
    "delete a commit": _forget("one commit"),
    "retention empties a partition": lambda world, recovery: empty_partition(world, 0),
}
