"""The newest part of a log: a look that is bounded in bytes and time, for who cannot wait."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from backlog.clock import Deadline, utc_now
from backlog.kafka.clients import Admin, Properties
from backlog.kafka.raw_fetch import fetch_batches
from backlog.kafka.topics import list_offsets
from backlog.values import OffsetRange
from monitoring.forensics.folding import Folding
from monitoring.forensics.profile import LogProfile

# Of the batches as they lie in the log.
BYTES_EACH, BYTES_AT_ALL = 1_048_576, 67_108_864
LOOK_SECONDS = 10.0
SHARE_WINDOW = timedelta(hours=1)
_LEAST_OFFSETS = 1_000


class _Enough(Exception):
    """Ends the look; what was read counts."""


@dataclass(frozen=True, slots=True)
class NewestLog:
    """What was looked at, and how much was written of late.

    Attributes:
        profile: of about the newest `BYTES_EACH` of each partition.
        is_cut: not all of that could be read in time.
        written: offsets by partition since `since`, control records too.
        since: `SHARE_WINDOW` before the newest message; None where there is none with a time.
    """

    profile: LogProfile
    is_cut: bool
    written: Mapping[int, int]
    since: datetime | None


def read_newest_log(
    admin: Admin,
    properties: Properties,
    topic: str,
    partitions: Sequence[int],
    mean_bytes: float | None,
    limit: Deadline,
    *,
    is_compacted: bool = False,
) -> NewestLog:
    """Batch headers of the newest part of each partition.

    Args:
        mean_bytes: of a message, which tells where that part begins; None where it is unknown.

    Raises:
        AccessDenied: `READ` on the topic is missing.
        TopicMissing, ClusterUnreachable, KafkaFailure: also where kafka-python cannot take these
            properties.
    """
    ends = list_offsets(admin, topic, partitions, "latest", deadline=limit)
    lows = list_offsets(admin, topic, partitions, "earliest", deadline=limit)
    each = min(BYTES_EACH, BYTES_AT_ALL // max(1, len(partitions)))
    many = max(_LEAST_OFFSETS, round(each / max(1.0, mean_bytes or 0.0)))
    ranges = tuple(
        OffsetRange(p, max(lows[p], ends[p] - many), max(lows[p], ends[p])) for p in partitions
    )
    began = time.monotonic()
    folding = Folding(topic, ranges, is_compacted=is_compacted)
    is_cut = _fold(folding, properties, topic, ranges, Deadline(limit.remaining(LOOK_SECONDS)))
    profile = folding.freeze(seconds=time.monotonic() - began)
    since = None
    written: dict[int, int] = {}
    if profile.last_time is not None:
        since = min(profile.last_time, utc_now()) - SHARE_WINDOW
        at = max(0, round(since.timestamp() * 1000))
        starts = list_offsets(admin, topic, partitions, at, deadline=limit)
        # -1: no message is of that time or later.
        written = {p: max(0, ends[p] - at) if at >= 0 else 0 for p, at in starts.items()}
    return NewestLog(profile, is_cut, written, since)


def _fold(
    folding: Folding,
    properties: Properties,
    topic: str,
    ranges: tuple[OffsetRange, ...],
    limit: Deadline,
) -> bool:
    """Reads the ranges; whether it ended before they did."""
    read: Counter[int] = Counter()

    def look() -> None:
        # What was estimated may be much larger.
        if limit.expired or read.total() > 2 * BYTES_AT_ALL:
            raise _Enough

    try:
        for fetched in fetch_batches(properties, topic, ranges, look=look):
            folding.add(fetched)
            read[fetched.partition] += sum(header.size for header in fetched.headers)
    except _Enough:
        return True
    return False
