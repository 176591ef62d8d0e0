"""What to type next, for a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from backlogctl.formats import format_count, format_duration, format_plural
from backlogctl.kafka.group_types import SHARE
from backlogctl.monitoring.verdict.status import (
    UNLIMITED,
    GroupStatus,
    PartitionStatus,
    Retention,
    Verdict,
    find_worst,
)
from backlogctl_delivery.visible import quote_word

HOLD_FOR = "6h"


def suggest_commands(
    stream: str,
    verdict: Verdict,
    *,
    cluster: str = "",
    group: str = "",
    has_consumers: bool,
    has_source: bool,
) -> tuple[str, ...]:
    """The commands that help, the best first; none where all is well, or a person must look.

    Args:
        stream: "" for a group that no stream is about: it has to be added before it is repaired.
        has_consumers: the tool knows how to start the stream's consumers.
        has_source: it knows the table that lost messages are rebuilt from.
    """
    if not stream:
        needs_one = verdict in (Verdict.LOST, Verdict.LOSING, Verdict.STOP, Verdict.STALL)
        return (
            (f"backlogctl status --cluster {quote_word(cluster)} --group {quote_word(group)}",)
            if needs_one
            else ()
        )
    hold = f"backlogctl hold {stream} --for {HOLD_FOR}"
    expand = f"backlogctl plan expand {stream}"
    match verdict:
        case Verdict.LOSING:
            return (hold, expand) if has_consumers else (hold,)
        case Verdict.LOST:
            gaps = f"backlogctl gaps {stream}"
            return (f"backlogctl plan rebuild {stream}", gaps) if has_source else (gaps,)
        case Verdict.WARN:
            return (expand,) if has_consumers else ()
        case Verdict.STALL | Verdict.STOP if has_consumers:
            return (f"backlogctl consumers status {stream}",)
        case Verdict.OK | Verdict.LAGGING:
            return ()
    return (f"backlogctl status {stream}",)


def describe_share(name: str) -> str:
    """Of a share group, where nothing more was asked."""
    return (
        f"{name}: read by a share group, which acknowledges message by message and has no "
        "committed offsets: `backlogctl status` tells how far it is"
    )


def describe_verdict(
    name: str,
    verdict: Verdict,
    worst: PartitionStatus | None,
    *,
    lag: int | None,
    lost: int | None,
    seconds_to_drain: float | None,
    consumers_to_win: int | None,
    window: float,
    keeps_up: bool = False,
) -> str:
    """`orders/2: 1.2 M behind, drained in 3 h 10 min, retention reaches it in 1 h 40 min at the
    earliest: about 570,000 will be lost; 9 consumers would win`.

    Args:
        name: of the stream, or the topic. worst: the partition that made the verdict.
        lag, lost, seconds_to_drain, keeps_up: of all partitions. window: seconds that trends are
            judged over.
    """
    place = name if worst is None or verdict is Verdict.OK else f"{name}/{worst.partition}"
    if worst is None or verdict is Verdict.OK:
        if not lag:
            return f"{place}: nothing unread" if lag == 0 else f"{place}: nothing known"
        drained = ", keeping up" if keeps_up else _describe_drain(seconds_to_drain)
        return f"{place}: {format_count(lag)} behind{drained}"
    behind = f"{format_count(worst.lag)} behind{_describe_drain(worst.seconds_to_drain)}"
    loss = _describe_loss(worst, consumers_to_win)
    over = format_duration(window)
    match verdict:
        case Verdict.LOST:
            text = f"{format_plural(lost or 0, 'message')} lost at most"
            if worst.lost != lost:
                text += f", {format_count(worst.lost)} of them here"
            return f"{place}: {text}{f'; {behind}{loss}' if worst.lag else ''}"
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
        case Verdict.LAGGING:
            return f"{place}: {behind}{_describe_retained(worst)}; too few samples to say more"
    return f"{place}: {behind}{loss}"


def _describe_drain(seconds: float | None) -> str:
    return f", drained in {format_duration(seconds)}" if seconds else ""


def _describe_retained(part: PartitionStatus) -> str:
    if part.seconds_retained is None:
        return ""
    return f", retention reaches it in {format_duration(part.seconds_retained)} at the earliest"


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
    return text


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
) -> GroupStatus:
    """The totals, the worst verdict, and its sentence.

    Args:
        written: by partition, whether it was ever written: one that was not needs no commit.
        consumers: how many read now; None where that is not known.
        window: seconds that trends are judged over.
        has_consumers, has_source: what the stream's configuration lets the tool do.
    """
    verdict = find_worst(part.verdict for part in parts)
    course = find_worst(part.course for part in parts)
    worst = _find_worst_part(parts, verdict)
    lag = _total([part.lag for part in parts], written)
    lost = _total([part.lost for part in parts], written)
    loss = min(
        (part for part in parts if part.seconds_to_loss is not None),
        key=lambda part: part.seconds_to_loss or 0.0,
        default=None,
    )
    drain = _find_drain(parts, lag)
    winners = _count_winners(parts, consumers)
    return GroupStatus(
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
        seconds_to_drain=drain,
        seconds_to_loss=None if loss is None else loss.seconds_to_loss,
        loss_by=None if loss is None else loss.loss_by,
        expected_loss=sum(part.expected_loss or 0 for part in parts) or None,
        consumed_per_second=_sum_known([part.consumed_per_second for part in parts]),
        produced_per_second=_sum_known([part.produced_per_second for part in parts]),
        sentence=describe_share(stream or topic)
        if group_state == SHARE
        else describe_verdict(
            stream or topic,
            verdict,
            worst,
            lag=lag,
            lost=lost,
            seconds_to_drain=drain,
            consumers_to_win=winners,
            window=window,
            keeps_up=all(part.keeps_up for part in parts if part.lag),
        ),
        consumers_to_win=winners,
        retention=retention,
        course=course,
        # What is lost already can wait; an ongoing loss cannot.
        next_commands=tuple(
            dict.fromkeys(
                command
                for word in (course, verdict)
                for command in suggest_commands(
                    stream,
                    word,
                    cluster=cluster,
                    group=group,
                    has_consumers=has_consumers,
                    has_source=has_source,
                )
            )
        ),
    )


def _find_worst_part(parts: Sequence[PartitionStatus], verdict: Verdict) -> PartitionStatus | None:
    """Of those that made the verdict, the one with the least time, the most lost, the most lag."""
    return min(
        (part for part in parts if part.verdict is verdict),
        key=lambda part: (
            math.inf if part.seconds_to_loss is None else part.seconds_to_loss,
            -(part.lost or 0),
            -(part.lag or 0),
            part.partition,
        ),
        default=None,
    )


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
