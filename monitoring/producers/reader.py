"""Reads a profile from a cluster: the range between two times, header by header."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import KafkaFailure, UsageError
from backlogctl.formats import TICK_SECONDS, Say, format_count, format_duration, format_rate
from backlogctl.kafka.admin import describe_topic, list_offsets
from backlogctl.kafka.clients import Admin, Properties
from backlogctl.kafka.raw_fetch import Look, fetch_batches
from backlogctl.kafka.topics import list_offsets as newest_list_offsets
from backlogctl.monitoring.producers.profile import Folding, LogProfile
from backlogctl.values import OffsetRange

_OFFSETS_SECONDS, _TRY_SECONDS, _TOO_SHORT = 30.0, 5.0, 1.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def profile_topic(
    properties: Properties,
    topic: str,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    say: Say | None = None,
    look: Look | None = None,
    limit: Deadline | None = None,
) -> LogProfile:
    """What the batch headers of a topic show, from the first message of `since` on, up to the first
    of `until`; its whole log where they are None. It ends where the log ends at its start.

    Reads all of the bytes in between, as a consumer would. Where the times of messages do not rise,
    some older or newer ones are among them: Kafka finds the first offset of a time or later.

    Args:
        say: told each ten seconds how far it is.
        look: called at least five times a second; what it raises ends the reading.
        limit: for all of it; None has none.

    Raises:
        UsageError: `until` is not after `since`.
        TopicMissing, ClusterUnreachable, KafkaFailure: see `fetch_batches`.
    """
    if since is not None and until is not None and until <= since:
        raise UsageError(
            "the end of the range is not after its start",
            subject=f"topic {topic}",
            hint="give an earlier start, or a later end",
        )
    found = describe_topic(properties, topic, limit)
    ranges = _find_ranges(properties, topic, range(found.partitions), since, until, limit)
    folding = Folding(
        topic, ranges, is_compacted="compact" in found.config.get("cleanup.policy", "")
    )
    progress = _Progress(topic, sum(one.count for one in ranges), say or (lambda _: None))
    for fetched in fetch_batches(properties, topic, ranges, limit=limit, look=look):
        folding.add(fetched)
        progress.reach(fetched.partition, fetched.next_offset, ranges)
    return folding.freeze(since, until, time.monotonic() - progress.began)


def _find_ranges(
    properties: Properties,
    topic: str,
    partitions: Sequence[int],
    since: datetime | None,
    until: datetime | None,
    limit: Deadline | None,
) -> tuple[OffsetRange, ...]:
    def ask(spec: Literal["earliest", "latest"] | int) -> dict[int, int]:
        return _list_offsets(properties, topic, partitions, spec, limit)

    # The end first: messages that come meanwhile are not among them.
    ends = ask("latest")
    if until is not None:
        ends = _bound(ask(_to_ms(until)), ends)
    starts = ask("earliest")
    if since is not None:
        found = _bound(ask(_to_ms(since)), ends)
        starts = {partition: max(at, found[partition]) for partition, at in starts.items()}
    return tuple(
        OffsetRange(partition, starts[partition], max(starts[partition], ends[partition]))
        for partition in partitions
    )


def _list_offsets(
    properties: Properties,
    topic: str,
    partitions: Sequence[int],
    spec: Literal["earliest", "latest"] | int,
    limit: Deadline | None,
) -> dict[int, int]:
    """A new client for each try: one that has seen another leader may ask that one on and on, and
    be fenced each time (tried, librdkafka 2.16.1)."""
    patience = Deadline(_OFFSETS_SECONDS if limit is None else limit.remaining(_OFFSETS_SECONDS))
    while True:
        try:
            tried = Deadline(patience.remaining(_TRY_SECONDS))
            return list_offsets(properties, topic, partitions, spec, deadline=tried)
        except KafkaFailure as error:
            if not error.retryable or patience.remaining() < _TOO_SHORT:
                raise


def _bound(found: dict[int, int], ends: dict[int, int]) -> dict[int, int]:
    """-1: no message is of that time or later."""
    return {p: ends[p] if at < 0 else min(at, ends[p]) for p, at in found.items()}


def _to_ms(moment: datetime) -> int:
    return max(0, int((moment - _EPOCH).total_seconds() * 1000))


class _Progress:
    def __init__(self, topic: str, total: int, say: Say) -> None:
        self.began = time.monotonic()
        self._topic, self._total, self._say = topic, total, say
        self._reached: dict[int, int] = {}
        self._next = self.began + TICK_SECONDS

    def reach(self, partition: int, offset: int, ranges: tuple[OffsetRange, ...]) -> None:
        self._reached[partition] = offset
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + TICK_SECONDS
        done = sum(max(0, self._reached.get(r.partition, r.start) - r.start) for r in ranges)
        rate = done / (now - self.began)
        left = format_duration((self._total - done) / rate) if rate else "unknown time"
        self._say(
            f"topic {self._topic}: {format_count(done)} of {format_count(self._total)} offsets, "
            f"{format_rate(rate)}, {left} left"
        )


# The newest part of a log: a look that is bounded in bytes and time, for who cannot wait.

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
    ends = newest_list_offsets(admin, topic, partitions, "latest", deadline=limit)
    lows = newest_list_offsets(admin, topic, partitions, "earliest", deadline=limit)
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
        starts = newest_list_offsets(admin, topic, partitions, at, deadline=limit)
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
