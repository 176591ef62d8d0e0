"""Simulated traffic: rows, the messages and control records of a log, and a consumer that stops.

Everything here comes from one seed. Times are microseconds after `BEGIN`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from backlogctl.partitioners import place_murmur2
from tests.accuracy.scenarios import BEGIN, LATE, PARTITIONS, Scenario, Shape

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_SECOND = 1_000_000
# From the row to the broker, where nothing holds a message up.
_LATENCY = 5_000
_CUSTOMERS = 2_000


def to_micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def to_time(micros: int) -> datetime:
    return BEGIN + timedelta(microseconds=micros)


@dataclass(frozen=True)
class Events:
    """What happened, in the order of the rows; index `i` is everywhere the same event.

    `key` is a customer's number, or an order's where rows change; -1 is no key. `sent` is -1 where
    no message was sent.
    """

    ids: list[str]
    key: Longs
    created: Longs
    sent: Longs
    deleted: Flags
    partition: Longs

    def __len__(self) -> int:
        return len(self.ids)

    def key_of(self, i: int) -> str | None:
        number = int(self.key[i])
        return None if number < 0 else f"key-{number}"

    def payload_of(self, i: int) -> bytes:
        return f'{{"event": "{self.ids[i]}", "amount": {i % 977}}}'.encode()


@dataclass(frozen=True)
class Records:
    """One partition's log by offset: `event` is -1 for a control record; `batch` counts the
    topic's transactions."""

    event: Longs
    at: Longs
    batch: Longs

    @cached_property
    def messages(self) -> Longs:
        """Offsets that are messages."""
        return np.flatnonzero(self.event >= 0)

    def find_end(self, at: int) -> int:
        """The high watermark at a time."""
        return int(np.searchsorted(self.at, at, side="right"))


@dataclass(frozen=True)
class Consumer:
    """Of one partition: it falls behind until it stops, `lag` behind, at `stops`."""

    stops: int
    lag: int

    def find_position(self, at: int) -> int:
        """It has handled the messages up to this time."""
        now = min(at, self.stops)
        return now - self.lag * now // self.stops


@dataclass(frozen=True)
class Traffic:
    """The whole story of a topic."""

    scenario: Scenario
    shape: Shape
    events: Events
    logs: tuple[Records, ...]
    consumers: tuple[Consumer, ...]
    kept_longer: Longs
    batch_ends: Longs

    @property
    def end(self) -> int:
        return to_micros(self.shape.duration)

    def find_stable(self, partition: int, at: int) -> int:
        """The last stable offset at a time."""
        log = self.logs[partition]
        if not self.scenario.transaction:
            return log.find_end(at)
        decided = int(np.searchsorted(self.batch_ends, at, side="right"))
        return int(np.searchsorted(log.batch, decided, side="left"))

    def find_committed(self, partition: int, at: int) -> int:
        """The group's committed offset at a time: behind the last message that it handled."""
        log = self.logs[partition]
        limit = min(
            log.find_end(self.consumers[partition].find_position(at)),
            self.find_stable(partition, at),
        )
        handled = int(np.searchsorted(log.messages, limit, side="left"))
        return int(log.messages[handled - 1]) + 1 if handled else 0

    def find_low(self, partition: int, at: int) -> int:
        """The log start offset at a time."""
        kept = to_micros(self.shape.retention) + int(self.kept_longer[partition])
        low = self.logs[partition].find_end(at - kept) if at > kept else 0
        if self.scenario.kept is not None and at == self.end:
            return max(low, len(self.logs[partition].event) - self.scenario.kept)
        return low

    def find_next(self, partition: int, offset: int, at: int) -> int | None:
        """The first committed message at or after an offset, as a reader finds it at a time."""
        log = self.logs[partition]
        index = int(np.searchsorted(log.messages, offset, side="left"))
        if index == len(log.messages) or log.messages[index] >= self.find_stable(partition, at):
            return None
        return int(log.messages[index])

    def list_lost(self) -> dict[int, tuple[int, int]]:
        """Lost offsets `[start, end)` by partition, at the end of the story."""
        lost = {}
        for number in range(len(self.logs)):
            start, end = self.find_committed(number, self.end), self.find_low(number, self.end)
            if start < end:
                lost[number] = (start, end)
        return lost


def simulate(scenario: Scenario, shape: Shape, seed: int) -> Traffic:
    """The traffic of a seed, the same on every machine."""
    chance = np.random.default_rng(seed)
    events = _draw_events(chance, scenario, shape)
    logs, batch_ends = _append(events, scenario)
    kept = chance.integers(0, to_micros(shape.segment), PARTITIONS)
    traffic = Traffic(scenario, shape, events, logs, (), kept, batch_ends)
    consumers = _draw_consumers(chance, traffic)
    return Traffic(scenario, shape, events, logs, consumers, kept, batch_ends)


def _draw_events(chance: np.random.Generator, scenario: Scenario, shape: Shape) -> Events:
    n = shape.messages
    steps = chance.exponential(1.0, n).cumsum()
    # Each a microsecond later at least: no two rows have the same time.
    happened = (steps / steps[-1] * to_micros(shape.duration)).astype(np.int64) + np.arange(n)
    late = chance.random(n) < scenario.late
    long = chance.random(n) < scenario.long
    held = chance.integers(_SECOND, to_micros(shape.longest), n)
    created = np.where(long, happened - held, happened)
    created = _spoil_times(chance, scenario, created)
    sent = happened + _LATENCY + np.where(late, to_micros(LATE), 0)
    sent[chance.random(n) < scenario.unsent] = -1
    deleted = (chance.random(n) < scenario.deleted) & (sent >= 0)
    if scenario.mutable:
        key = chance.integers(0, n // 3, n)
    else:
        weights = 1.0 / (np.arange(_CUSTOMERS) + 10)
        key = chance.choice(_CUSTOMERS, n, p=weights / weights.sum())
    key = np.where(chance.random(n) < scenario.keyless, -1, key).astype(np.int64)
    ids = [str(uuid.UUID(bytes=chance.bytes(16), version=4)) for _ in range(n)]
    names = [None if number < 0 else f"key-{number}".encode() for number in key.tolist()]
    partition = place_murmur2(pa.array(names, pa.binary()), PARTITIONS).astype(np.int64)
    spread = np.flatnonzero((key < 0) & (sent >= 0))
    turns = np.argsort(sent[spread], kind="stable")
    partition[spread[turns]] = np.arange(len(spread)) % PARTITIONS
    return Events(ids, key, created, sent, deleted, partition)


def _spoil_times(chance: np.random.Generator, scenario: Scenario, created: Longs) -> Longs:
    """As the table has them, where that says less than when the rows were made."""
    if scenario.bulk:
        run = np.arange(len(created)) // scenario.bulk
        created = np.where(run % 8 == 3, created[run * scenario.bulk], created)
    if scenario.backfill:
        old = chance.random(len(created)) < scenario.backfill
        created = np.where(old, (created * chance.random(len(created))).astype(np.int64), created)
    if scenario.whole_seconds:
        created = created // _SECOND * _SECOND
    return created


def _append(events: Events, scenario: Scenario) -> tuple[tuple[Records, ...], Longs]:
    """The messages in the order in which they were sent, and a control record behind those of
    each transaction and partition."""
    order = np.argsort(events.sent, kind="stable")
    order = order[events.sent[order] >= 0]
    size = scenario.transaction
    batch = np.arange(len(order)) // max(1, size)
    lasts = np.flatnonzero(np.diff(batch, append=batch[-1] + 1))
    ends = events.sent[order[lasts]]
    logs = []
    for number in range(PARTITIONS):
        here = events.partition[order] == number
        event, of_batch = order[here], batch[here]
        at = events.sent[event]
        if size:
            touched = np.unique(of_batch)
            event = np.append(event, np.full(len(touched), -1))
            at = np.append(at, ends[touched])
            of_batch = np.append(of_batch, touched)
            # The sort keeps a batch's messages before its control record.
            sort = np.argsort(of_batch, kind="stable")
            event, at, of_batch = event[sort], at[sort], of_batch[sort]
        logs.append(Records(event, at, of_batch))
    return tuple(logs), ends


def _draw_consumers(chance: np.random.Generator, traffic: Traffic) -> tuple[Consumer, ...]:
    shape = traffic.shape
    least, most = map(to_micros, shape.lags)
    lags = chance.integers(least, most, PARTITIONS)
    if not traffic.scenario.one_partition:
        stop = to_micros(shape.stop)
        return tuple(Consumer(stop, int(lag)) for lag in lags)
    # Nearly idle: they end within the last minute.
    healthy = [Consumer(traffic.end * 2, int(lag) // 100) for lag in lags]
    chosen = int(np.argmax([len(log.event) for log in traffic.logs]))
    first_left = traffic.find_low(chosen, traffic.end)
    last_handled = traffic.logs[chosen].at[first_left - shape.lost_from_one - 1]
    healthy[chosen] = Consumer(int(last_handled) + least, least)
    return tuple(healthy)
