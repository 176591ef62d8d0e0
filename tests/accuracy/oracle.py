"""Judges a plan by the simulation alone: which messages were lost, and which were staged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tests.accuracy.traffic import Traffic

EXACT = "exact"


@dataclass(frozen=True)
class Staged:
    """A message that the plan would put back, by the event's number."""

    event: int
    partition: int
    same_bytes: bool


@dataclass(frozen=True)
class Judgement:
    """What is wrong with a plan, in messages.

    Attributes:
        missed: lost, and not staged; `gone` of them have no row any more, so nobody could.
        doubled: staged, and not lost: handled, surviving, or staged twice.
        unsent: staged, and never sent.
        misplaced: lost and staged, but for another partition; one without a key belongs to none.
        altered: staged with another key or value than the message had.
        unlisted: missed though there is a row, or doubled, and not among the rows of which the
            plan says that they are uncertain.
    """

    lost: int
    staged: int
    missed: int
    gone: int
    doubled: int
    unsent: int
    misplaced: int
    altered: int
    unlisted: int

    @property
    def is_faultless(self) -> bool:
        """Whether exactly what was lost is put back, where it was."""
        return not (self.missed or self.doubled or self.unsent or self.misplaced or self.altered)


def list_lost(traffic: Traffic) -> set[int]:
    """Events whose message nobody will read, unless it is put back.

    Where messages restate orders, an order needs one only if its newest is lost.
    """
    lost: set[int] = set()
    for number, (start, end) in traffic.list_lost().items():
        events = traffic.logs[number].event[start:end]
        lost.update(events[events >= 0].tolist())
    if traffic.scenario.mutable:
        newest = {int(key): event for event, key in enumerate(traffic.events.key)}
        lost &= set(newest.values())
    return lost


def read_staged(traffic: Traffic, table: pa.Table) -> list[Staged]:
    """The staged messages as events."""
    events = traffic.events
    numbers = {name: number for number, name in enumerate(events.ids)}
    newest = {events.key_of(event): event for event in range(len(events))}
    found = []
    for message in table.to_pylist():
        key = None if message["key"] is None else message["key"].decode()
        if traffic.scenario.mutable:
            event = newest[key]
        else:
            headers = {header["name"]: header["value"] for header in message["headers"]}
            event = numbers[headers["event-id"].decode()]
        same = key == events.key_of(event) and message["value"] == events.payload_of(event)
        found.append(Staged(event, message["partition"], same))
    return found


def read_listed(traffic: Traffic, keys: Iterable[str]) -> set[int]:
    """The rows of these primary keys as events."""
    events = traffic.events
    numbers = {name: number for number, name in enumerate(events.ids)}
    if traffic.scenario.mutable:
        numbers = {events.key_of(event) or "": event for event in range(len(events))}
    return {numbers[key] for key in keys}


def judge(traffic: Traffic, staged: list[Staged], listed: Collection[int] = ()) -> Judgement:
    """Compares what was staged with what was lost.

    Args:
        listed: rows that the plan calls uncertain.
    """
    events, lost = traffic.events, list_lost(traffic)
    copies = Counter(item.event for item in staged)
    missed = lost - set(copies)
    unsent = set(np.flatnonzero(events.sent < 0).tolist())
    doubled = sum(count - (event in lost) for event, count in copies.items() if event not in unsent)
    there = {event for event in missed if not events.deleted[event]}
    return Judgement(
        lost=len(lost),
        staged=len(staged),
        missed=len(missed),
        gone=sum(bool(events.deleted[event]) for event in missed),
        doubled=doubled,
        unsent=sum(count for event, count in copies.items() if event in unsent),
        misplaced=sum(
            bool(item.partition != events.partition[item.event])
            for item in staged
            if item.event in lost and events.key[item.event] >= 0
        ),
        altered=sum(not item.same_bytes for item in staged),
        unlisted=len((there | (set(copies) - lost)) - set(listed)),
    )
