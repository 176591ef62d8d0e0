"""What the newest batches of a log say of those who write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from backlogctl.formats import format_bytes, format_plural
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel, CheckScope
from backlogctl.monitoring.doctor.facts import Topic
from backlogctl.monitoring.producers.findings import (
    ADVICE,
    Suspicion,
    SuspicionCode,
    describe_hot_partition,
    find_suspicions,
    is_hot,
)
from backlogctl.monitoring.producers.profile import PartitionProfile
from backlogctl.monitoring.producers.reader import SHARE_WINDOW, NewestLog
from backlogctl.monitoring.verdict.commands import audit_producers

# Of a break nobody can tell from the log whether messages are missing.
_LEVELS: Mapping[SuspicionCode, CheckLevel] = {
    SuspicionCode.NOT_IDEMPOTENT: CheckLevel.WARNS,
    SuspicionCode.EPOCH_RESTARTED: CheckLevel.UNKNOWN,
    SuspicionCode.SEQUENCE_JUMP: CheckLevel.UNKNOWN,
}


@CheckScope.LOG.check(
    "sequence-jump",
    "Numbers that do not go on",
    "A broker takes a batch only with the next number, so a break means that it had "
    "forgotten the producer, or lost batches it had taken.",
)
@CheckScope.LOG.check(
    "epoch-restarted",
    "Epochs that were raised",
    "An idempotent producer raises its epoch when batches failed and it cannot know whether "
    "the broker has them: messages may be missing, and the log does not show which.",
    "Transactions raise epochs too, and are left out.",
)
@CheckScope.LOG.check(
    "not-idempotent",
    "Messages without a producer id",
    "Without idempotence the broker cannot see whether a batch is missing, late or there "
    "twice: what such a producer loses leaves no trace.",
    "The headers of the newest batches are read, without decompressing them: about 1 MiB of "
    "each partition, 64 MiB and 10 seconds at all. Each finding says how much it was. "
    "`backlogctl audit producers` reads the whole log.",
)
def judge_producers(stream: str, topic: Topic, log: NewestLog) -> Iterator[CheckFinding]:
    """One finding of each kind; the audit lists all."""
    found = find_suspicions(log.profile)
    for code, level in _LEVELS.items():
        if same := [one for one in found if one.code is code]:
            yield CheckFinding(
                str(code),
                level,
                topic.subject,
                f"{_join(same)} {_tell_extent(log)}",
                ADVICE[code],
                audit_producers(stream),
            )


@CheckScope.LOG.check(
    "hot-partition",
    "A partition with much more than its share",
    "The consumer of that partition decides when a backlog is drained, and more consumers do "
    "not help.",
    "By the offsets that each partition got in the last hour that has messages: more than "
    "twice the mean, of at least 1,000.",
)
def judge_shares(stream: str, topic: Topic, log: NewestLog) -> Iterator[CheckFinding]:
    """How much each partition got of the newest hour, and not of the profile, of which all
    partitions have about as much."""
    if log.since is None:
        return  # its newest messages have no usable time: other checks say so
    total, count = sum(log.written.values()), len(log.written)
    hot = [
        one
        for one in log.profile.partitions
        if is_hot(log.written.get(one.partition, 0), _count_batches(one, log), total, count)
    ]
    for one in sorted(hot, key=lambda one: -log.written[one.partition])[:1]:
        sentence = describe_hot_partition(one.partition, log.written[one.partition], total, count)
        more = f" {format_plural(len(hot) - 1, 'more partition')} likewise." if len(hot) > 1 else ""
        hours = round(SHARE_WINDOW.total_seconds() / 3600)
        yield CheckFinding(
            str(SuspicionCode.HOT_PARTITION),
            CheckLevel.WARNS,
            topic.subject,
            f"{sentence}{more} Looked at the newest {format_plural(hours, 'hour')}: "
            f"{format_plural(total, 'offset')}.",
            ADVICE[SuspicionCode.HOT_PARTITION],
            audit_producers(stream),
        )


def _count_batches(one: PartitionProfile, log: NewestLog) -> float:
    """About how many the partition got in that time, by those that were looked at."""
    return log.written[one.partition] * one.batches / one.messages if one.messages else 0.0


def _join(same: list[Suspicion]) -> str:
    if len(same) == 1:
        return same[0].sentence
    return f"{same[0].sentence} And {len(same) - 1} more of the kind."


def _tell_extent(log: NewestLog) -> str:
    seen = log.profile
    cut = ", which is not all that was asked for" if log.is_cut else ""
    return (
        f"Looked at the newest {format_plural(seen.messages, 'message')} "
        f"({format_bytes(seen.bytes)}) of {format_plural(len(seen.partitions), 'partition')}{cut}."
    )
