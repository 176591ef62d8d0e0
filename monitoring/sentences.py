"""The verdict in words: what, how bad, how long."""

from __future__ import annotations

from backlog.numbers import format_count, format_duration, format_plural
from monitoring.status import PartitionStatus
from monitoring.verdicts import Verdict


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
    behind = _describe_lag(worst)
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


def _describe_lag(part: PartitionStatus) -> str:
    return f"{format_count(part.lag)} behind{_describe_drain(part.seconds_to_drain)}"


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
