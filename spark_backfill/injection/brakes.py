"""What may hold or stop an injection between two waves, and only there."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure, Paused, VerificationFailed
from backlogctl.kafka.admin import committed_offsets, list_offsets, read_group_state
from backlogctl.kafka.clients import (
    Admin,
    Connection,
    Properties,
    connect,
    make_admin,
    outlast,
)
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.kafka.ranges import read_ranges
from backlogctl.kafka.room import Read, Room, RoomWatch
from backlogctl.kafka.throttling import Throttling
from backlogctl.manifests import read_chunk
from backlogctl.spark_backfill.injection.job import HIDDEN_SECONDS, PATIENCE, await_visible
from backlogctl.spark_backfill.injection.newer import drop_rows
from backlogctl.values import Chunk, DiskFloor
from backlogctl_delivery.stamps import MESSAGE_ID, find_header

_LOOK_AGAIN = 0.5


@dataclass(frozen=True, slots=True)
class InjectionProgress:
    """How far an injection is, in messages.

    `slots` holds the messages of each slot that are committed, skipped ones too, and `chunks` how
    many chunks they are. `next` is what comes next: by slot, the bytes of its chunk; empty while
    nothing is to be sent. `throttling` is of the transactions of this run.
    """

    injected: int
    skipped: int
    total: int
    wave: int = 0
    slots: Mapping[int, int] = field(default_factory=dict)
    chunks: Mapping[int, int] = field(default_factory=dict)
    next: Mapping[int, int] = field(default_factory=dict)
    throttling: Throttling = field(default_factory=Throttling)

    @property
    def left(self) -> int:
        """Messages not committed yet."""
        return self.total - self.injected - self.skipped


class Brakes(Protocol):
    """Looked at before every wave, and now and then while waiting for the rate."""

    def check(self, progress: InjectionProgress) -> Room:
        """Returns when the next wave may go, with the room that it has; may wait.

        Raises:
            Paused: the work stops here and goes on with a later run.
        """


class Brake(Protocol):
    """One reason to hold or to stop."""

    def look(self, progress: InjectionProgress) -> str:
        """Why to wait for now; empty for no reason.

        Raises:
            Paused: stop instead.
        """


class NoBrakes:
    """Goes on, always."""

    def check(self, progress: InjectionProgress) -> Room:
        """Returns at once."""
        return Room()


class CombinedBrakes:
    """All of several brakes. Waits while one of them holds, at most `patience` seconds.

    Args:
        disk: asked for the room of each wave; None where nothing is to be asked.
        on_wait: hears why it waits, once for each wait.
    """

    def __init__(
        self,
        brakes: Sequence[Brake],
        disk: DiskBrake | None = None,
        *,
        patience: float = 300.0,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._brakes = (*brakes, disk) if disk else tuple(brakes)
        self._disk, self._patience, self._on_wait = disk, patience, on_wait

    def check(self, progress: InjectionProgress) -> Room:
        limit, is_told = Deadline(self._patience), False
        while reason := self._look(progress):
            if limit.expired:
                raise Paused(
                    f"stopped between two chunks: {reason}, for {self._patience:g} s",
                    hint="run it again later; it goes on where it stopped",
                )
            if not is_told:
                is_told = True
                self._on_wait(reason)
            threading.Event().wait(limit.remaining(_LOOK_AGAIN))
        return self._disk.room if self._disk else Room()

    def _look(self, progress: InjectionProgress) -> str:
        # All are asked: one that stops must not wait for one that holds.
        return "; ".join([reason for brake in self._brakes if (reason := brake.look(progress))])


class LiveLagBrake:
    """Holds while the live group is too far behind, our own messages not counted.

    Without live members the lag does not show any harm done, so it is not checked.
    """

    def __init__(
        self, connection: Connection, group: str, topic: str, partitions: int, max_lag: int
    ) -> None:
        self._admin: Admin = connect(connection)
        self._group, self._topic, self._max_lag = group, topic, max_lag
        self._partitions = range(partitions)
        # (end before our messages, end after them, how many offsets) per partition
        self._own: dict[int, list[tuple[int, int, int]]] = {p: [] for p in self._partitions}
        self._ends: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._chunks: dict[int, int] = {}
        self._next_look = 0.0
        self._last = ""

    def look(self, progress: InjectionProgress) -> str:
        """Why to wait: the lag is above the limit, or cannot be read while brokers are away."""
        if progress.slots == self._seen and time.monotonic() < self._next_look:
            return self._last
        try:
            self._last = self._measure(progress)
        except KafkaFailure as error:
            if not error.retryable:
                raise
            self._last = f"the lag of group {self._group} cannot be read ({error.message})"
        self._next_look = time.monotonic() + _LOOK_AGAIN
        return self._last

    def _measure(self, progress: InjectionProgress) -> str:
        ends = list_offsets(self._admin, self._topic, self._partitions, "latest", "read_committed")
        fresh = {
            slot: count - self._seen.get(slot, 0)
            for slot, count in progress.slots.items()
            if count > self._seen.get(slot, 0) and slot in self._ends
        }
        # Our last chunk may be above the last stable offset still: its markers are being written.
        highs = list_offsets(self._admin, self._topic, fresh, "latest")
        for slot, count in fresh.items():
            # Each chunk has a control record, too.
            offsets = count + progress.chunks.get(slot, 0) - self._chunks.get(slot, 0)
            before = self._ends[slot]
            self._own[slot].append((before, max(highs[slot], before + offsets), offsets))
        self._ends, self._seen = ends, dict(progress.slots)
        self._chunks = dict(progress.chunks)
        return self._judge(ends)

    def _judge(self, ends: Mapping[int, int]) -> str:
        state = read_group_state(self._admin, self._group)
        if not state.is_active:
            return ""
        commits = committed_offsets(self._admin, self._group, self._topic, self._partitions)
        lag = sum(self._lag(p, ends[p], at) for p, at in commits.items() if at is not None)
        if lag <= self._max_lag:
            return ""
        return f"group {self._group} is {lag} live messages behind, the limit is {self._max_lag}"

    def _lag(self, partition: int, end: int, committed: int) -> int:
        own = 0
        for before, after, count in self._own[partition]:
            # Live messages may lie between ours; at most `count` of what is unread is ours.
            own += min(count, max(0, after - max(committed, before)))
        return max(0, end - committed - own)


# Holds an injection before it fills the brokers' disks: a full broker stops for everybody.
#
# What is put back takes space like any message; after an offload it may be as much as was freed.


class DiskBrake:
    """Holds where no next chunk has room above the floor, on each disk that gets a copy of it.

    What others write meanwhile, and a chunk that is sent again, must fit into the floor: a wave
    lasts some seconds.
    """

    def __init__(
        self,
        properties: Properties,
        topic: str,
        floor: DiskFloor,
        say: Callable[[str], None] = lambda _: None,
        read: Read = read_log_dirs,
    ) -> None:
        """Args: `say` hears once that the room is unknown: then it holds nothing."""
        self._watch = RoomWatch(properties, topic, floor, read)
        self._say, self._told = say, ""

    @property
    def room(self) -> Room:
        """As it was at the last look before a wave."""
        return self._watch.room

    def look(self, progress: InjectionProgress) -> str:
        """Why to wait: what comes next does not fit, or room that was told is not told any more."""
        if not progress.next:
            return ""
        why = self._watch.look(progress.next)
        unknown = self.room.unknown
        if not why and unknown and not self._told:
            self._told = unknown
            self._say(f"whether the disks have room is unknown, and brakes nothing: {unknown}")
        return why


# The canary: the first, small chunks are read back before the rest goes.

Message = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def read_canary_back(
    properties: Properties,
    topic: str,
    directory: Path,
    chunks: Sequence[Chunk],
    *,
    start: int,
    end: int | None = None,
    wait: float = HIDDEN_SECONDS,
    patience: float = PATIENCE,
    look: Callable[[], None] | None = None,
    left_out: Mapping[Chunk, Sequence[int]] | None = None,
) -> int:
    """Compares the canary in the topic, as a read_committed reader sees it, with the staged one.

    Copies count whichever recovery sent them.

    Args:
        chunks: of one slot, all committed.
        start: an offset of the slot's partition at or before the first of them.
        end: the offset after the last of them; where it is not known it is read until each
            message was seen once.
        wait: seconds to wait for open transactions that hide it.
        patience: seconds to wait for brokers that are away.
        look: called while waiting; may raise.
        left_out: messages of a chunk, counted from 0, that were not sent.

    Returns:
        The offset after the last message of the canary; `start` where nothing of it was sent.

    Raises:
        VerificationFailed: a message is missing, doubled or different, or retention removed it.
        Paused: somebody's open transaction hides it.
    """
    slot = chunks[0].slot
    staged: dict[str, Message] = {}
    for chunk in chunks:
        rows = (left_out or {}).get(chunk, ())
        staged.update(_list_staged(drop_rows(read_chunk(directory, chunk), rows)))
    if not staged:
        return start
    admin = make_admin(properties)

    def ask(spec: Literal["earliest", "latest"]) -> int:
        return outlast(Deadline(patience), lambda: list_offsets(admin, topic, [slot], spec)[slot])

    stop = ask("latest") if end is None else end
    await_visible(admin, topic, {slot: stop}, wait, patience=patience, look=look)
    low = ask("earliest")
    begin = max(start, low)
    seen, reached = outlast(
        Deadline(patience),
        lambda: _read_messages(
            properties, topic, slot, staged, begin, stop, until_seen=end is None
        ),
    )
    if low > start and any(name not in seen for name in staged):
        raise VerificationFailed(
            f"retention has removed the offsets {start} to {low}, and with them what may be a part "
            "of the canary, before it was read back; the rest was not sent",
            subject=f"topic {topic}[{slot}]",
            hint="cancel this recovery and plan again: what was injected is not sent twice",
        )
    wrong = {
        "missing": [name for name in staged if not seen.get(name)],
        "twice": [name for name, found in seen.items() if sum(found.values()) > 1],
        "different": [name for name, found in seen.items() if set(found) != {staged[name]}],
    }
    if any(wrong.values()):
        what = "; ".join(f"{len(ids)} {how}: {ids[:5]}" for how, ids in wrong.items() if ids)
        raise VerificationFailed(
            f"the canary of {len(staged)} messages reads back wrong ({what}); the rest was not "
            "sent",
            subject=f"topic {topic}[{slot}]",
            hint="look at these messages in the topic; cancel this recovery and plan again",
        )
    return reached


def await_group_past(
    properties: Properties,
    group: str,
    topic: str,
    slot: int,
    offset: int,
    seconds: float,
    look: Callable[[], None],
    *,
    patience: float = PATIENCE,
) -> None:
    """Waits until the group has committed past the canary; at once where it has no members.

    Args:
        look: called while waiting; may raise Paused.
        patience: seconds to wait for brokers that are away.

    Raises:
        Paused: the group did not get there in `seconds`.
    """
    admin = make_admin(properties)
    limit = Deadline(seconds)

    def read() -> tuple[bool, int | None]:
        state = read_group_state(admin, group)
        return state.is_active, committed_offsets(admin, group, topic, [slot])[slot]

    while True:
        is_active, committed = outlast(Deadline(patience), read)
        if not is_active or (committed is not None and committed >= offset):
            return
        if limit.expired:
            raise Paused(
                f"the group has not committed past the canary within {seconds:g} s: it is at "
                f"{committed}, the canary ends at {offset}",
                subject=f"group {group} on topic {topic}[{slot}]",
                hint="if it only lags, run it again when it has caught up; if it is stuck, look at "
                "the canary's messages in its log",
            )
        look()
        threading.Event().wait(limit.remaining(0.3))


def _list_staged(table: pa.Table) -> dict[str, Message]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return {
        row["message_id"]: (
            row["key"],
            row["value"],
            tuple((header["name"], header["value"]) for header in row["headers"]),
        )
        for row in rows
    }


def _read_messages(
    properties: Properties,
    topic: str,
    partition: int,
    wanted: Mapping[str, Message],
    begin: int,
    stop: int,
    *,
    until_seen: bool,
) -> tuple[dict[str, Counter[Message]], int]:
    """What was found of `wanted` in `[begin, stop)`, and the offset after the last of it."""
    seen: dict[str, Counter[Message]] = {}
    end = begin
    places = {partition: begin}, {partition: stop}
    with closing(read_ranges(properties, topic, *places, "read the canary back")) as messages:
        for message in messages:
            headers: Any = message.headers() or []
            name = find_header(headers, MESSAGE_ID)
            if name is not None and name in wanted:
                content: Any = (message.key(), message.value(), tuple(headers))
                seen.setdefault(name, Counter())[content] += 1
                end = (message.offset() or 0) + 1
            if until_seen and len(seen) == len(wanted):
                break
    return seen, end
