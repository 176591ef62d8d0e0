"""What deletes messages and commits, judged with the real lag and rate."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from backlog.numbers import format_bytes, format_duration
from monitoring.doctor.facts import Brokers, Newest, Topic
from monitoring.doctor.finding import Finding, Level, Room
from monitoring.status import GroupStatus

# From Friday evening to Monday morning, and some hours to mend it.
WEEKEND = timedelta(hours=72)
_AHEAD = timedelta(minutes=10)
_DAY = 86_400_000


@Room.RETENTION.check(
    "retention",
    "How long a stopped group has",
    "Retention deletes what is old or too much, read or not; this is the time between a "
    "consumer that stops and the first lost message.",
    "Time and size are judged together, with the real lag and rate: whichever comes first. "
    "Shorter than `watch.horizon`, a loss cannot be announced as early as configured; shorter "
    "than 72 hours, a weekend is too long.",
)
def judge_retention(
    stream: str,
    topic: Topic,
    horizon: timedelta,
    newest: Newest | None = None,
    status: GroupStatus | None = None,
) -> Iterator[Finding]:
    """How long a group may stand still.

    Args:
        horizon: how far ahead a loss is announced.
        newest: without it retention by size is not judged.
    """
    times = [
        (seconds, how)
        for seconds, how in (
            _find_time(topic, status),
            _find_size(topic, newest, status),
        )
        if seconds is not None
    ]
    if not times:
        return
    seconds, how = min(times)
    if seconds >= WEEKEND.total_seconds():
        return
    level = Level.LOSES if seconds < horizon.total_seconds() else Level.WARNS
    yield Finding(
        *("retention", level, topic.subject),
        f"a group that stops now loses its first message in {format_duration(seconds)} ({how})",
        "raise it, for good or for now",
        (
            topic.make_alteration("retention.ms", 7 * _DAY),
            f"backlogctl hold {stream} --for 24h",
        ),
    )


@Room.RETENTION.check(
    "segments",
    "Segments that make retention coarse",
    "Only whole segments are deleted: with large ones messages stay longer than configured, "
    "and then go many at once.",
)
def judge_segments(
    topic: Topic, newest: Newest | None = None, status: GroupStatus | None = None
) -> Iterator[Finding]:
    """How coarse retention is."""
    keep = topic.read_number("retention.ms")
    if keep is None or keep <= 0 or "delete" not in topic.settings.get("cleanup.policy", "delete"):
        return
    spans = [(topic.read_number("segment.ms") or 0) / 1000]
    rate, size = _find_byte_rate(topic, newest, status), topic.read_number("segment.bytes")
    if rate and size:
        spans.append(size / rate)
    span = min(spans)
    if span * 1000 > keep:
        yield Finding(
            *("segments", Level.WARNS, topic.subject),
            f"a segment holds up to {format_duration(span)} and retention is "
            f"{format_duration(keep / 1000)}: messages stay up to "
            f"{format_duration(span + keep / 1000)}, then go a segment at a time",
            "",
            (topic.make_alteration("segment.ms", max(60_000, keep // 10)),),
        )


@Room.RETENTION.check(
    "compaction",
    "Compaction",
    "Compaction keeps the newest message of each key and deletes those before it, read or "
    "not: right for a table, a loss for events.",
)
def judge_compaction(topic: Topic) -> Iterator[Finding]:
    """Whether older messages of a key are deleted."""
    policy = topic.settings.get("cleanup.policy", "")
    if "compact" in policy:
        yield Finding(
            *("compaction", Level.LOSES, topic.subject),
            f"cleanup.policy is {policy}",
            "leave it where only the newest message of each key matters; else",
            (topic.make_alteration("cleanup.policy", "delete"),),
        )


@Room.RETENTION.check(
    "offsets-retention",
    "How long commits are kept",
    "A group that is empty for longer than `offsets.retention.minutes` loses its committed "
    "offsets: it then starts at the end and skips, or at the beginning and repeats.",
)
def judge_offsets_retention(
    topic: Topic, brokers: Brokers, horizon: timedelta
) -> Iterator[Finding]:
    """Whether commits are kept as long as messages."""
    minutes = brokers.read_numbers("offsets.retention.minutes")
    keep = topic.read_number("retention.ms")
    if not minutes or keep is None:
        return
    kept = minutes[0] * 60
    if keep >= 0 and kept * 1000 >= keep:
        return
    messages = "forever" if keep < 0 else format_duration(keep / 1000)
    yield Finding(
        "offsets-retention",
        Level.LOSES if kept < horizon.total_seconds() else Level.WARNS,
        "the cluster",
        f"offsets.retention.minutes is {minutes[0]} ({format_duration(kept)}), and {topic.subject} "
        f"keeps its messages {'' if keep < 0 else 'for '}{messages}",
        "set offsets.retention.minutes on every broker above the retention of what is read",
    )


@Room.RETENTION.check(
    "future-timestamps",
    "Messages from the future",
    "Retention by time goes by the newest time of a segment: one message dated ahead keeps "
    "its whole segment, and forecasts by age are wrong.",
)
def judge_timestamps(topic: Topic, newest: Newest, now: datetime) -> Iterator[Finding]:
    """Whether messages are dated ahead."""
    if newest.time is not None and newest.time > now + _AHEAD:
        ahead = (newest.time - now).total_seconds()
        yield Finding(
            *("future-timestamps", Level.WARNS, topic.subject),
            f"a message is dated {format_duration(ahead)} ahead of this host's clock",
            "look who writes it; this refuses such messages:",
            (topic.make_alteration("message.timestamp.after.max.ms", 3_600_000),),
        )


def _find_time(topic: Topic, status: GroupStatus | None) -> tuple[float | None, str]:
    keep = topic.read_number("retention.ms")
    if keep is None or keep < 0 or "delete" not in topic.settings.get("cleanup.policy", "delete"):
        return None, ""
    how = f"retention.ms {format_duration(keep / 1000)}"
    left = [] if status is None else [one.seconds_retained for one in status.partitions]
    known = [one for one in left if one is not None]
    return min([keep / 1000, *known]), how


def _find_size(
    topic: Topic, newest: Newest | None, status: GroupStatus | None
) -> tuple[float | None, str]:
    limit = topic.read_number("retention.bytes")
    rate = _find_byte_rate(topic, newest, status)
    if limit is None or limit < 0 or not rate:
        return None, ""
    how = (
        f"retention.bytes {format_bytes(limit)} a partition, and the busiest is written "
        f"{format_bytes(round(rate))}/s"
    )
    return limit / rate, how


def _find_byte_rate(
    topic: Topic, newest: Newest | None, status: GroupStatus | None
) -> float | None:
    """Bytes a second of the busiest partition, before compression; None where nothing is known."""
    if newest is None or newest.mean is None or status is None:
        return None
    rates = [one.produced_per_second for one in status.partitions]
    known = [one for one in rates if one]
    return max(known) * newest.mean if known else None
