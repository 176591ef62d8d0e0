"""The stamp of a sequenced message, and the arithmetic of what is missing.

A producer numbers its messages from 0, apart for each of its starts (the epoch) and each partition.
Three headers carry that:

- `backlog-sequence`: `PRODUCER:EPOCH:TOPIC:PARTITION:SEQUENCE` in ASCII. Topic (8 digits of its
  name's hash) and partition are those the number was taken for: a copy may lie in another.
- `backlog-skipped`: numbers below this one that the producer itself knows were not delivered, as
  inclusive ranges: `3-5,9`.
- `backlog-sequence-end`: `1` on the last message of its producer, epoch and partition.

A number that is neither seen nor skipped, below one that was seen, is a message that got lost.
Standard library only: Spark's workers import this.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from backlogctl_delivery.stamps import SEQUENCE_HEADERS

SEQUENCE, SKIPPED, SEQUENCE_END = SEQUENCE_HEADERS

# For Python and for Spark's `rlike`: groups are producer, epoch, topic, partition and sequence. A
# number of 10 or 19 digits may still be over its highest. The end stands for `$`, which
# lets a line end pass, without a backslash, which SQL would take away.
PATTERN = (
    "^([A-Za-z0-9._-]{1,64}):(0|[1-9][0-9]{0,18}):([0-9a-f]{8}):(0|[1-9][0-9]{0,9}):"
    "(0|[1-9][0-9]{0,18})(?!a|[^a])"
)
HIGHEST = 2**63 - 1
HIGHEST_PARTITION = 2**31 - 1
MAX_SKIPPED_RANGES = 1_000
MAX_SKIPPED_BYTES = 16_384

Range = tuple[int, int]

_PRODUCER = re.compile(r"[A-Za-z0-9._-]{1,64}")
_STAMP = re.compile(PATTERN)
_SKIPPED = re.compile(r"(?:0|[1-9][0-9]{0,18})(?:-[1-9][0-9]{0,18})?")
_LONGEST_STAMP = 64 + 1 + 19 + 1 + 8 + 1 + 10 + 1 + 19


class UnreadableStamp(ValueError):
    """A message has headers of ours that no producer of ours writes."""


@dataclass(frozen=True)
class Stamp:
    """What a message says about its place.

    Attributes:
        producer: who sent it.
        epoch: which start of the producer.
        topic: `hash_topic` of the one the number was taken for. What has another one was passed
            on with its headers, and numbers nothing where it lies.
        partition: which one the number was taken for.
        sequence: its number, from 0, in that partition.
        skipped: inclusive ranges below `sequence` that were not delivered, and the producer knows.
        is_last: nothing follows in this epoch and partition.
    """

    producer: str
    epoch: int
    topic: str
    partition: int
    sequence: int
    skipped: tuple[Range, ...] = ()
    is_last: bool = False


def check_producer(producer: str) -> str:
    """The producer's name as it is.

    Raises:
        ValueError: it does not fit into a stamp.
    """
    if _PRODUCER.fullmatch(producer) is None:
        raise ValueError(
            f"the producer's id {producer!r:.100} cannot be written into a stamp: it takes 1 to 64 "
            "letters, digits, dots, underscores and dashes"
        )
    return producer


def hash_topic(topic: str) -> str:
    """What a stamp has of its topic: the first 32 bits of SHA-256, 8 hexadecimal digits."""
    return hashlib.sha256(topic.encode()).hexdigest()[:8]


def write_stamp(stamp: Stamp) -> list[tuple[str, bytes]]:
    """The headers that carry it.

    Raises:
        ValueError: it cannot be written so that it is read back the same.
    """
    check_producer(stamp.producer)
    for number in (stamp.epoch, stamp.sequence):
        if not 0 <= number <= HIGHEST:
            raise ValueError(f"{number} cannot be written into a stamp: it is not in 0..2**63-1")
    if not 0 <= stamp.partition <= HIGHEST_PARTITION:
        raise ValueError(f"{stamp.partition} cannot be written into a stamp: it is no partition")
    prefix = write_prefix(stamp.producer, stamp.epoch, stamp.topic, stamp.partition)
    text = f"{prefix}{stamp.sequence}"
    if _STAMP.fullmatch(text) is None:
        raise ValueError(f"{stamp.topic!r:.100} cannot be written into a stamp: it is no hash")
    headers = [(SEQUENCE, text.encode("ascii"))]
    if stamp.skipped:
        headers.append((SKIPPED, write_skipped(stamp.skipped)))
        _read_skipped(headers[-1][1], stamp.sequence)
    if stamp.is_last:
        headers.append((SEQUENCE_END, b"1"))
    return headers


def write_prefix(producer: str, epoch: int, topic: str, partition: int) -> str:
    """The value of `backlog-sequence` without the sequence, which ends it.

    Args:
        topic: its hash.
    """
    return f"{producer}:{epoch}:{topic}:{partition}:"


def write_skipped(ranges: Iterable[Range]) -> bytes:
    """The value of `backlog-skipped`."""
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in ranges
    ).encode("ascii")


def read_stamp(headers: Sequence[tuple[str, object]] | None) -> Stamp | None:
    """What a message's headers say; None where it is not stamped.

    Args:
        headers: names with values of bytes, or None; in any order, of any origin.

    Raises:
        UnreadableStamp: they are not as a producer of ours writes them. Nothing else is raised.
    """
    sequence = _find(headers, SEQUENCE)
    if sequence is None:
        return None
    if len(sequence) > _LONGEST_STAMP:
        raise UnreadableStamp(f"{SEQUENCE} has {len(sequence)} bytes, over {_LONGEST_STAMP}")
    match = _STAMP.fullmatch(_decode(SEQUENCE, sequence))
    if match is None:
        form = "PRODUCER:EPOCH:TOPIC:PARTITION:SEQUENCE"
        raise UnreadableStamp(f"{SEQUENCE} is {sequence!r}, not {form}")
    producer, epoch, topic = match[1], int(match[2]), match[3]
    partition, number = int(match[4]), int(match[5])
    if epoch > HIGHEST or number > HIGHEST or partition > HIGHEST_PARTITION:
        raise UnreadableStamp(
            f"{SEQUENCE} is {sequence!r}: a number is over 2**63-1, or the partition over 2**31-1"
        )
    skipped = _find(headers, SKIPPED)
    end = _find(headers, SEQUENCE_END)
    if end not in (None, b"1"):
        raise UnreadableStamp(f"{SEQUENCE_END} is {(end or b'')[:20]!r}, not 1")
    ranges = () if skipped is None else _read_skipped(skipped, number)
    return Stamp(producer, epoch, topic, partition, number, ranges, end is not None)


def _find(headers: Sequence[tuple[str, object]] | None, name: str) -> bytes | None:
    """The one header of that name. A last one does not win: it would hide the first."""
    found: bytes | None = None
    for key, value in headers or ():
        if key != name:
            continue
        # Spark gives bytearrays.
        if not isinstance(value, bytes | bytearray):
            raise UnreadableStamp(f"{name} has no value of bytes")
        if found is not None and value != found:
            raise UnreadableStamp(f"{name} is there more than once, with different values")
        found = bytes(value)
    return found


def _decode(name: str, value: bytes) -> str:
    try:
        return value.decode("ascii")
    except UnicodeDecodeError:
        raise UnreadableStamp(f"{name} is not ASCII: {value[:40]!r}") from None


def _read_skipped(value: bytes, below: int) -> tuple[Range, ...]:
    if len(value) > MAX_SKIPPED_BYTES:
        raise UnreadableStamp(f"{SKIPPED} has {len(value)} bytes, over {MAX_SKIPPED_BYTES}")
    parts = _decode(SKIPPED, value).split(",")
    if len(parts) > MAX_SKIPPED_RANGES:
        raise UnreadableStamp(f"{SKIPPED} has {len(parts)} ranges, over {MAX_SKIPPED_RANGES}")
    ranges: list[Range] = []
    behind = -1
    for part in parts:
        if _SKIPPED.fullmatch(part) is None:
            raise UnreadableStamp(f"{SKIPPED} has {part[:50]!r}, not a range such as 3-5")
        first, _, last = part.partition("-")
        ranges.append((int(first), int(last or first)))
        if not behind < ranges[-1][0] <= ranges[-1][1]:
            raise UnreadableStamp(f"{SKIPPED} is not ascending at {part!r}")
        behind = ranges[-1][1]
    if behind >= below:
        raise UnreadableStamp(f"{SKIPPED} reaches {behind}, not below the message's own {below}")
    return tuple(ranges)


class RangeSet:
    """Numbers as sorted, disjoint, inclusive ranges that do not touch. O(1) at the end."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._firsts, self._lasts, strict=True)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def add(self, first: int, last: int) -> None:
        """Puts the numbers first..last in."""
        lasts = self._lasts
        if not lasts or first > lasts[-1] + 1:
            self._firsts.append(first)
            lasts.append(last)
            return
        # Those that overlap or touch: [low, high).
        low = bisect_left(lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, lasts[high - 1])
        self._firsts[low:high] = [first]
        lasts[low:high] = [last]

    def remove(self, number: int) -> None:
        """Takes one number out; nothing where it is not in."""
        at = bisect_right(self._firsts, number) - 1
        if at < 0 or number > self._lasts[at]:
            return
        first, last = self._firsts[at], self._lasts[at]
        left = [each for each in ((first, number - 1), (number + 1, last)) if each[0] <= each[1]]
        self._firsts[at : at + 1] = [each[0] for each in left]
        self._lasts[at : at + 1] = [each[1] for each in left]

    def pop_first(self) -> Range:
        """Takes the lowest range out."""
        return self._firsts.pop(0), self._lasts.pop(0)

    def list_gaps(self, first: int, last: int) -> tuple[Range, ...]:
        """The ranges of first..last that are not in."""
        gaps = []
        for a, b in self:
            if a > last or first > last:
                break
            if first < a:
                gaps.append((first, a - 1))
            first = max(first, b + 1)
        if first <= last:
            gaps.append((first, last))
        return tuple(gaps)


class SequenceRanges:
    """What was seen of one producer, epoch and partition, in bounded memory.

    Args:
        starts_at_zero: the reader began at the beginning, so that a missing head is a hole. Else
            nothing below the first number seen is a hole.
        limit: at most that many ranges, from 1. Beyond it the lowest two become one: what lies
            between them is counted as `unknown`, and is no hole any more.
    """

    __slots__ = ("_floor", "_highest", "_known", "_sure_from", "_unseen", "limit", "unknown")

    def __init__(self, *, starts_at_zero: bool = True, limit: int = 10_000) -> None:
        if limit < 1:
            raise ValueError(f"a limit of {limit} ranges holds nothing: it is from 1")
        # It may be changed, and holds from the next number on.
        self.limit = limit
        self._floor: int | None = 0 if starts_at_zero else None
        self._highest = -1
        # What is no hole, and the part of it that was not seen.
        self._known, self._unseen = RangeSet(), RangeSet()
        # Below it there is no telling what was seen.
        self._sure_from = 0
        # Numbers of which nobody knows any more whether they are missing.
        self.unknown = 0

    def __len__(self) -> int:
        """How many ranges are held."""
        return len(self._known) + len(self._unseen)

    @property
    def highest(self) -> int:
        """The highest number seen; -1 where none was."""
        return self._highest

    def add(self, sequence: int) -> bool:
        """Notes a number that was seen.

        Returns:
            False where it was seen before. True also where that is not known any more.
        """
        known = self._known
        lasts = known._lasts
        # In order, and nothing but that.
        if lasts and sequence == self._highest + 1 == lasts[-1] + 1:
            lasts[-1] = self._highest = sequence
            return True
        was_seen = sequence in known and sequence not in self._unseen
        if self._floor is None:
            self._floor = sequence
        self._highest = max(self._highest, sequence)
        self._unseen.remove(sequence)
        known.add(sequence, sequence)
        self._shrink()
        return not was_seen or sequence < self._sure_from

    def skip(self, first: int, last: int) -> None:
        """Notes that first..last are no loss: never delivered, or put back by other means.

        They do not count as seen: one that comes all the same is new.
        """
        for a, b in self._known.list_gaps(first, last):
            self._unseen.add(a, b)
        self._known.add(first, last)
        self._shrink()

    def is_accounted(self, sequence: int) -> bool:
        """Whether that number was seen, or skipped."""
        return sequence in self._known

    def list_holes(self) -> tuple[Range, ...]:
        """Inclusive ranges that are neither seen nor skipped, up to the highest seen."""
        if self._floor is None or self._highest < 0:
            return ()
        return self._known.list_gaps(self._floor, self._highest)

    def _shrink(self) -> None:
        while len(self._known) > self.limit:
            first, last = self._known.pop_first()
            after = self._known._firsts[0]
            self._known.add(first, after)
            floor = after if self._floor is None else self._floor
            self.unknown += max(0, after - max(last + 1, floor))
            self._sure_from = max(self._sure_from, self._known._lasts[0] + 1)
        while len(self._unseen) > self.limit:
            self._sure_from = max(self._sure_from, self._unseen.pop_first()[1] + 1)
