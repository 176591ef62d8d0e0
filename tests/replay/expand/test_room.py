"""An expansion and the disks of the brokers: its relays wait above the floor; a full one is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, Refused
from backlogctl.fanout.launchers import Role
from backlogctl.kafka import room
from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.kafka.log_dirs import BrokerLogDirs, LogDirs
from backlogctl.kafka.room import RoomBrake
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import DiskFloor
from tests.kit.disks import BALLAST, MIB, doing, fill, fill_up, read_usable, resize
from tests.kit.kafka import delete_topic, wait_until
from tests.replay.expand.conftest import MakeWorld
from tests.replay.expand.oracle import judge
from tests.replay.expand.test_faults import SLOW
from tests.replay.expand.world import WITHIN, World

SOON = 20.0


def test_a_copy_is_held_by_what_it_took_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on when there is room for more than that."""
    monkeypatch.setattr(room, "ROOM_EACH", 0.0)
    answers: list[int | None] = [50, 40, 29, 28, 48, None, 60, 59]

    def read(_: Mapping[str, Any], __: str, ___: Deadline) -> LogDirs:
        left = answers.pop(0)
        if left is None:
            return LogDirs(None, "no broker answered")
        return LogDirs((BrokerLogDirs(1, left * MIB, 100 * MIB, {0: 1}),))

    brake = RoomBrake({}, "orders.recovery", DiskFloor.parse("10%"), read)
    told = [brake.look() for _ in range(8)]
    held = [bool(why) for why in told]
    # 11 MiB a look would be at the floor after two more. Who does not answer changes nothing.
    assert held == [False, False, True, True, True, True, False, False]
    assert "the disk of broker 1 has 30.4 MB left, of which 10.5 MB stay free" in told[2]


def set_floor(world: World, text: str) -> None:
    path = world.directory / "backlog.yaml"
    document = json.loads(path.read_text())
    document["streams"][world.stream]["limits"] = {"disk_free": text}
    path.write_text(json.dumps(document))


def test_fault_127_relays_wait_above_the_floor_and_go_on(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    with EmbeddedKafka.start(tmp_path / "kafka", disk_bytes=128 * MIB) as kafka:
        world = make_world(bootstrap=kafka.bootstrap)
        create_topic(world.properties, BALLAST, partitions=1)
        fill(world.properties, BALLAST, 40 * MIB)
        usable = read_usable(world.properties, world.topic)
        set_floor(world, f"{usable + MIB} B")
        with pytest.raises(Refused, match="stays free"):
            world.plan_approved(rate=1)
        recovery = world.plan_approved(rate=1, allow=("disk",))

        def make_room() -> None:
            wait_until(lambda: "the relays wait, and" in world.told.getvalue(), what="they wait")
            copy, numbers = recovery.plan["temporary"]["topic"], range(4)

            def is_still() -> bool:
                before = list_offsets(world.properties, copy, numbers, "latest")
                time.sleep(2 * room.ROOM_EACH)
                return list_offsets(world.properties, copy, numbers, "latest") == before

            # What was in hand when they were told is written.
            wait_until(is_still, what="nothing is copied any more")
            delete_topic(world.properties, BALLAST)

        with doing(make_room):
            world.run(recovery)
        told = world.told.getvalue()
        assert "the disks have room again: the relays go on" in told
        assert judge(world, recovery) == []
        world.end()


def test_fault_128_the_disk_is_full_in_the_drain(
    make_world: MakeWorld, tmp_path: Path, small_disk: Path
) -> None:
    """Who is away is told by name within seconds; with room all goes on."""
    resize(small_disk, 96 * MIB)
    with EmbeddedKafka.start(small_disk) as kafka:
        world = make_world(bootstrap=kafka.bootstrap)
        create_topic(world.properties, BALLAST, partitions=1)
        set_floor(world, "0%")
        recovery = world.plan_approved(rate=1)
        world.set_speed(Role.RECOVERY, SLOW)
        gone, ended = threading.Event(), threading.Event()

        def break_it() -> None:
            fill_up(kafka)
            gone.set()

        def mend() -> None:
            assert gone.wait(WITHIN)
            began, away = time.monotonic(), f"broker 1 at {kafka.bootstrap} is away since"
            wait_until(lambda: away in world.told.getvalue(), what="it is told")
            assert time.monotonic() - began < SOON
            resize(small_disk, 256 * MIB)
            kafka.restart()
            world.set_speed(Role.RECOVERY, None)
            assert ended.wait(2 * WITHIN)  # the broker ends with the thread that started it

        world.at("p4.7.consumers.started", break_it)
        with doing(mend):
            try:
                world.run(recovery)
            except BacklogError:
                world.run(recovery)
            finally:
                problems = judge(world, recovery)
                world.end()
                ended.set()
        assert problems == []
