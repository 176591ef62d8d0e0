"""One recovery: its plan, who approved it, how far it is, and its record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.present.document import (
    EventLine,
    RecoveryDocument,
    hide_bug,
    list_event_lines,
    read_document,
)
from backlogctl.replay.present.figures import (
    Figure,
    describe_course,
    list_lag_figures,
    list_work_figures,
)
from backlogctl.replay.present.status import list_lines
from backlogctl.replay.web.page.overview import has_runner
from backlogctl.replay.web.page.words import say_moment, say_word
from backlogctl.values import Recovery, RecoveryState

MOST_EVENTS = 200
_DISK_LOOK_BACK = timedelta(hours=1)
_STOPPED = (RecoveryState.REJECTED, RecoveryState.CANCELLED, RecoveryState.FAILED)


@dataclass(frozen=True, slots=True)
class RecoveryPage:
    """All that the page of a recovery shows.

    Attributes:
        standing: how things stand where it does not go on, as (name, sentence).
        trouble: why it failed, is paused or was closed; "" where nothing is to be said.
    """

    document: RecoveryDocument
    trouble: str
    alive: bool
    standing: tuple[tuple[str, str], ...]
    figures: tuple[Figure, ...]
    events: tuple[EventLine, ...]
    more_events: int


def read_recovery(workspace: Workspace, recovery: Recovery, now: datetime) -> RecoveryPage:
    """Reads it, without asking the brokers at each visit.

    Raises:
        LedgerError.
    """
    document = read_document(workspace, recovery, asks=False)
    lines = list_event_lines(document.events, hides_bugs=True)
    return RecoveryPage(
        document=document,
        trouble=describe_trouble(recovery, now),
        alive=has_runner(recovery, now),
        standing=_list_standing(document),
        figures=tuple(_list_figures(workspace, document)),
        events=lines[-MOST_EVENTS:],
        more_events=max(0, len(lines) - MOST_EVENTS),
    )


def _list_figures(workspace: Workspace, recovered: RecoveryDocument) -> Iterator[Figure]:
    """How the work went over time; of one that moves what fills the disks, the disks too."""
    record, ledger = recovered.record, workspace.ledger
    recovery = record.recovery
    if _opens_gaps(workspace, recovery):
        since = recovery.created_at - _DISK_LOOK_BACK
        record = replace(
            record,
            disks=tuple(ledger.disks.history(recovery.cluster, since)),
            samples=tuple(ledger.samples.history(recovery.stream, since)),
        )
    document = {
        "topic": recovery.topic,
        "group": recovery.group,
        "steps": recovered.progress["steps"],
        "timeline": {"lines": ()},
        **describe_course(record, "read_committed"),
    }
    yield from list_work_figures(document)
    yield from list_lag_figures(document)


def _list_standing(document: RecoveryDocument) -> tuple[tuple[str, str], ...]:
    """How a recovery stands that does not go on."""
    standing, state = document.standing, document.recovery.state
    if standing is None or (state is RecoveryState.RUNNING and standing["runner"]):
        return ()
    at = say_moment(datetime.fromisoformat(standing["at"]))
    return (*list_lines(standing), ("looked at", at))


def _opens_gaps(workspace: Workspace, recovery: Recovery) -> bool:
    known = recovery.kind in workspace.kinds.names()
    return known and workspace.kind_of(recovery).traits.opens_gaps


def describe_trouble(recovery: Recovery, now: datetime) -> str:
    """Why it does not go on."""
    detail = hide_bug(recovery.detail)
    told = [str(detail[name]) for name in ("message", "reason") if detail.get(name)]
    if superseded := detail.get("superseded_by"):
        told.append(f"superseded by {superseded}")
    if recovery.state in _STOPPED or recovery.state is RecoveryState.PAUSED:
        if step := detail.get("step"):
            told.append(f"at step {say_word(step)}")
        why = say_word(detail.get("why") or detail.get("code") or "")
        return f"{why}: {'; '.join(told)}" if why and told else why or "; ".join(told)
    expires = recovery.approval_expires_at
    if recovery.state is RecoveryState.APPROVED and expires is not None and expires <= now:
        return f"the approval expired at {say_moment(expires)}"
    if recovery.state is RecoveryState.RUNNING and recovery.requested:
        return f"asked to {recovery.requested}"
    if recovery.state is RecoveryState.RUNNING and not has_runner(recovery, now):
        return "no runner is at it: run it again, it goes on where it was"
    return ""
