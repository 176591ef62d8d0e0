"""What consumers do, what is promised of plans, and the oracle that judges them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from tests.accuracy.traffic import Traffic

# Where clocks are set back from half an hour to two and a half after it.
BEGIN, ZONE = datetime(2025, 10, 25, 23, 30, tzinfo=UTC), "Europe/Berlin"
MESSAGES = 43_200
PER_SECOND = 3.0
PARTITIONS = 12


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of traffic. Shares are of all messages.

    Attributes:
        late: sent `LATE` after their row, behind messages of younger rows.
        long: rows of long transactions: as old as their begin, sent at their end.
        unsent: rows whose message was never sent.
        deleted: messages whose row is gone from the table.
        keyless: messages without a key, spread round robin.
        transaction: messages of one Kafka transaction; 0, the producer has none.
        one_partition: only one partition lost something; all others are handled.
        mutable: rows are orders that change; a message restates one.
        bulk: each eighth run of so many rows is one insert: they have one time; 0, none is.
        whole_seconds: the table's times have no fractions.
        backfill: rows that say a time hours ago, and are sent now.
        kept: so many messages of a partition are left in the end, at most; None for what retention
            leaves.
        traced: each message has a header that is its own.
        wall_clock: the table's times are those of `ZONE`, without a zone.
    """

    name: str
    late: float = 0.0
    long: float = 0.0
    unsent: float = 0.0
    deleted: float = 0.0
    keyless: float = 0.0
    transaction: int = 0
    one_partition: bool = False
    mutable: bool = False
    bulk: int = 0
    whole_seconds: bool = False
    backfill: float = 0.0
    kept: int | None = None
    traced: bool = False
    wall_clock: bool = False


LATE = timedelta(seconds=50)

SCENARIOS = {
    item.name: item
    for item in (
        Scenario("tight"),
        Scenario("loose", late=0.01),
        Scenario("long", long=0.02),
        # Four messages a partition and a control record: 20 % of the offsets.
        Scenario("control", transaction=48),
        Scenario("unsent", unsent=0.005),
        Scenario("deleted", deleted=0.005),
        Scenario("keyless", keyless=0.11),
        Scenario("one", one_partition=True),
        Scenario("restate", mutable=True),
        Scenario("bulk", bulk=600),
        Scenario("seconds", whole_seconds=True),
        Scenario("backfill", backfill=0.005),
        Scenario("few", kept=1),
        Scenario("traced", traced=True),
        Scenario("doubled", wall_clock=True),
    )
}


@dataclass(frozen=True, slots=True)
class Shape:
    """How long the story is, from the number of its messages: four hours at the full number.

    The consumers fall behind for the first quarter, and stop. Retention keeps one half.
    """

    messages: int = MESSAGES

    @property
    def duration(self) -> timedelta:
        return timedelta(seconds=self.messages / PER_SECOND)

    @property
    def stop(self) -> timedelta:
        """When the consumers stop, after the beginning."""
        return self.duration / 4

    @property
    def retention(self) -> timedelta:
        return self.duration / 2

    @property
    def lags(self) -> tuple[timedelta, timedelta]:
        """How far behind the least and the most unlucky partition are when the consumers stop."""
        return self.duration / 48, self.duration / 6

    @property
    def segment(self) -> timedelta:
        """Retention deletes whole segments: so much is kept longer at most."""
        return self.duration / 24

    @property
    def longest(self) -> timedelta:
        """The longest database transaction: two minutes."""
        return self.duration / 120

    @property
    def ten_minutes(self) -> timedelta:
        return self.duration / 24

    @property
    def hour(self) -> timedelta:
        """How much too early the operator's `--since` is."""
        return self.duration / 4

    @property
    def margin(self) -> timedelta:
        """The stream's `margin`: its default at the full length."""
        return max(2 * LATE, self.duration / 24)

    @property
    def lost_from_one(self) -> int:
        """Messages that the one partition loses: 1,123 of the full number."""
        return round(self.messages * 1_123 / MESSAGES)


EXACT, WITHIN = "exact", "within"


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
