"""Which gaps a rebuild takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from backlog.config import Stream
from backlog.errors import Refused, UsageError
from backlog.kafka.admin import TopicInfo
from backlog.numbers import format_plural
from backlog.values import Cause, Gap, GapState
from replay.injection.archived import find_archive, list_archives, list_free, suggest_redrive
from replay.injection.unprocessed import is_in_log
from replay.recovery.workspace import Workspace

if TYPE_CHECKING:
    from backlog.ledger import Ledger

_REPAIRABLE = (
    *(Cause.EXPIRED, Cause.SKIPPED, Cause.DISCARDED),
    *(Cause.PRODUCER_GAP, Cause.UNPROCESSED),
)
_BUSY = (GapState.PLANNED, GapState.STAGED, GapState.INJECTED)
NO_SOURCE = "the stream has no source table to rebuild it from"


def take_every(_: Gap) -> bool:
    """No gap is left alone."""
    return True


def list_repairable(ledger: Ledger, stream: Stream, topic_id: str | None = None) -> tuple[Gap, ...]:
    """Open gaps of a stream that a rebuild would take now.

    Args:
        topic_id: that the topic has now; None leaves that to the plan.
    """
    known = ledger.gaps.list(stream=stream.name, states=[GapState.OPEN])
    return tuple(gap for gap in known if not say_why_not(ledger, gap, stream, topic_id))


def say_why_not(ledger: Ledger, gap: Gap, stream: Stream, topic_id: str | None = None) -> str:
    """Why a gap of a topic that has this id now cannot be rebuilt; "" where it can."""
    if gap.cause not in _REPAIRABLE:
        return f"{gap.cause} is reported only, what was lost is unknown"
    if gap.count is None:
        return "its range is unknown"
    if topic_id is not None and gap.topic_id != topic_id:
        return "it is of a topic of this name that was deleted since"
    if gap.group != stream.group:
        return f"it is of group {gap.group}, and the stream's group is {stream.group}"
    if is_in_log(ledger, gap):
        return f"the log still has its messages: `{suggest_redrive(ledger, gap)}` puts them back"
    if gap.sequences is not None:
        return _say_why_unsent(gap, stream)
    record = find_archive(gap, list_archives(ledger, gap.topic_id))
    if record is not None and record.purged_at is not None:
        return (
            f"its archive {record.recovery_id} was purged at {record.purged_at:%Y-%m-%d %H:%M}Z: "
            "its messages are gone"
        )
    if record is None and gap.archive is not None:
        return f"its archive {gap.archive} is not on record"
    if record is not None:
        return (
            f"its messages are in archive {record.recovery_id}: `{suggest_redrive(ledger, gap)}` "
            "puts them back"
        )
    return NO_SOURCE if stream.source is None else ""


def _say_why_unsent(gap: Gap, stream: Stream) -> str:
    if stream.source is None:
        return NO_SOURCE
    if gap.first_time is None and stream.source.consumed is None:
        return "they are the first messages of their producer, and when it began is not known"
    return ""


def choose_gaps(
    workspace: Workspace,
    stream: Stream,
    topic: TopicInfo,
    wanted: Sequence[str],
    wants: Callable[[Gap], bool] = take_every,
) -> tuple[tuple[Gap, ...], list[str]]:
    """The gaps to repair, and what is to be said about the others.

    Open ones, and those of an older plan that nobody approved: the new plan takes its place.

    Raises:
        UsageError: a gap that was named cannot be repaired.
        Refused: there is nothing to repair.
    """
    ledger = workspace.ledger
    free = {gap.id for gap in list_free(ledger, stream)}
    known = {gap.id: gap for gap in ledger.gaps.list(stream=stream.name) if wants(gap)}
    for gap_id in wanted:
        if gap_id not in known:
            raise UsageError(
                f"stream {stream.name} has no such gap",
                subject=f"gap {gap_id}",
                hint="`backlogctl gaps` lists them",
            )
    chosen: list[Gap] = []
    warnings: list[str] = []
    for gap in known.values():
        why = f"it is {gap.state}"
        if is_free := gap.id in free:
            why = say_why_not(ledger, gap, stream, topic.topic_id)
        if not why and (not wanted or gap.id in wanted):
            chosen.append(gap)
        elif gap.id in wanted:
            raise UsageError(
                f"cannot be planned: {why}",
                subject=f"gap {gap.id}",
                hint="`backlogctl gaps` lists them",
            )
        elif is_free and not wanted:
            warnings.append(f"gap {gap.id} (partition {gap.partition}) is left out: {why}")
    if not chosen:
        busy = [gap for gap in known.values() if gap.state in _BUSY and gap.id not in free]
        elsewhere = {gap.id: suggest_redrive(ledger, gap) for gap in known.values()}
        commands = [elsewhere[gap_id] for gap_id in sorted(free & set(elsewhere))]
        raise _refuse_nothing(stream, warnings, list(filter(None, commands)), is_busy=bool(busy))
    return _choose_sort(chosen, warnings)


def _choose_sort(chosen: list[Gap], warnings: list[str]) -> tuple[tuple[Gap, ...], list[str]]:
    """One plan is of what readers lost, or of what never reached the topic: the rows of a loss are
    told by offsets and times, those that were never sent by having no message at all."""
    unsent = tuple(gap for gap in chosen if gap.sequences is not None)
    others = tuple(gap for gap in chosen if gap.sequences is None)
    if unsent and others:
        left = f"{format_plural(len(unsent), 'gap')} of producers ({unsent[0].id}"
        left += ", ...)" if len(unsent) > 1 else ")"
        warnings = [*warnings, f"{left} are left out: a plan of their own puts them back"]
    return others or unsent, warnings


def _refuse_nothing(
    stream: Stream, warnings: Sequence[str], commands: Sequence[str], *, is_busy: bool
) -> Refused:
    subject = f"stream {stream.name}"
    if is_busy:
        return Refused(
            "every gap belongs to a recovery already",
            subject=subject,
            hint="see `backlogctl recoveries`; run it, or cancel it",
        )
    if warnings:
        return Refused(
            f"no gap can be rebuilt: {'; '.join(warnings)}",
            subject=subject,
            hint=" and ".join(f"`{command}`" for command in dict.fromkeys(commands))
            or "`backlogctl waive` closes a gap that needs no recovery",
        )
    return Refused("nothing is lost, so there is nothing to rebuild", subject=subject)
