"""A stream of which messages wait in an archive: they are not lost, and are not read yet either."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backlog.numbers import format_plural
from backlog.values import Gap, GapState
from monitoring.status import GroupStatus

_SETTLED = (GapState.VERIFIED, GapState.WAIVED)


def tell_waiting(status: GroupStatus, gaps: Iterable[Gap]) -> GroupStatus:
    """The status, with how many messages a drain put aside, and what puts them back."""
    place = (status.topic, status.group)
    waiting = [
        gap
        for gap in gaps
        if gap.archive is not None and gap.state not in _SETTLED and (gap.topic, gap.group) == place
    ]
    if not waiting:
        return status
    many = format_plural(sum(gap.count or 0 for gap in waiting), "message")
    command = f"backlogctl plan rebuild {status.stream}"
    return replace(
        status,
        sentence=f"{status.sentence}; at most {many} of it in an archive, not put back yet",
        next_commands=tuple(dict.fromkeys((*status.next_commands, command))),
    )
