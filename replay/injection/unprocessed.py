"""Messages that were committed and never handled: put back from the log while it has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from backlogctl.config import Stream
from backlogctl.errors import Refused, UsageError
from backlogctl.values import Cause, Certainty, Gap, GapState, OffsetRange, RecoveryState

if TYPE_CHECKING:
    from backlogctl.ledger import Ledger

# What `plan redrive --from` takes them by.
WORD = "unprocessed"


def is_in_log(ledger: Ledger, gap: Gap) -> bool:
    """Whether the log still has some message of an unprocessed gap, by the stream's newest sample.

    Of another gap it has none, or they are not known to be lost.
    """
    if gap.cause is not Cause.UNPROCESSED or gap.end is None:
        return False
    newest = ledger.samples.latest(gap.stream)
    if newest is None or newest.topic_id != gap.topic_id:
        return False
    return any(part.partition == gap.partition and part.low < gap.end for part in newest.partitions)


def is_skipped_in_log(ledger: Ledger, stream: Stream, gap: Gap) -> bool:
    """Whether its group was set past messages that the log has all still, by the newest sample."""
    return gap.certainty is not Certainty.POSSIBLE and may_be_skipped_in_log(ledger, stream, gap)


def may_be_skipped_in_log(ledger: Ledger, stream: Stream, gap: Gap) -> bool:
    """The same of messages that a reader may have handled: only its consumers' own log or table
    tells.

    Not where rows are restated: the log has older states of them than the table.
    """
    newest, source = ledger.samples.latest(stream.name), stream.source
    restates = source is not None and source.mutable and source.stale == "restate"
    return (
        gap.cause is Cause.SKIPPED
        and gap.group == stream.group
        and not restates
        and gap.start is not None
        and newest is not None
        and newest.topic_id == gap.topic_id
        and any(p.partition == gap.partition and p.low <= gap.start for p in newest.partitions)
    )


def list_in_log(ledger: Ledger, stream: Stream) -> tuple[Gap, ...]:
    """Gaps whose messages a redrive puts back, by partition and start: open ones, and those of a
    plan that nobody approved yet, whose place a new one takes."""
    planned = {
        gap_id
        for recovery in ledger.recoveries.list(stream.name, [RecoveryState.PLANNED])
        for gap_id in ledger.recoveries.gap_ids(recovery.id)
    }
    return tuple(
        gap
        for gap in ledger.gaps.list(stream.name, [GapState.OPEN, GapState.PLANNED])
        if (gap.state is GapState.OPEN or gap.id in planned)
        and gap.group == stream.group
        and is_in_log(ledger, gap)
    )


def list_skipped_within(
    ledger: Ledger, stream: Stream, topic_id: str, said: Sequence[OffsetRange]
) -> tuple[Gap, ...]:
    """Open gaps that the group was set past, or may have been, of which these offsets of the log
    have all."""
    return tuple(
        gap
        for gap in ledger.gaps.list(stream.name, [GapState.OPEN])
        if gap.topic_id == topic_id
        and may_be_skipped_in_log(ledger, stream, gap)
        and any(
            part.partition == gap.partition and part.start <= place.start and place.end <= part.end
            for place in list_unprocessed_offsets([gap])
            for part in said
        )
    )


def take_unprocessed(
    ledger: Ledger, stream: Stream, topic_id: str, wants: Callable[[Gap], bool]
) -> tuple[Gap, ...]:
    """Those to put back now. One that retention has reached is cut there: a rebuild takes the rest.

    Raises:
        UsageError: nothing says what was handled.
        Refused: there is none.
    """
    if stream.source is None or stream.source.consumed is None:
        raise UsageError(
            "what its consumer has handled since is not known: no table of it is configured",
            subject=f"stream {stream.name}",
            hint=f"configure `streams.{stream.name}.source.consumed`, or say --from log",
        )
    newest = ledger.samples.latest(stream.name)
    lows = {} if newest is None else {part.partition: part.low for part in newest.partitions}
    taken = []
    for gap in list_in_log(ledger, stream):
        low, start = lows[gap.partition], gap.start or 0
        if gap.topic_id != topic_id or not wants(gap):
            continue
        if start < low and gap.state is GapState.OPEN:
            taken.append(ledger.gaps.cut(gap, low)[1])
        elif start >= low:
            taken.append(gap)
    if not taken:
        raise Refused(
            "nothing that was committed is known to be unhandled",
            subject=f"stream {stream.name}",
            hint=f"`backlogctl audit consumed {stream.name}` looks for it",
        )
    return tuple(taken)


def list_unprocessed_offsets(gaps: Iterable[Gap]) -> tuple[OffsetRange, ...]:
    """Their offsets, where they are known."""
    return tuple(
        OffsetRange(gap.partition, gap.start, gap.end)
        for gap in gaps
        if gap.start is not None and gap.end is not None
    )
