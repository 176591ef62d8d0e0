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
    """Whether its group was set past messages, and the log still has some of them."""
    return gap.certainty is not Certainty.POSSIBLE and find_skipped(ledger, stream, gap) is not None


def find_skipped(ledger: Ledger, stream: Stream, gap: Gap) -> OffsetRange | None:
    """What the log still has of a gap that its group was set past, by the newest sample.

    Of one that is only possible a reader may have handled it: its consumers' own log or table
    tells. None where rows are restated: the log has older states of them than the table.
    """
    newest, source = ledger.samples.latest(stream.name), stream.source
    restates = source is not None and source.mutable and source.stale == "restate"
    if gap.cause is not Cause.SKIPPED or gap.group != stream.group or restates:
        return None
    if newest is None or newest.topic_id != gap.topic_id or gap.start is None or gap.end is None:
        return None
    lows = [part.low for part in newest.partitions if part.partition == gap.partition]
    if not lows or lows[0] >= gap.end:
        return None
    return OffsetRange(gap.partition, max(gap.start, lows[0]), gap.end)


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
) -> tuple[tuple[Gap, OffsetRange], ...]:
    """Open gaps that the group was set past, or may have been, and what the log has of each: those
    of which these offsets have all of that."""
    return tuple(
        (gap, place)
        for gap in ledger.gaps.list(stream.name, [GapState.OPEN])
        if gap.topic_id == topic_id
        and (place := find_skipped(ledger, stream, gap)) is not None
        and any(
            part.partition == gap.partition and part.start <= place.start and place.end <= part.end
            for part in said
        )
    )


def cut_to(ledger: Ledger, gap: Gap, start: int) -> Gap:
    """The gap from an offset on; what retention has taken of it is then one of its own."""
    return gap if gap.start == start else ledger.gaps.cut(gap, start)[1]


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
            taken.append(cut_to(ledger, gap, low))
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
