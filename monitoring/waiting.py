"""A stream of which messages wait in an archive, or were committed and never handled: what of it
is there still, and what puts it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backlog.numbers import format_plural
from backlog.values import Cause, Gap, GapState
from monitoring.status import GroupStatus

_SETTLED = (GapState.VERIFIED, GapState.WAIVED)


def with_archived_note(status: GroupStatus, gaps: Iterable[Gap]) -> GroupStatus:
    """The status, with how many messages an offload put aside, or were never handled, and what puts
    them back."""
    place = (status.topic, status.group)
    known = [gap for gap in gaps if gap.state not in _SETTLED and (gap.topic, gap.group) == place]
    waiting = [gap for gap in known if gap.archive is not None]
    if waiting:
        status = _add(
            status,
            f"at most {_count(waiting)} of it in an archive, not put back yet",
            *(
                f"backlogctl plan redrive {status.stream} --from archive:{archive}"
                for archive in dict.fromkeys(gap.archive for gap in waiting)
            ),
        )
    lows = {part.partition: part.log_start for part in status.partitions}
    unhandled = [
        gap
        for gap in known
        if gap.cause is Cause.UNPROCESSED and (gap.end or 0) > lows.get(gap.partition, 0)
    ]
    if unhandled:
        status = _add(
            status,
            f"at most {_count(unhandled)} were committed and never handled, and are in the log",
            f"backlogctl plan redrive {status.stream} --from unprocessed",
        )
    return status


def _count(gaps: Iterable[Gap]) -> str:
    return format_plural(sum(gap.count or 0 for gap in gaps), "message")


def _add(status: GroupStatus, told: str, *commands: str) -> GroupStatus:
    return replace(
        status,
        sentence=f"{status.sentence}; {told}",
        next_commands=tuple(dict.fromkeys((*status.next_commands, *commands))),
    )
