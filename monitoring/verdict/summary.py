"""All partitions of one group on one topic as one status: totals, the worst verdict, its words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from backlogctl.formats import format_count, format_duration, format_moment, format_plural
from backlogctl.kafka.group_types import SHARE
from backlogctl.kafka.transactions import TransactionFate
from backlogctl.monitoring.offsets.history import MEMBERLESS, SIMPLE
from backlogctl.monitoring.offsets.rhythm import Rhythm
from backlogctl.monitoring.verdict.commands import GroupTrouble, advise_on_group
from backlogctl.monitoring.verdict.status import (
    UNLIMITED,
    GroupStatus,
    HeldBack,
    PartitionStatus,
    Retention,
    Urgency,
    Verdict,
    find_urgency,
    find_worst,
)

_UNSEEN = (
    "; no commit was seen to move, and it never has members: whether anybody reads is not known, "
    "look again"
)
_URGENCIES = {
    Urgency.NOW: "act now",
    Urgency.SOON: "act within the hour",
    Urgency.LATER: "there is time to act",
}


def _describe_verdict(status: GroupStatus, worst: PartitionStatus | None, window: float) -> str:
    """`orders/2: 1.2 M behind, drained in 3 h 10 min, retention reaches it in 1 h 40 min at the
    earliest: about 570,000 will be lost; 9 consumers would win`.

    Args:
        worst: the partition that made the verdict.
        window: seconds that trends are judged over.
    """
    name, verdict = status.stream or status.topic, status.verdict
    lag, lost = status.lag, status.lost
    if status.group_state == SHARE:
        return (
            f"{name}: read by a share group, which acknowledges message by message and has no "
            "committed offsets: `backlogctl status` tells how far it is"
        )
    place = name if worst is None or verdict is Verdict.OK else f"{name}/{worst.partition}"
    if worst is None or verdict is Verdict.OK:
        if not lag:
            return f"{place}: nothing unread" if lag == 0 else f"{place}: nothing known"
        unread = [part for part in status.partitions if part.lag]
        if any(_is_left(status, part) for part in unread):
            known = [part for part in unread if part.seconds_retained is not None]
            first = min(known, key=lambda part: part.seconds_retained or 0.0, default=unread[0])
            left = f", nobody is in the group{_describe_retained(first)}"
            return f"{place}: {format_count(lag)} behind{left}"
        keeps_up = all(part.keeps_up for part in unread)
        drained = ", keeping up" if keeps_up else _describe_drain(status.seconds_to_drain)
        return f"{place}: {format_count(lag)} behind{drained}"
    behind = f"{format_count(worst.lag)} behind"
    if _is_left(status, worst):
        behind += ", nobody is in the group" if verdict in (Verdict.WARN, Verdict.LOSING) else ""
        loss = _describe_retained(worst)
    else:
        behind += _describe_drain(worst.seconds_to_drain)
        loss = _describe_loss(worst, status.consumers_to_win)
    over = format_duration(window)
    is_unseen = status.group_state == SIMPLE and not worst.consumed_per_second
    match verdict:
        case Verdict.LOST:
            text = f"{format_plural(lost or 0, 'message')} lost at most"
            if status.likely is not None and status.likely != lost:
                text += f", about {format_count(status.likely)} by its pace"
            if worst.lost != lost:
                text += f", {format_count(worst.lost)} of them here"
            text += _describe_undecided(status)
            loss = loss or _describe_retained(worst)
            return f"{place}: {text}{f'; {behind}{loss}' if worst.lag else ''}"
        case Verdict.LOSING if worst.undecided:
            return f"{place}: {behind}{_describe_undecided(status)}"
        case Verdict.UNKNOWN if worst.possible:
            return (
                f"{place}: {format_plural(status.possible, 'message')} may have been skipped: the "
                "commit was moved while nobody was in the group, by an operator or by a reader "
                f"that never joins; {behind}"
            )
        case Verdict.BEYOND_END:
            return f"{place}: the committed offset {worst.committed:,} is beyond the end of the log"
        case Verdict.REWIND:
            return f"{place}: the committed offset went back; {behind}{loss}"
        case Verdict.STOP:
            return (
                f"{place}: {behind}, nobody is in the group, and nothing was committed for {over}"
            )
        case Verdict.STALL:
            return f"{place}: {behind}, and the committed offset did not move for {over}"
        case Verdict.WARN:
            return f"{place}: {behind}, and the lag did not fall for {over}"
        case Verdict.UNKNOWN if worst.committed is not None:
            return f"{place}: its leader does not answer: what is unread is unknown"
        case Verdict.UNKNOWN:
            return f"{place}: the group has no committed offset: what it read, or lost, is unknown"
        case Verdict.LAGGING if status.rhythm is not None:
            return f"{place}: {behind}{_describe_rhythm(status.rhythm, status.taken_at, worst)}"
        case Verdict.LAGGING:
            more = _UNSEEN if is_unseen else "; too few samples to say more"
            if status.group_state in MEMBERLESS and not is_unseen:
                more = f", nobody is in the group{more}"
            return f"{place}: {behind}{_describe_retained(worst)}{more}"
        case Verdict.BLOCKED:
            kept = _describe_retained(worst, "; retention reaches them")
            return f"{place}: {describe_held(worst)}{kept}{f'; {behind}' if worst.lag else ''}"
        case Verdict.LOSING if is_unseen:
            loss += _UNSEEN
    return f"{place}: {behind}{loss}"


def _describe_rhythm(rhythm: Rhythm, now: datetime, part: PartitionStatus) -> str:
    """`, its job is away; it came 12 times, every 58 min to 1 h 2 min, and is due within 40 min;
    retention reaches it in 3 h at the earliest`."""
    shortest, longest = map(format_duration, (rhythm.every_at_least, rhythm.every_at_most))
    every = longest if shortest == longest else f"{shortest} to {longest}"
    due = format_duration((rhythm.due - now).total_seconds())
    kept = _describe_retained(part, "; retention reaches it")
    return (
        f", its job is away; it came {rhythm.times + 1} times, every {every}, and is due within "
        f"{due}{kept}"
    )


def _describe_undecided(status: GroupStatus) -> str:
    if not status.undecided:
        return ""
    return (
        f"; {format_plural(status.undecided, 'message')} were deleted where it reads, and its "
        "client may have fetched them before: its next commits tell"
    )


def describe_held(part: PartitionStatus) -> str:
    """`501 messages lie behind an open transaction since 2026-11-21 01:02:03Z (producer 7, epoch 0,
    partition 2), which its coordinator aborts by 01:17:03Z`."""
    held = part.held
    assert held is not None
    verb = "lies" if held.messages == 1 else "lie"
    many = f"{format_plural(held.messages, 'message')} {verb} behind an open transaction"
    who = "by whom is not known" if held.transaction is None else held.transaction.producer
    since = f"{many} since {format_moment(held.since)} ({who}, partition {part.partition})"
    if not held.is_certain:
        since += ", if the group reads committed data, which is not known"
    return f"{since}{_describe_fate(held)}"


def _describe_fate(held: HeldBack) -> str:
    one = held.transaction
    match None if one is None else one.fate:
        case TransactionFate.ONGOING if one is not None and one.ends_by is not None:
            return f"; its coordinator aborts it at {format_moment(one.ends_by)}"
        case TransactionFate.ENDING:
            return "; its coordinator is ending it"
        case TransactionFate.HANGING:
            return "; its coordinator does not have it open: it stays until somebody ends it"
    return "; whether anybody will end it is not known"


def _add_held(sentence: str, parts: Sequence[PartitionStatus], verdict: Verdict) -> str:
    """The sentence, and what lies behind open transactions where it does not say so."""
    held = sorted((p for p in parts if p.held), key=lambda part: -_count_held(part))
    if not held:
        return sentence
    if verdict is not Verdict.BLOCKED:
        sentence += f"; {describe_held(held[0])}"
    if rest := held[1:]:
        many = format_plural(sum(map(_count_held, rest)), "message")
        sentence += f"; so do {many} on {format_plural(len(rest), 'more partition')}"
    return sentence


def _count_held(part: PartitionStatus) -> int:
    return 0 if part.held is None else part.held.messages


def _describe_unknown(status: GroupStatus, unknown: Sequence[int]) -> str:
    """What the sentence does not say of partitions whose lag is unknown, or of the others."""
    if not unknown or status.group_state == SHARE:
        return ""
    if status.verdict in (Verdict.UNKNOWN, Verdict.BEYOND_END):
        known = status.lag_at_least
        return "" if known is None else f"; the others are {format_count(known)} behind"
    shown = ", ".join(map(str, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
    word = "partition" if len(unknown) == 1 else "partitions"
    return f"; what is unread, or lost, of {word} {shown} is unknown"


def _is_left(status: GroupStatus, part: PartitionStatus) -> bool:
    """Whether nobody is in the group any more, so that the pace that was seen says nothing."""
    has_members = status.group_state not in MEMBERLESS or status.group_state == SIMPLE
    return not has_members and status.rhythm is None and bool(part.consumed_per_second)


def _describe_drain(seconds: float | None) -> str:
    return f", drained in {format_duration(seconds)}" if seconds else ""


def _describe_retained(part: PartitionStatus, lead: str = ", retention reaches it") -> str:
    if part.seconds_retained is None:
        return ""
    if part.seconds_retained <= 0:
        return f"{lead} now"
    return f"{lead} in {format_duration(part.seconds_retained)} at the earliest"


def _describe_loss(part: PartitionStatus, consumers: int | None) -> str:
    if part.seconds_to_loss is None:
        return ""
    when = format_duration(part.seconds_to_loss)
    text = (
        f", retention reaches it in {when} at the earliest"
        if part.seconds_to_loss > 0
        else ", retention may take it with its next check"
    )
    if part.expected_loss:
        text += f": about {format_count(_round(part.expected_loss))} will be lost"
    if consumers:
        text += f"; {format_plural(consumers, 'consumer')} would win"
    urgency = find_urgency(part.seconds_to_loss)
    return text if urgency is None else f"{text}; {_URGENCIES[urgency]}"


def _round(count: int) -> int:
    """Two digits: it is a forecast."""
    size = int(10 ** max(0, len(str(count)) - 2))
    return round(count / size) * size


# All partitions of one group on one topic as one status.

# A partition with less than this share of the lag does not decide when all is drained.
SMALL_SHARE = 0.01


def summarize_group(
    parts: Sequence[PartitionStatus],
    *,
    stream: str,
    cluster: str,
    topic: str,
    group: str,
    group_state: str,
    taken_at: datetime,
    written: Sequence[bool],
    retention: Retention = UNLIMITED,
    consumers: int | None = None,
    window: float = 600.0,
    has_consumers: bool = False,
    has_source: bool = False,
    seconds_held: float = 0.0,
    rhythm: Rhythm | None = None,
) -> GroupStatus:
    """The totals, the worst verdict, and its sentence.

    Args:
        written: by partition, whether it was ever written: one that was not needs no commit.
        consumers: how many read now; None where that is not known.
        window: seconds that trends are judged over.
        has_consumers, has_source: what the stream's configuration lets the tool do.
        seconds_held: how long an operator's hold of the topic lasts yet.
        rhythm: of a job that comes by.
    """
    verdict = find_worst(part.verdict for part in parts)
    course = find_worst(part.course for part in parts)
    worst = _find_worst_part(parts, verdict)
    lag, lag_at_least = _add_up([part.lag for part in parts], written)
    lost = _total([part.lost for part in parts], written)
    loss = min(
        (part for part in parts if part.seconds_to_loss is not None),
        key=lambda part: part.seconds_to_loss or 0.0,
        default=None,
    )
    status = GroupStatus(
        stream=stream,
        cluster=cluster,
        topic=topic,
        group=group,
        group_state=group_state,
        taken_at=taken_at,
        verdict=verdict,
        partitions=tuple(parts),
        lag=lag,
        lag_seconds=max((p.lag_seconds for p in parts if p.lag_seconds is not None), default=None),
        lost=lost,
        likely=_total([part.likely for part in parts], written),
        undecided=sum(part.undecided for part in parts),
        possible=sum(part.possible for part in parts),
        seconds_to_drain=_find_drain(parts, lag),
        seconds_to_loss=None if loss is None else loss.seconds_to_loss,
        loss_by=None if loss is None else loss.loss_by,
        expected_loss=sum(part.expected_loss or 0 for part in parts) or None,
        consumed_per_second=_sum_known([part.consumed_per_second for part in parts]),
        produced_per_second=_sum_known([part.produced_per_second for part in parts]),
        sentence="",
        consumers_to_win=_count_winners(parts, consumers),
        retention=retention,
        course=course,
        held=sum(map(_count_held, parts)),
        lag_at_least=lag_at_least,
        rhythm=rhythm if any(part.lag for part in parts) else None,
    )
    # Where nobody is in the group, its pace of before says nothing; of a reader that only assigns
    # it is all that is seen.
    unseen = [
        part.seconds_retained
        for part in parts
        if part.lag
        and part.seconds_retained is not None
        and not (group_state == SIMPLE and part.consumed_per_second)
    ]
    is_left = group_state in MEMBERLESS and rhythm is None
    commands = [
        command
        for word in (course, verdict)  # what is lost already can wait; an ongoing loss cannot
        for command in advise_on_group(
            GroupTrouble(
                *(word, stream, cluster, group, has_consumers, has_source),
                status.seconds_to_loss,
                status.seconds_to_drain,
                seconds_held,
                status.held > 0,
                min(unseen, default=None) if is_left else None,
            )
        )
    ]
    unknown = [p.partition for p, has in zip(parts, written, strict=True) if has and p.lag is None]
    sentence = _describe_verdict(status, worst, window) + _describe_unknown(status, unknown)
    sentence = _add_held(sentence, parts, verdict)
    return replace(status, sentence=sentence, next_commands=tuple(dict.fromkeys(commands)))


def _find_worst_part(parts: Sequence[PartitionStatus], verdict: Verdict) -> PartitionStatus | None:
    """Of those that made the verdict, the one with the least time, the most lost, the most lag."""
    return min(
        (part for part in parts if part.verdict is verdict),
        key=lambda part: (
            math.inf if part.seconds_to_loss is None else part.seconds_to_loss,
            -(part.lost or 0),
            -_count_held(part),
            -(part.lag or 0),
            part.partition,
        ),
        default=None,
    )


def _add_up(values: Sequence[int | None], written: Sequence[bool]) -> tuple[int | None, int | None]:
    """The sum, None where a partition that was written is unknown, and then what is known of it."""
    known = [value for value in values if value is not None]
    unknown = any(
        value is None and has_data for value, has_data in zip(values, written, strict=True)
    )
    total = sum(known) if known else None
    return (None, total) if unknown else (total, None)


def _total(values: Sequence[int | None], written: Sequence[bool]) -> int | None:
    """The sum of what is known; None where nothing is, or where zero would be only a part.

    With an unknown partition a sum above zero is "at least" that.
    """
    known = [value for value in values if value is not None]
    unknown = any(
        value is None and has_data for value, has_data in zip(values, written, strict=True)
    )
    return sum(known) if known and (sum(known) or not unknown) else None


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _find_drain(parts: Sequence[PartitionStatus], lag: int | None) -> float | None:
    """When the last partition that matters is drained; None where one of them never is."""
    if not lag:
        return None if lag is None else 0.0
    large = [part for part in parts if (part.lag or 0) >= SMALL_SHARE * lag and not part.keeps_up]
    drains = [part.seconds_to_drain for part in large]
    known = [drain for drain in drains if drain is not None]
    return max(known) if known and len(known) == len(drains) else None


def _count_winners(parts: Sequence[PartitionStatus], consumers: int | None) -> int | None:
    """How many consumers as fast as today's read every partition fast enough."""
    losing = [part for part in parts if part.needed_per_second is not None]
    consumed = _sum_known([part.consumed_per_second for part in parts])
    if not losing or not consumed or not consumers:
        return None
    if any(part.seconds_to_loss == 0 for part in losing):
        return None  # retention is there already: no number of consumers wins that
    needed = sum(part.needed_per_second or part.produced_per_second or 0.0 for part in parts)
    # A consumer without a partition does nothing.
    each = consumed / min(consumers, len(parts))
    return math.ceil(needed / each)
