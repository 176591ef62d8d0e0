"""Whether what is written next has room, above a floor, on the disks where it will lie.

The brokers are asked, disk by disk; where they do not tell, the room is unknown, never enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from backlogctl.clock import Deadline
from backlogctl.formats import format_bytes
from backlogctl.kafka.clients import Properties
from backlogctl.kafka.log_dirs import LogDirs, read_log_dirs
from backlogctl.values import DiskFloor

ANSWER_SECONDS = 10.0
MAKE_ROOM = "make room there (a shorter retention of some topic, a larger disk), or lower the floor"


@dataclass(frozen=True, slots=True)
class FreeDisk:
    """A disk of a broker that partitions of the topic lie on; bytes."""

    broker: int
    usable: int
    floor: int
    partitions: frozenset[int]

    @property
    def spare(self) -> int:
        """What may be written; negative below the floor."""
        return self.usable - self.floor

    def __str__(self) -> str:
        """`the disk of broker 1 has 24.8 MB left, of which 6.7 MB stay free`."""
        return (
            f"the disk of broker {self.broker} has {format_bytes(self.usable)} left, of which "
            f"{format_bytes(self.floor)} stay free (`limits.disk_free`)"
        )


@dataclass(frozen=True)
class Room:
    """What may be written to a topic: the disks of all its replicas, as far as brokers tell them.

    `unknown` says of which they do not, and why; "" where all is known.
    """

    disks: tuple[FreeDisk, ...] = ()
    unknown: str = ""

    @cached_property
    def _placed(self) -> frozenset[int]:
        return frozenset[int]().union(*(disk.partitions for disk in self.disks))

    def count_need(self, disk: FreeDisk, wanted: Mapping[int, int]) -> int:
        """Bytes of `wanted`, by partition, that come to the disk. A partition of which nobody knows
        where it lies counts on each."""
        return sum(
            size
            for partition, size in wanted.items()
            if partition in disk.partitions or partition not in self._placed
        )

    def find_tightest(self, wanted: Mapping[int, int]) -> FreeDisk | None:
        """The disk that has the least left, or lacks the most, when `wanted` is written."""
        return min(
            self.disks, key=lambda disk: disk.spare - self.count_need(disk, wanted), default=None
        )

    def fits(self, wanted: Mapping[int, int]) -> bool:
        """Whether no disk is known on which it does not."""
        disk = self.find_tightest(wanted)
        return disk is None or self.count_need(disk, wanted) <= disk.spare


def measure_room(found: LogDirs, floor: DiskFloor) -> Room:
    """Of the topic that was asked for; where its partitions lie nowhere yet, every disk counts."""
    if found.brokers is None:
        return Room(unknown=found.reason)
    every = [(one.broker, disk) for one in found.brokers for disk in one.disks]
    holding = [(number, disk) for number, disk in every if disk.partitions] or every
    known, unknown = [], set[int]()
    for number, disk in holding:
        if disk.usable_bytes is None or disk.total_bytes is None:
            unknown.add(number)
            continue
        least = floor.count_bytes(disk.total_bytes)
        known.append(FreeDisk(number, disk.usable_bytes, least, disk.partitions))
    names = ", ".join(map(str, sorted(unknown)))
    told = f"brokers {names} do not report their free disk space (Kafka before 3.3, or managed)"
    return Room(tuple(known), "; ".join(filter(None, (told if unknown else "", found.reason))))


Read = Callable[[Properties, str, Deadline], LogDirs]


class RoomWatch:
    """Asks for the room of one topic again and again.

    A cluster that has never told it is not waited for: it will not. One that has told it and does
    not now is away, or was changed: nothing more is written before it answers.
    """

    def __init__(
        self,
        properties: Properties,
        topic: str,
        floor: DiskFloor,
        read: Read = read_log_dirs,
        within: float = ANSWER_SECONDS,
    ) -> None:
        self._properties, self._topic, self._floor, self._read = properties, topic, floor, read
        self._within = within
        self._was_known = False
        self._holders = frozenset[int]()
        self.room = Room()

    def look(self, wanted: Mapping[int, int]) -> str:
        """Why nothing of `wanted` may be written now; "" where some of it may, or that is unknown.
        `wanted`: by partition, the bytes that can be written at least.
        """
        found = self._read(self._properties, self._topic, Deadline(self._within))
        self.room = room = measure_room(found, self._floor)
        asked = {one.broker for one in found.brokers or ()}
        if room.disks and (away := self._holders - asked):
            # A disk that is full stops its broker: that makes no room.
            if away <= set(found.silent):
                return f"how much room there is for it is not known: {found.reason}"
            names = ", ".join(map(str, sorted(away)))
            return f"how much room the disks of brokers {names} have cannot be read: they are away"
        if room.disks:
            self._was_known = True
            self._holders = frozenset(disk.broker for disk in room.disks if disk.partitions)
        elif self._was_known:
            return f"how much room there is on the brokers is not known: {room.unknown}"
        if any(room.fits({partition: size}) for partition, size in wanted.items()) or not wanted:
            return ""
        smallest = dict([min(wanted.items(), key=lambda item: item[1])])
        disk = room.find_tightest(smallest)
        need = format_bytes(sum(smallest.values()))
        return f"{disk}, and the next messages may take {need}; {MAKE_ROOM}"


ROOM_EACH = 1.0
_ROOM_WITHIN = 3.0
# What a disk took between two looks it may take twice before the next one.
_AHEAD = 2


class RoomBrake:
    """Holds a copy that goes on by itself, before it fills a disk up to the floor.

    Attributes:
        held: it is to wait now.
        unknown: why nobody knows how much room a disk has; "" where all is known.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        topic: str,
        floor: DiskFloor,
        read: Read = read_log_dirs,
    ) -> None:
        self._watch = RoomWatch(properties, topic, floor, read, _ROOM_WITHIN)
        self._before: dict[tuple[int, frozenset[int]], int] = {}
        self._taken: dict[tuple[int, frozenset[int]], int] = {}
        self._next_look = 0.0
        self.held, self.unknown, self._why = False, "", ""

    def look(self) -> str:
        """Asks the brokers again where that is some time ago.

        Returns:
            Why it is held; "" where it is not. Where they do not answer, that stays as it was.
        """
        if time.monotonic() < self._next_look:
            return self._why if self.held else ""
        self._next_look = time.monotonic() + ROOM_EACH
        if not self._watch.look({}):
            room = self._watch.room
            self.unknown = room.unknown
            tight = [told for disk in room.disks if (told := self._judge(disk))]
            self.held, self._why = bool(tight), "; ".join(tight)
        return self._why if self.held else ""

    def _judge(self, disk: FreeDisk) -> str:
        place = (disk.broker, disk.partitions)
        taken = max(0, self._before.get(place, disk.usable) - disk.usable)
        self._before[place] = disk.usable
        if not self.held:
            self._taken[place] = taken
        # Not to and fro: twice as much room as it was held at.
        ahead = _AHEAD * (2 * self._taken.get(place, 0) if self.held else taken)
        if disk.spare > ahead:
            return ""
        took = format_bytes(self._taken.get(place, taken))
        return f"{disk}, and it took {took} between two looks; {MAKE_ROOM}"
