"""Tells a consumer whether messages are missing from what it reads.

    checker = SequenceChecker()
    verdict = checker.check(message)      # each message, before or after its work
    holes = checker.list_holes()          # now and then

One checker for one consumer and one thread. It takes in messages of `delivery.SequencedProducer`
and says nothing of others.

Numbers are counted by the partition in the stamp. A message that lies elsewhere, mostly put back by
a recovery, closes its hole and begins nothing: so a consumer that reads only the partition of the
copy forgets nothing for it, and one that reads only the partition of the hole still shows it.

A hole is a loss only when the consumer read on without a break. So call `forget` for partitions
that are taken away, or whose position is set by hand: what is read afterwards begins anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from backlogctl_delivery.sequenced.clients import Received, read_received
from backlogctl_delivery.sequenced.sequence import (
    Range,
    RangeSet,
    SequenceRanges,
    Stamp,
    UnreadableStamp,
    hash_topic,
    read_stamp,
)
from backlogctl_delivery.stamps import RECOVERY_ID

_LEAST_RANGES = 4


class SequenceVerdict(StrEnum):
    """What a message is, by its stamp.

    Do your work for all but `repeat` and `end_mark` as ever. `repeat`
    says that the number was seen here before: a producer's retry, or the consumer's own second
    reading after a crash that undid the work. So it is no licence to drop the message: that takes
    an idempotent consumer. `misplaced` lies in another partition than the one it was numbered for,
    and no recovery put it there: somebody sends on what others numbered. `foreign` was numbered
    for another topic: somebody passes headers on. `end_mark` is not the application's message: skip
    it.
    """

    NEW = "new"
    REPEAT = "repeat"
    LATE = "late"
    MISPLACED = "misplaced"
    FOREIGN = "foreign"
    NOT_STAMPED = "not_stamped"
    UNREADABLE = "unreadable"
    END_MARK = "end_mark"


@dataclass(frozen=True, order=True)
class Hole:
    """Messages that were sent and are not there: the numbers first..last, inclusive."""

    topic: str
    partition: int
    producer: str
    epoch: int
    first: int
    last: int


class ChainId(NamedTuple):
    """One producer's numbering of one partition since one of its starts."""

    topic: str
    partition: int
    producer: str
    epoch: int


class SequenceChecker:
    """Holes of the messages it was shown.

    Only what lies below the highest number seen can be a hole. An epoch's tail is known only where
    its producer marked the end (`mark_end`); else a crash with messages in flight shows nothing.

    Args:
        reads_from_start: the consumer reads its partitions from their first message ever, so that
            numbers missing below the first one seen are holes too. Not where retention, or an
            earlier reading, took the head.
        max_chains: as many (topic, partition, producer, epoch) are kept. Those not heard of for
            longest go first, with their holes, and are counted in `dropped`. As many again of which
            there are only copies, which displace none of the others.
        max_ranges: as many ranges of numbers are kept, about 100 bytes each, of which every chain
            has an equal share; see `unknown`. One chain without holes is one range. (A chain that
            fell silent keeps what it has, so that the worst is some nine times as many.)
        on_dropped: called with the holes of a chain that goes, if it has any.
    """

    def __init__(
        self,
        *,
        reads_from_start: bool = False,
        max_chains: int = 10_000,
        max_ranges: int = 200_000,
        on_dropped: Callable[[tuple[Hole, ...]], None] | None = None,
    ) -> None:
        if max_chains < 1 or max_ranges < 1:
            raise ValueError(
                f"max_chains={max_chains} and max_ranges={max_ranges} keep nothing: both are from 1"
            )
        self._reads_from_start = reads_from_start
        self._max_chains, self._max_ranges = max_chains, max_ranges
        self._share = max_ranges
        self._on_dropped = on_dropped
        self._chains: OrderedDict[ChainId, SequenceRanges] = OrderedDict()
        self._ended: set[ChainId] = set()
        # What copies hold of chains that are not read, or not yet.
        self._copies: OrderedDict[ChainId, RangeSet] = OrderedDict()
        self._copied_ranges = 0
        self._unknown_of_dropped = 0
        # Chains that went to make place.
        self.dropped = 0
        # Messages whose stamp could not be read.
        self.unreadable = 0
        # Messages in another partition than their stamp's, and not put there by a recovery.
        self.misplaced = 0
        # Messages whose stamp is of another topic: it says nothing of this one.
        self.foreign = 0
        self._hashes: dict[str, str] = {}

    @property
    def unknown(self) -> int:
        """How many numbers it lost sight of to stay within `max_ranges`: neither loss nor fine."""
        return self._unknown_of_dropped + sum(each.unknown for each in self._chains.values())

    @property
    def ended(self) -> frozenset[ChainId]:
        """The chains whose end was marked: what was seen of them is all there is."""
        return frozenset(self._ended)

    def check(self, message: Any) -> SequenceVerdict:
        """Takes in one message; never raises, whatever its headers hold.

        Args:
            message: confluent_kafka's Message or kafka-python's ConsumerRecord. One that stands for
                an error is `not_stamped`.
        """
        try:
            received = read_received(message)
            stamp = read_stamp(received.headers) if received is not None else None
        # ValueError: a header's name that is not UTF-8, which confluent_kafka cannot give.
        except (UnreadableStamp, ValueError):
            self.unreadable += 1
            return SequenceVerdict.UNREADABLE
        if received is None or stamp is None:
            return SequenceVerdict.NOT_STAMPED
        return self._take(received, stamp)

    def list_holes(self) -> tuple[Hole, ...]:
        """What is missing now, sorted. A message that is late closes its hole."""
        return tuple(
            sorted(hole for chain, ranges in self._chains.items() for hole in _name(chain, ranges))
        )

    def forget(self, topic: str, partitions: Iterable[int] | None = None) -> None:
        """Begins anew with these partitions, or with all of the topic: after a rebalance, a seek.

        Ask for `list_holes` before: theirs are gone after.
        """
        chosen = None if partitions is None else set(partitions)
        for chain in [*self._chains, *self._copies]:
            if chain.topic == topic and (chosen is None or chain.partition in chosen):
                self._remove(chain)

    def _take(self, received: Received, stamp: Stamp) -> SequenceVerdict:
        if stamp.topic != self._hash(received.topic):
            self.foreign += 1
            return SequenceVerdict.FOREIGN
        chain = ChainId(received.topic, stamp.partition, stamp.producer, stamp.epoch)
        if any(name == RECOVERY_ID for name, _ in received.headers):
            verdict = self._take_copy(chain, stamp)
        elif received.partition != stamp.partition:
            self.misplaced += 1
            self._take_copy(chain, stamp)
            verdict = SequenceVerdict.MISPLACED
        else:
            verdict = self._take_sent(chain, stamp)
        return SequenceVerdict.END_MARK if stamp.is_last and received.is_bare else verdict

    def _hash(self, topic: str) -> str:
        return self._hashes.get(topic) or self._hashes.setdefault(topic, hash_topic(topic))

    def _take_sent(self, chain: ChainId, stamp: Stamp) -> SequenceVerdict:
        ranges, skipped = self._chains.get(chain), stamp.skipped
        if ranges is None:
            ranges = self._open(chain)
            skipped = (*skipped, *self._take_copies(chain))
        else:
            self._chains.move_to_end(chain)
        ranges.limit = self._share
        highest = ranges.highest
        is_new = ranges.add(stamp.sequence)
        for first, last in skipped:
            ranges.skip(first, last)
        if stamp.is_last:
            self._ended.add(chain)
        if not is_new:
            return SequenceVerdict.REPEAT
        return SequenceVerdict.NEW if stamp.sequence > highest else SequenceVerdict.LATE

    def _take_copy(self, chain: ChainId, stamp: Stamp) -> SequenceVerdict:
        """It closes a hole, and says nothing of how far the producer is."""
        filled: tuple[Range, ...] = ((stamp.sequence, stamp.sequence), *stamp.skipped)
        ranges = self._chains.get(chain)
        if ranges is None:
            return self._keep_copy(chain, filled)
        ranges.limit = self._share
        was_there = ranges.is_accounted(stamp.sequence)
        for first, last in filled:
            ranges.skip(first, last)
        return SequenceVerdict.REPEAT if was_there else SequenceVerdict.LATE

    def _keep_copy(self, chain: ChainId, filled: tuple[Range, ...]) -> SequenceVerdict:
        """For when the chain itself is read: this partition may be ahead of that one."""
        kept = self._copies.setdefault(chain, RangeSet())
        self._copies.move_to_end(chain)
        was_there = filled[0][0] in kept
        self._copied_ranges -= len(kept)
        for first, last in filled:
            kept.add(first, last)
        self._copied_ranges += len(kept)
        while len(self._copies) > self._max_chains or self._copied_ranges > self._max_ranges:
            self._remove(next(iter(self._copies)))
            self.dropped += 1
        return SequenceVerdict.REPEAT if was_there else SequenceVerdict.LATE

    def _open(self, chain: ChainId) -> SequenceRanges:
        if len(self._chains) >= self._max_chains:
            oldest, ranges = next(iter(self._chains.items()))
            holes = _name(oldest, ranges)
            self._unknown_of_dropped += ranges.unknown
            self._remove(oldest)
            self.dropped += 1
            if holes and self._on_dropped is not None:
                self._on_dropped(holes)
        made = SequenceRanges(starts_at_zero=self._reads_from_start)
        self._chains[chain] = made
        self._share = max(_LEAST_RANGES, self._max_ranges // len(self._chains))
        return made

    def _take_copies(self, chain: ChainId) -> RangeSet:
        """What was kept of it, which is forgotten."""
        kept = self._copies.pop(chain, RangeSet())
        self._copied_ranges -= len(kept)
        return kept

    def _remove(self, chain: ChainId) -> None:
        self._chains.pop(chain, None)
        self._take_copies(chain)
        self._ended.discard(chain)


def _name(chain: ChainId, ranges: SequenceRanges) -> tuple[Hole, ...]:
    return tuple(
        Hole(chain.topic, chain.partition, chain.producer, chain.epoch, first, last)
        for first, last in ranges.list_holes()
    )
