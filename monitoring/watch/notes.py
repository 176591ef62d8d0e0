"""What a status says beside its lag: what waits, what is doubtful, who stopped its consumers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, filterfalse

from backlogctl.errors import BacklogError
from backlogctl.formats import format_moment, format_plural
from backlogctl.ledger import Ledger
from backlogctl.ledger.steps import has_stopped_consumers
from backlogctl.monitoring.offsets.bulk_look import AT_WORK
from backlogctl.monitoring.offsets.certainty import MAYBE_EMPTY
from backlogctl.monitoring.verdict.commands import (
    is_plan,
    rebuild_stream,
    redrive_offsets,
    redrive_stream,
    show_recovery,
)
from backlogctl.monitoring.verdict.status import GroupStatus, Unseen, Verdict, find_worst
from backlogctl.values import Cause, Certainty, Gap, GapState, Recovery

# A stream of which messages wait in an archive, or were committed and never handled: what of it
# is there still, and what puts it back.

_SETTLED = (GapState.VERIFIED, GapState.WAIVED)


def with_archived_note(
    status: GroupStatus, gaps: Iterable[Gap], topic_id: str | None
) -> GroupStatus:
    """The status, with how many messages an offload put aside, or were never handled, and what puts
    them back.

    Args:
        topic_id: of the topic as it is now; offsets of one that was deleted are others.
    """
    known = _list_unsettled(status, gaps)
    waiting = [gap for gap in known if gap.archive is not None]
    if waiting:
        # An offload looks at its files, and then records the gaps; now nobody has looked.
        whole = {gap.archive: format_moment(gap.detected_at) for gap in waiting}
        told = ", ".join(f"{name} was whole at {at}" for name, at in whole.items())
        status = _add(
            status,
            f"at most {_count(waiting)} of it in an archive, not put back yet: {told}",
            *(
                redrive_stream(status.stream, f"archive:{archive}")
                for archive in dict.fromkeys(gap.archive for gap in waiting if not _is_taken(gap))
            ),
        )
    lows = {part.partition: part.log_start for part in status.partitions}
    unhandled = [
        gap
        for gap in known
        if gap.cause is Cause.UNPROCESSED and (gap.end or 0) > lows.get(gap.partition, 0)
    ]
    if unhandled:
        redrive = [redrive_stream(status.stream, "unprocessed")]
        status = _add(
            status,
            f"at most {_count(unhandled)} were committed and never handled, and are in the log",
            *([] if all(map(_is_taken, unhandled)) else redrive),
        )
    return _add_skipped(status, [gap for gap in known if gap.topic_id == topic_id])


def _add_skipped(status: GroupStatus, known: Iterable[Gap]) -> GroupStatus:
    """The status, with what puts back messages that a group was set past, and that no table has."""
    if rebuild_stream(status.stream) in status.next_commands:
        return status  # whether rows are restated is known where that is planned
    lows = {part.partition: part.log_start for part in status.partitions}
    skipped = [
        gap
        for gap in known
        if (gap.cause, gap.state) == (Cause.SKIPPED, GapState.OPEN)
        and gap.certainty is not Certainty.POSSIBLE
        and gap.start is not None
        and (low := lows.get(gap.partition)) is not None
        and low <= gap.start
    ]
    if not skipped:
        return status
    told = f"at most {_count(skipped)} of it are in the log still"
    return _add(status, told, redrive_offsets(status.stream, skipped))


def with_taken_note(status: GroupStatus, gaps: Iterable[Gap]) -> GroupStatus:
    """The status, with the recoveries that have what is lost: where they have all of it, they are
    to be looked at, and another plan would only take the place of theirs."""
    known = [gap for gap in _list_unsettled(status, gaps) if gap.count]
    taken = [gap for gap in known if _is_taken(gap)]
    if not taken:
        return status
    shows = show_takers(taken)
    if not any(gap.state is GapState.OPEN for gap in known):
        again = rebuild_stream(status.stream)
        commands = [shows if one == again else (one,) for one in status.next_commands]
        status = replace(status, next_commands=tuple(chain.from_iterable(commands)))
    recoveries = ", ".join(dict.fromkeys(str(gap.recovery_id) for gap in taken))
    return _add(status, f"at most {_count(taken)} of it in {recoveries}, not verified yet", *shows)


def show_takers(gaps: Iterable[Gap]) -> tuple[str, ...]:
    """The commands that show the recoveries which have gaps that are not settled yet."""
    taken = [gap for gap in gaps if gap.state not in _SETTLED and _is_taken(gap)]
    return tuple(dict.fromkeys(show_recovery(str(gap.recovery_id)) for gap in taken))


def _is_taken(gap: Gap) -> bool:
    """Whether a recovery has it, other than the offload in whose archive it waits."""
    return gap.recovery_id not in (None, gap.archive)


def _list_unsettled(status: GroupStatus, gaps: Iterable[Gap]) -> list[Gap]:
    place = (status.topic, status.group)
    return [gap for gap in gaps if gap.state not in _SETTLED and (gap.topic, gap.group) == place]


def with_doubt_note(status: GroupStatus, gaps: Iterable[Gap]) -> GroupStatus:
    """The status, with how much of what is lost may be no messages at all."""
    unsure = [gap for gap in _list_unsettled(status, gaps) if gap.maybe_empty]
    if not unsure:
        return status
    many = format_plural(sum(gap.count or 0 for gap in unsure), "offset")
    return _add(status, f"{many} of it {MAYBE_EMPTY}")


def _count(gaps: Iterable[Gap]) -> str:
    return format_plural(sum(gap.count or 0 for gap in gaps), "message")


def _add(status: GroupStatus, told: str, *commands: str) -> GroupStatus:
    return replace(
        status,
        sentence=f"{status.sentence}; {told}",
        next_commands=tuple(dict.fromkeys((*status.next_commands, *commands))),
    )


# A stream whose own consumers a recovery has stopped: its lag alone would say that all is well.


def with_stopped_warning(
    ledger: Ledger, status: GroupStatus, begun: Sequence[Recovery] | None = None
) -> GroupStatus:
    """The status, never `ok` while a recovery keeps the stream's consumers stopped.

    What was relayed and not handled is read from the source, and so in no lag: `warn` where a
    runner works on it, `stop` where nobody does.

    Args:
        begun: the stream's recoveries that are not over; None asks the ledger.

    Raises:
        LedgerError.
    """
    recovery = find_stopping(ledger, status.stream, status.topic, status.group, begun)
    if recovery is None:
        return status
    runner = ledger.leases.find_runner(recovery.id)
    least = Verdict.STOP if runner is None else Verdict.WARN
    told = _describe(ledger, recovery, is_at_work=runner is not None)
    show = show_recovery(recovery.id)
    return replace(
        status,
        verdict=find_worst((status.verdict, least)),
        sentence=f"{status.sentence}; {told}",
        # Any plan would be refused until that recovery is over.
        next_commands=tuple(dict.fromkeys((show, *filterfalse(is_plan, status.next_commands)))),
        stopped_by=f"{recovery.kind} {recovery.id}",
    )


def find_stopping(
    ledger: Ledger, stream: str, topic: str, group: str, begun: Sequence[Recovery] | None = None
) -> Recovery | None:
    """The recovery that keeps the consumers of a stream stopped now; None where none does.

    Args:
        begun: the stream's recoveries that are not over; None asks the ledger.

    Raises:
        LedgerError.
    """
    if begun is None:
        begun = ledger.recoveries.list(stream, AT_WORK)
    for recovery in begun:
        same = (recovery.topic, recovery.group) == (topic, group)
        if same and recovery.stops_consumers and _is_stopped(ledger, recovery):
            return recovery
    return None


def _is_stopped(ledger: Ledger, recovery: Recovery) -> bool:
    return has_stopped_consumers(ledger.steps.list(recovery.id))


def _describe(ledger: Ledger, recovery: Recovery, *, is_at_work: bool) -> str:
    told = f"its consumers are stopped by {recovery.kind} {recovery.id}"
    if not is_at_work:
        told += f", which is {recovery.state}, and on which nobody works"
    temporary = ledger.temporary_topics.get(recovery.id)
    if temporary is None or temporary.deleted_at is not None:
        return told
    last = ledger.burndown.latest(recovery.id)
    if last is None:
        return f"{told}; how many messages are only in {temporary.name} is not known"
    many = format_plural(last.temporary_lag, "message")
    return f"{told}; {many} only in {temporary.name} at {format_moment(last.at)}"


def without_ledger(status: GroupStatus, error: BacklogError) -> GroupStatus:
    """A status of what the brokers say now alone: never `ok`, since nobody knows what was lost; and
    without commands, which all need the ledger."""
    parts = tuple(
        replace(part, lost=None, verdict=find_worst((part.course, Verdict.UNKNOWN)))
        for part in status.partitions
    )
    return replace(
        status,
        verdict=find_worst((status.course, Verdict.UNKNOWN)),
        lost=None,
        partitions=parts,
        next_commands=(),
        sentence=f"{status.sentence}; what was lost is unknown: the ledger does not answer",
        unseen=(*status.unseen, Unseen("ledger", error)),
    )
