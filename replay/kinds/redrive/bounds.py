"""Which offsets are read: what was said, cut to what is there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from backlog.errors import UsageError
from backlog.values import OffsetRange
from replay.injection.archived import ARCHIVE
from replay.injection.unprocessed import WORD
from replay.kinds.redrive.options import RedriveOptions

_RANGE = re.compile(r"(\d{1,10}):(\d{1,19})(?:(-)(\d{1,19})?)?")
_OPEN = 2**63 - 1
HINT = "P:A-B, such as 0:100-199: partition 0, offsets 100 to 199, both included"


def require_bounds(options: RedriveOptions) -> None:
    """Refuses what would put back a whole topic without a word, and a part of what was never
    handled: its gaps would be closed.

    Raises:
        UsageError
    """
    bounds = ("since", "until", "offsets", "key", "where", "everything")
    if takes_waiting(options):
        return
    if options.source == WORD:
        if said := [name for name in bounds if getattr(options, name)]:
            raise UsageError(
                f"takes all that is known to be unhandled; {said[0]!r} does not go with it",
                subject=f"--from {WORD}",
                hint="`--from log` takes a part",
            )
        return
    if options.since or options.until or options.offsets or options.key or options.everything:
        return
    raise UsageError(
        "no bound is said, so all messages would be put back",
        subject="plan redrive",
        hint="--since or --until, --offsets, --key; or --all for everything that is there",
    )


def takes_waiting(options: RedriveOptions) -> bool:
    """Whether no bound is said of an archive: what waits in it is put back, and nothing else."""
    said = (options.since, options.until, options.offsets, options.everything)
    return is_unfiltered(options) and is_archive(options) and not any(said)


def is_archive(options: RedriveOptions) -> bool:
    """Whether an archive is read."""
    return (options.source or "").startswith(f"{ARCHIVE}:")


def is_unfiltered(options: RedriveOptions) -> bool:
    """Whether every message of the offsets is meant."""
    return not (options.since or options.until or options.key or options.where)


def read_offsets(said: Sequence[str], partitions: int) -> tuple[OffsetRange, ...]:
    """What `--offsets` says; the end is left out, and ranges of a partition do not overlap.

    Raises:
        UsageError: one cannot be read, ends before it begins, or there is no such partition.
    """
    found: list[OffsetRange] = []
    for text in said:
        match = _RANGE.fullmatch(text.strip().replace("–", "-"))
        if match is None:
            raise UsageError("is no range of offsets", subject=f"--offsets {text}", hint=HINT)
        partition, first = int(match[1]), int(match[2])
        last = first if match[3] is None else int(match[4]) if match[4] else _OPEN - 1
        if last < first:
            raise UsageError("it ends before it begins", subject=f"--offsets {text}", hint=HINT)
        if partition >= partitions:
            raise UsageError(
                f"there is no partition {partition}: they are 0 to {partitions - 1}",
                subject=f"--offsets {text}",
            )
        found.append(OffsetRange(partition, first, last + 1))
    return merge_ranges(found)


def merge_ranges(ranges: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """In order, those that overlap or touch as one."""
    merged: list[OffsetRange] = []
    for item in sorted(ranges, key=lambda r: (r.partition, r.start)):
        last = merged[-1] if merged else None
        if last and last.partition == item.partition and item.start <= last.end:
            merged[-1] = OffsetRange(item.partition, last.start, max(last.end, item.end))
        else:
            merged.append(item)
    return tuple(merged)


def cut_ranges(
    said: Sequence[OffsetRange], there: Sequence[OffsetRange]
) -> tuple[tuple[OffsetRange, ...], list[str]]:
    """What was said and is there, and warnings about what is not; nothing said is all.

    Args:
        there: what the source has, at most one range of a partition for a topic.
    """
    if not said:
        return merge_ranges([item for item in there if item.count > 0]), []
    found, warnings = [], []
    for item in said:
        covered = 0
        for part in there:
            if part.partition != item.partition:
                continue
            start, end = max(part.start, item.start), min(part.end, item.end)
            if start < end:
                found.append(OffsetRange(item.partition, start, end))
                covered += end - start
        if item.end < _OPEN and (missing := item.count - covered):
            known = [part for part in there if part.partition == item.partition and part.count > 0]
            is_there = ", ".join(f"{part.start:,}–{part.end - 1:,}" for part in known) or "none"
            warnings.append(
                f"{missing:,} of the offsets {item.start:,}–{item.end - 1:,} of partition "
                f"{item.partition} are not there; {is_there} are"
            )
    return merge_ranges(found), warnings


def skip_before(
    ranges: Sequence[OffsetRange], firsts: Mapping[int, int]
) -> tuple[OffsetRange, ...]:
    """Without the offsets before those of a time; a negative one says that none is of it or later,
    as Kafka does."""
    return tuple(
        OffsetRange(item.partition, max(item.start, first), item.end)
        for item in ranges
        if 0 <= (first := firsts[item.partition]) < item.end
    )


def read_span(lows: Mapping[int, int], ends: Mapping[int, int]) -> tuple[OffsetRange, ...]:
    """What a topic has, a range for each partition."""
    return tuple(OffsetRange(p, lows[p], max(lows[p], ends[p])) for p in sorted(lows))
