"""What is suspect about a profile, in words that claim no more than batch headers show.

They mark windows to look at, never a loss. That nothing is suspect proves as little: see
`BLIND_SPOTS`. What clients leave behind when batches expire was tried with librdkafka 2.16 and
Kafka 4.3's Java client; see tests/monitoring/producers/test_expired_batches.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from backlogctl.formats import format_count, format_moment, format_plural, format_rate
from backlogctl.monitoring.producers.profile import (
    BreakKind,
    LogProfile,
    PartitionProfile,
    SequenceBreak,
)
from backlogctl.values import OffsetRange

BLIND_SPOTS = (
    "Not visible in any log: messages that expired before they were sent, what `acks=0` or "
    "`acks=1` lost, retries, and duplicates that a producer sent as new messages."
)

# A hot partition needs so many messages in the topic, and batches of its own, to be more than luck.
_HOT_MESSAGES = 1_000
_HOT_BATCHES = 30
_HOT_TIMES = 2.0
_SMALL_BATCHES = 1_000
_SMALL_RATE = 100.0  # batches a second


class SuspicionCode(StrEnum):
    """What is suspect; the first three are about messages, the others about costs."""

    NOT_IDEMPOTENT = "not-idempotent"
    EPOCH_RESTARTED = "epoch-restarted"
    SEQUENCE_JUMP = "sequence-jump"
    HOT_PARTITION = "hot-partition"
    SMALL_BATCHES = "small-batches"
    MIXED_CODECS = "mixed-codecs"


ADVICE: Mapping[SuspicionCode, str] = {
    SuspicionCode.NOT_IDEMPOTENT: "set `enable.idempotence=true` and `acks=all` in their producers",
    SuspicionCode.EPOCH_RESTARTED: "look into that producer's log for expired batches at that "
    "time; a sequenced producer would tell which messages are missing",
    SuspicionCode.SEQUENCE_JUMP: "look into that producer's and the brokers' logs at that time",
    SuspicionCode.HOT_PARTITION: "look at the keys, or at how the producers choose partitions",
    SuspicionCode.SMALL_BATCHES: "raise `linger.ms` and `batch.size` in their producers",
    SuspicionCode.MIXED_CODECS: "set one `compression.type` in all producers",
}


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One thing to look at.

    Attributes:
        partition: None where it is about several.
        producer_id: None where it is not about one.
        from_time, to_time: the window to look at; None where the batches have no usable times.
        offsets: where in the log; of a break, from the last record before it to the first one
            after it.
        sentence: for people, without the topic's name.
    """

    code: SuspicionCode
    partition: int | None
    producer_id: int | None
    from_time: datetime | None
    to_time: datetime | None
    offsets: tuple[OffsetRange, ...]
    sentence: str


def find_suspicions(profile: LogProfile) -> tuple[Suspicion, ...]:
    """Everything suspect, what is about messages first."""
    return (
        *_find_not_idempotent(profile),
        *_find_epochs(profile),
        *_find_jumps(profile),
        *_find_hot(profile),
        *_find_small(profile),
        *_find_mixed(profile),
    )


def describe_limits(profile: LogProfile) -> tuple[str, ...]:
    """What this profile cannot say, each in a sentence; none where it is as good as headers go."""
    told = []
    if profile.is_compacted:
        told.append(
            "The topic is compacted: any batch may be gone, so sequence numbers were not compared."
        )
    elif holes := sum(one.holes for one in profile.partitions):
        told.append(
            f"Offsets are missing in {format_plural(holes, 'place')}, as after compaction: "
            "sequence numbers were not compared across them."
        )
    if passed := sum(gone.count for one in profile.partitions for gone in one.passed_over):
        told.append(
            f"{format_plural(passed, 'offset')} expired or were deleted before they were read."
        )
    if old := sum(one.old_format for one in profile.partitions):
        told.append(
            f"The log has {old:,} {'entry' if old == 1 else 'entries'} of a format from before "
            "Kafka 0.11, without producer and sequence: they are in no figure."
        )
    if profile.forgotten:
        told.append(
            f"There are very many producers: {format_plural(profile.forgotten, 'time')} one that "
            "had been silent for longest was no longer followed."
        )
    if profile.breaks_left_out:
        told.append(
            f"{format_plural(profile.breaks_left_out, 'more break')} in sequence numbers are not "
            "listed."
        )
    return tuple(told)


def _find_not_idempotent(profile: LogProfile) -> Iterator[Suspicion]:
    having = [one for one in profile.partitions if one.not_idempotent]
    if not having:
        return
    count, total = sum(one.not_idempotent for one in having), profile.messages
    whole = count == total
    what = f"All {total:,} messages have" if whole else f"{count:,} of {total:,} messages have"
    if total == 1:
        what = "The only message has"
    yield Suspicion(
        SuspicionCode.NOT_IDEMPOTENT,
        _only(one.partition for one in having),
        None,
        _least(one.not_idempotent_first for one in having),
        _most(one.not_idempotent_last for one in having),
        _whole(having),
        f"{what} no producer id: their producers are not idempotent, so the broker "
        "cannot see whether a batch of theirs is missing, late or there twice.",
    )


def _find_epochs(profile: LogProfile) -> Iterator[Suspicion]:
    """One for a producer and epoch: a client raises its epoch for all partitions at once."""
    events: defaultdict[tuple[int, int], list[SequenceBreak]] = defaultdict(list)
    for one in profile.breaks:
        if one.kind is BreakKind.EPOCH:
            events[one.producer_id, one.after.epoch].append(one)
    for (producer, epoch), breaks in events.items():
        old = sorted({one.before.epoch for one in breaks})
        was = str(old[0]) if len(old) == 1 else f"{old[0]}–{old[-1]}"
        yield _at_breaks(
            SuspicionCode.EPOCH_RESTARTED,
            producer,
            breaks,
            f"Producer {producer} raised its epoch from {was} to {epoch} outside of transactions "
            f"{_where(breaks)}. An idempotent client does so when batches failed and it cannot "
            "know whether the broker has them: messages of the old epoch may be missing, and some "
            "may be there although the client was told that they failed. The log does not show "
            "which.",
        )


def _find_jumps(profile: LogProfile) -> Iterator[Suspicion]:
    for one in profile.breaks:
        if one.kind is BreakKind.EPOCH:
            continue
        expected, found = one.before.sequence + 1, one.after.sequence
        if one.kind is BreakKind.RESTART:
            what = f"begins again at 0 after {one.before.sequence:,}"
        elif one.left_out:
            what = f"goes from {one.before.sequence:,} to {found:,}, without {one.left_out:,}"
        else:
            what = f"goes back to {found:,} where {expected:,} was next"
        yield _at_breaks(
            SuspicionCode.SEQUENCE_JUMP,
            one.producer_id,
            [one],
            f"The numbering of producer {one.producer_id}, epoch {one.after.epoch}, {what} "
            f"{_where([one])}. A broker takes that only of a producer that it has forgotten, or "
            "after it lost batches that it had taken: look for expired producer ids, deleted "
            "records and unclean leader elections at this time.",
        )


def _at_breaks(
    code: SuspicionCode, producer: int, breaks: Sequence[SequenceBreak], sentence: str
) -> Suspicion:
    return Suspicion(
        code,
        _only(one.partition for one in breaks),
        producer,
        _least(one.before.at for one in breaks),
        _most(one.after.at for one in breaks),
        tuple(
            OffsetRange(one.partition, one.before.offset, one.after.offset + 1)
            for one in sorted(breaks, key=lambda one: one.partition)
        ),
        sentence,
    )


def _where(breaks: Sequence[SequenceBreak]) -> str:
    times = f"between {format_moment(_least(b.before.at for b in breaks))} and "
    times += format_moment(_most(b.after.at for b in breaks))
    partitions = sorted({one.partition for one in breaks})
    if len(partitions) == 1:
        return f"in partition {partitions[0]} at offset {breaks[0].after.offset}, {times}"
    return f"in {len(partitions)} partitions, {times}"


def is_hot(messages: int, batches: float, total: int, partitions: int) -> bool:
    """Whether a partition has much more than its share, by more than luck.

    Args:
        messages, batches: of the partition.
        total: messages of all partitions in the same time.
    """
    is_much = total >= _HOT_MESSAGES and messages > _HOT_TIMES * total / partitions
    return is_much and batches >= _HOT_BATCHES


def describe_hot_partition(partition: int, messages: int, total: int, partitions: int) -> str:
    """That it is, in a sentence."""
    return (
        f"Partition {partition} has {messages / total:.0%} of the messages, "
        f"{messages * partitions / total:.1f} times its share: its consumer has as much more to do."
    )


def _find_hot(profile: LogProfile) -> Iterator[Suspicion]:
    total, count = profile.messages, len(profile.partitions)
    for one in profile.partitions:
        if is_hot(one.messages, one.batches, total, count):
            sentence = describe_hot_partition(one.partition, one.messages, total, count)
            times, code = (one.first_time, one.last_time), SuspicionCode.HOT_PARTITION
            yield Suspicion(code, one.partition, None, *times, _whole([one]), sentence)


def _find_small(profile: LogProfile) -> Iterator[Suspicion]:
    first, last, batches = profile.first_time, profile.last_time, profile.batches
    if first is None or last is None or last <= first or batches < _SMALL_BATCHES:
        return
    rate = batches / (last - first).total_seconds()
    small = sum(one.batches_below_1kb for one in profile.partitions)
    if rate > _SMALL_RATE and small * 2 > batches:
        yield Suspicion(
            SuspicionCode.SMALL_BATCHES,
            None,
            None,
            first,
            last,
            _whole(one for one in profile.partitions if one.batches),
            f"Most batches are smaller than 1 kB ({format_count(small)} of "
            f"{format_count(batches)}), at {format_rate(rate)}: each costs the brokers a request's "
            "work. A higher `linger.ms` makes fewer of them.",
        )


def _find_mixed(profile: LogProfile) -> Iterator[Suspicion]:
    found: defaultdict[str, int] = defaultdict(int)
    for one in profile.partitions:
        for codec, batches in one.codecs.items():
            # A producer leaves a batch as it is that would not become smaller.
            if codec != "none":
                found[codec] += batches
    if len(found) < 2:
        return
    having = [one for one in profile.partitions if set(one.codecs) - {"none"}]
    told = ", ".join(
        f"{codec} {_batches(found[codec])}"
        for codec in sorted(found, key=lambda name: -found[name])
    )
    yield Suspicion(
        SuspicionCode.MIXED_CODECS,
        None,
        None,
        _least(one.first_time for one in having),
        _most(one.last_time for one in having),
        _whole(having),
        f"Batches are compressed in several ways: {told}. Producers are configured differently.",
    )


def _whole(partitions: Iterable[PartitionProfile]) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(one.partition, one.start, one.end) for one in partitions)


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count:,} batches"


def _only(partitions: Iterable[int]) -> int | None:
    found = set(partitions)
    return found.pop() if len(found) == 1 else None


def _least(times: Iterable[datetime | None]) -> datetime | None:
    return min((at for at in times if at is not None), default=None)


def _most(times: Iterable[datetime | None]) -> datetime | None:
    return max((at for at in times if at is not None), default=None)
