"""The times that producers set, and that retention by time goes by: ahead of the clock, in another
unit than milliseconds, or older than retention when they came."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from backlogctl.clock import read_millis
from backlogctl.formats import format_duration, format_plural
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel, CheckScope
from backlogctl.monitoring.doctor.facts import BrokerFacts, Newest, Topic
from backlogctl.monitoring.offsets.lag import read_retention
from backlogctl.monitoring.verdict.commands import (
    advise_on_expired_arrivals,
    advise_on_future_timestamps,
)
from backlogctl.values import Sample

_AHEAD = timedelta(minutes=10)
_CHECK_MS = 300_000  # Kafka's `log.retention.check.interval.ms` where it is not known
# A number that is within these years in another unit is of that unit.
_YEARS_MS = 10 * 365 * 86_400_000
_UNITS = {"seconds": 1e3, "microseconds": 1e-3, "nanoseconds": 1e-6}


def guess_unit(timestamp: int, now_ms: float) -> str:
    """Which unit a timestamp is of that is no time of these years in milliseconds; "" where it is
    one, or none fits."""
    if abs(timestamp - now_ms) < _YEARS_MS:
        return ""
    fitting = (unit for unit, size in _UNITS.items() if abs(timestamp * size - now_ms) < _YEARS_MS)
    return next(fitting, "")


@CheckScope.RETENTION.check(
    "future-timestamps",
    "Messages from the future",
    "Retention by time goes by the newest time of a segment: one message dated ahead keeps "
    "its whole segment, and forecasts by age are wrong.",
    "A producer that writes microseconds dates its messages thousands of years ahead.",
)
def judge_timestamps(
    stream: str, topic: Topic, newest: Newest, now: datetime
) -> Iterator[CheckFinding]:
    latest = newest.latest_ms
    ahead = 0.0 if latest is None else latest / 1000 - now.timestamp()
    if latest is None or ahead <= _AHEAD.total_seconds():
        return
    told = f"a message is dated {format_duration(ahead)} ahead of this host's clock"
    if unit := guess_unit(latest, now.timestamp() * 1000):
        told = f"a message's timestamp is {latest}: that is {unit}, and Kafka takes milliseconds"
    elif read_millis(latest) is None:
        told = f"a message's timestamp is {latest}: that is no time of a calendar"
    advice = advise_on_future_timestamps(stream)
    yield CheckFinding(
        *("future-timestamps", CheckLevel.WARNS, topic.subject, told), advice.mend, advice.commands
    )


@CheckScope.RETENTION.check(
    "expired-on-arrival",
    "Messages that had expired when they came",
    "Retention by time goes by the messages' own timestamps: one that is older than retention when "
    "it comes is deleted as soon as its segment is closed, read or not.",
    "Of mirrors, backfills, devices that were offline, and producers that write seconds. That a "
    "message came later than its timestamp says is known from older messages that are newer by "
    "theirs, and from samples.",
)
def judge_arrivals(
    stream: str,
    topic: Topic,
    newest: Newest,
    now: datetime,
    read_history: Callable[[], Sequence[Sample]] = tuple,
    brokers: BrokerFacts | None = None,
) -> Iterator[CheckFinding]:
    """Whether messages were older than retention when they came.
    `read_history`: the stream's samples, oldest first: what lies behind an end came later.
    """
    kept = read_retention(topic.settings)
    if kept is None or topic.settings.get("message.timestamp.type") == "LogAppendTime":
        return
    retention, now_ms = kept.total_seconds() * 1000, now.timestamp() * 1000
    stamps = [at for tail in newest.times.values() for _, at in tail]
    if not any(now_ms - at > retention for at in stamps):
        return
    history = read_history()
    checks = [] if brokers is None else brokers.read_numbers("log.retention.check.interval.ms")
    check_ms = max(checks, default=_CHECK_MS)
    expired = [
        at
        for number, tail in newest.times.items()
        for at in _list_expired(tail, _list_ends(history, number), retention, now_ms, check_ms)
    ]
    if not expired:
        return
    age = now_ms - min(expired)
    unit = guess_unit(min(expired), now_ms)
    newest_messages = format_plural(len(stamps), "message")
    told = (
        f"{len(expired):,} of its newest {newest_messages} had expired when they came: retention "
        f"is {format_duration(retention / 1000)}, and by their own timestamps the oldest is "
        f"{format_duration(age / 1000)} old"
    )
    advice = advise_on_expired_arrivals(topic, stream, round(age), unit)
    yield CheckFinding(
        *("expired-on-arrival", CheckLevel.LOSES, topic.subject),
        f"{told}; as {unit} it would be of now" if unit else told,
        advice.mend,
        advice.commands,
    )


def _list_ends(history: Sequence[Sample], partition: int) -> Sequence[tuple[float, int]]:
    """(milliseconds, high watermark): what is written behind it comes later."""
    return [
        (sample.taken_at.timestamp() * 1000, part.high)
        for sample in history
        if sample.topic_id == history[-1].topic_id
        for part in sample.partitions
        if part.partition == partition
    ]


def _list_expired(
    tail: Sequence[tuple[int, int]],
    ends: Sequence[tuple[float, int]],
    retention: float,
    now_ms: float,
    check_ms: float,
) -> list[int]:
    """Timestamps of the messages that came later than they say by more than retention.
    `tail`: (offset, timestamp) of the newest messages of one partition.
    """
    found, came_after = [], 0.0
    for offset, at in tail:
        came_after = max([came_after, *(seen for seen, high in ends if high <= offset)])
        if came_after - at > retention:
            found.append(at)
        elif at <= now_ms:
            came_after = max(came_after, at)
    # A segment of which all has expired is deleted at the next check, and one that is kept has
    # something that has not: where all of the tail is that old, it is so only if it came so.
    oldest_possible = now_ms - 2 * retention - check_ms
    if not found and tail and max(at for _, at in tail) < oldest_possible:
        return [at for _, at in tail]
    return found
