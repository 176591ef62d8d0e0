"""Reads a profile from a cluster: the range between two times, header by header."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from backlog.clock import Deadline
from backlog.errors import KafkaFailure, UsageError
from backlog.kafka.admin import describe_topic, list_offsets
from backlog.kafka.clients import Properties
from backlog.kafka.raw_fetch import Look, fetch_batches
from backlog.numbers import format_count, format_duration, format_rate
from backlog.progress import TICK_SECONDS, Say
from backlog.values import OffsetRange
from monitoring.forensics.folding import Folding
from monitoring.forensics.profile import LogProfile

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
