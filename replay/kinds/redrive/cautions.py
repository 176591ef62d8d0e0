"""What to know before a redrive is approved."""

from __future__ import annotations

from backlog.config import Stream
from backlog.numbers import format_plural
from replay.injection.archived import suggest_redrive
from replay.injection.checks import warn_about_readers
from replay.kinds.redrive.seen import Seen
from replay.recovery.workspace import Workspace
from spark_backfill.redrive.request import Origin, RedriveOutcome


def list_cautions(
    workspace: Workspace, stream: Stream, seen: Seen, outcome: RedriveOutcome, partitions: int
) -> list[str]:
    """One sentence each.

    Args:
        partitions: how many the source had when the messages were written.
    """
    counts, planned = outcome.counts, seen.source.planned
    told = list(outcome.warnings)
    if seen.target is None:
        told += warn_about_readers(seen.others, seen.others_unknown, stream.deliver)
        told += _name_waiting(workspace, planned.archive, {gap.id for gap in seen.gaps})
    if seen.target is None and planned.origin is Origin.LOG:
        told.append(
            "the messages are still in the topic: who has read them gets them again, and so does "
            f"group {stream.group}"
        )
    if planned.origin is Origin.ARCHIVE and planned.topic_id != seen.topic.topic_id:
        told.append(f"topic {planned.topic} was deleted and made again since it was archived")
    was = seen.topic.partitions if planned.origin is Origin.DEAD_LETTERS else partitions
    if seen.target_info.partitions != was:
        told.append(
            f"topic {seen.target_name} has {seen.target_info.partitions} partitions, and the "
            f"messages are of {was}: they go by their keys"
        )
    if counts.unreadable:
        told.append(
            f"{format_plural(counts.unreadable, 'dead letter')} came from topic {stream.topic}, "
            "and where from in it cannot be read from the headers: known by their place among the "
            "dead letters"
        )
    if counts.unnamed:
        told.append(
            f"{format_plural(counts.unnamed, 'dead letter')} do not say which topic they came from "
            "(`redrive.dead_letters` names headers of your own)"
        )
    if counts.came_back:
        told.append(
            f"{format_plural(counts.came_back, 'dead letter')} came back after being put back "
            "before: is the cause mended?"
        )
    return told


def _name_waiting(workspace: Workspace, archive: str | None, taken: set[str]) -> list[str]:
    waiting = workspace.ledger.gaps.list_waiting()
    gaps = [gap for gap in waiting if gap.archive == archive and gap.id not in taken]
    if archive is None or not gaps:
        return []
    return [
        f"{format_plural(len(gaps), 'gap')} wait in this archive and stay so: "
        f"`{suggest_redrive(workspace.ledger, gaps[0])}` leaves out what this puts back, and "
        "closes them"
    ]
