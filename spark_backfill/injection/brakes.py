"""What may hold or stop an injection between two waves, and only there."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from backlog.clock import Deadline
from backlog.errors import KafkaFailure, Paused
from backlog.kafka.admin import committed_offsets, list_offsets, read_group_state
from backlog.kafka.calls import Connection, connect
from backlog.kafka.clients import Admin

_LOOK_AGAIN = 0.5


@dataclass(frozen=True, slots=True)
class InjectionProgress:
    """How far an injection is, in messages.

    `slots` holds the messages of each slot that are committed, skipped ones too, and `chunks` how
    many chunks they are.
    """

    injected: int
    skipped: int
    total: int
    wave: int = 0
    slots: Mapping[int, int] = field(default_factory=dict)
    chunks: Mapping[int, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Messages not committed yet."""
        return self.total - self.injected - self.skipped


class Brakes(Protocol):
    """Looked at before every wave, and now and then while waiting for the rate."""

    def check(self, progress: InjectionProgress) -> None:
        """Returns when the next wave may go; may wait.

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

    def check(self, progress: InjectionProgress) -> None:
        """Returns at once."""


class CombinedBrakes:
    """All of several brakes. Waits while one of them holds, at most `patience` seconds."""

    def __init__(self, brakes: Sequence[Brake], *, patience: float = 300.0) -> None:
        self._brakes = tuple(brakes)
        self._patience = patience

    def check(self, progress: InjectionProgress) -> None:
        limit = Deadline(self._patience)
        while reason := self._look(progress):
            if limit.expired:
                raise Paused(
                    f"stopped between two chunks: {reason}, for {self._patience:g} s",
                    hint="run it again later; it goes on where it stopped",
                )
            threading.Event().wait(limit.remaining(_LOOK_AGAIN))

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
