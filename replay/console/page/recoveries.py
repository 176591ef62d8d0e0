"""One recovery: its plan, who approved it, how far it is, and its record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from backlog.errors import Refused
from backlog.ledger import BurndownSample, ChunkRecord, StepRecord
from backlog.values import Event, Recovery, RecoveryState
from monitoring.details import format_detail
from replay.console.page.statuses import has_runner
from replay.console.page.words import say_moment, say_word
from replay.recovery.workspace import Workspace
from replay.telling.documents import tell_plan
from replay.telling.events import find_finished_starts, name_line
from replay.telling.figures import (
    Figure,
    describe_burndown,
    describe_disks,
    describe_injection,
    describe_lag,
    list_lag_figures,
    list_work_figures,
)
from replay.telling.progress import Share, describe_progress, find_share
from replay.telling.standing import find_standing, list_lines
from replay.telling.value import Telling

MOST_EVENTS = 200
_DISK_LOOK_BACK = timedelta(hours=1)
# The text of an exception may hold what a message holds.
_BUG = "an error of the program: `backlogctl show` has its text"
_STOPPED = (RecoveryState.REJECTED, RecoveryState.CANCELLED, RecoveryState.FAILED)
_VERIFIED: tuple[tuple[str, str], ...] = (
    ("staged", "staged"),
    ("found", "found in the topic"),
    ("matched", "matched, each once, byte for byte"),
    ("missing", "missing"),
    ("doubled", "doubled"),
    ("different", "different"),
    ("unexpected", "unexpected"),
    ("relayed", "relayed"),
    ("written", "written and handled"),
)


@dataclass(frozen=True, slots=True)
class EventRow:
    """A line of the record; `told` still has to be masked."""

    at: datetime
    actor: str
    action: str
    told: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What reading back found; `good` is None where that cannot be told."""

    good: bool | None
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RecoveryPage:
    """All that the page of a recovery shows.

    Attributes:
        plan: None where this program cannot read it; `unread` says why.
        standing: how things stand where it does not go on, as (name, sentence).
        trouble: why it failed, is paused or was closed; "" where nothing is to be said.
        broken: what is wrong with the record; "" for a whole one.
    """

    recovery: Recovery
    plan: Telling | None
    unread: str
    planner: str
    commands: tuple[str, ...]
    trouble: str
    alive: bool
    standing: tuple[tuple[str, str], ...]
    progress: Share | None
    steps: Sequence[Mapping[str, Any]]
    figures: tuple[Figure, ...]
    verification: Verification | None
    gap_ids: tuple[str, ...]
    events: tuple[EventRow, ...]
    more_events: int
    broken: str


def read_recovery(
    workspace: Workspace, recovery: Recovery, commands: Iterable[str], now: datetime
) -> RecoveryPage:
    """Reads it.

    Raises:
        LedgerError.
    """
    ledger, plan, unread, planner = workspace.ledger, None, "", "—"
    try:
        plan = tell_plan(workspace, recovery)
        planner = str(workspace.plan_of(recovery).planned_by)
    except Refused as refused:
        unread = f"{refused.message}: {refused.hint}"
    events, steps = ledger.events.list(recovery.id), ledger.steps.list(recovery.id)
    burndown, chunks = ledger.burndown.list(recovery.id), ledger.chunks.list(recovery.id)
    rows = list_events(events)
    live = recovery.state is RecoveryState.RUNNING
    progress = describe_progress(steps, burndown, now, chunks=chunks, live=live)
    return RecoveryPage(
        recovery=recovery,
        plan=plan,
        unread=unread,
        planner=planner,
        commands=tuple(commands),
        trouble=describe_trouble(recovery, now),
        alive=has_runner(recovery, now),
        standing=list_standing(workspace, recovery),
        progress=find_share(recovery, progress),
        steps=progress["steps"],
        figures=tuple(_list_figures(workspace, recovery, burndown, chunks, steps, progress)),
        verification=find_verification(steps, events),
        gap_ids=ledger.recoveries.gap_ids(recovery.id),
        events=rows[-MOST_EVENTS:],
        more_events=max(0, len(rows) - MOST_EVENTS),
        broken=ledger.events.find_break(recovery.id) or "",
    )


def _list_figures(
    workspace: Workspace,
    recovery: Recovery,
    burndown: Sequence[BurndownSample],
    chunks: Sequence[ChunkRecord],
    steps: Sequence[StepRecord],
    progress: Mapping[str, Any],
) -> Iterator[Figure]:
    """How the work went over time; of one that moves what fills the disks, the disks too."""
    document: dict[str, Any] = {
        "topic": recovery.topic,
        "group": recovery.group,
        "burndown": describe_burndown(burndown),
        "injection": describe_injection(chunks, steps),
        "steps": progress["steps"],
        "disks": (),
        "lag": (),
        "timeline": {"lines": ()},
    }
    if _opens_gaps(workspace, recovery):
        ledger, since = workspace.ledger, recovery.created_at - _DISK_LOOK_BACK
        readings = ledger.disks.history(recovery.cluster, since)
        document["disks"] = describe_disks(readings, recovery.topic)
        samples = ledger.samples.history(recovery.stream, since)
        document["lag"] = describe_lag(samples, "read_committed")
    yield from list_work_figures(document)
    yield from list_lag_figures(document)


def _opens_gaps(workspace: Workspace, recovery: Recovery) -> bool:
    known = recovery.kind in workspace.kinds.names()
    return known and workspace.kind_of(recovery).traits.opens_gaps


def list_standing(workspace: Workspace, recovery: Recovery) -> tuple[tuple[str, str], ...]:
    """How a recovery stands that does not go on; without asking the brokers at each visit."""
    try:
        standing = find_standing(workspace, recovery, ask=False)
    except Refused:
        return ()
    if standing is None or (recovery.state is RecoveryState.RUNNING and standing["runner"]):
        return ()
    at = say_moment(datetime.fromisoformat(standing["at"]))
    return (*list_lines(standing), ("looked at", at))


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


def find_verification(steps: Iterable[StepRecord], events: Iterable[Event]) -> Verification | None:
    """What was read back: of a rebuild it is on the record, of an expansion at its step."""
    details = [event.detail for event in events if event.action == "read back"]
    details += [s.detail for s in steps if s.step == "verify" and s.is_complete and s.detail]
    found = next((d for d in reversed(details) if d.keys() & dict(_VERIFIED).keys()), None)
    if found is None:
        return None
    numbers = {name: found[name] for name, _ in _VERIFIED if isinstance(found.get(name), int)}
    good = found.get("exact")
    if good is None and {"relayed", "written"} <= numbers.keys():
        good = numbers["relayed"] == numbers["written"]
    facts = tuple((words, f"{numbers[name]:,}") for name, words in _VERIFIED if name in numbers)
    return Verification(good if isinstance(good, bool) else None, facts)


def list_events(events: Iterable[Event]) -> tuple[EventRow, ...]:
    """Oldest first; a start whose step was completed says nothing more."""
    lines = tuple(events)
    finished = find_finished_starts([(event.action, event.detail) for event in lines])
    rows = []
    for number, event in enumerate(lines):
        if number not in finished:
            action, detail = name_line(event.action, hide_bug(event.detail))
            told = format_detail(detail, _format_time)
            rows.append(EventRow(event.at, event.actor, action, told))
    return tuple(rows)


def hide_bug(detail: Mapping[str, Any]) -> Mapping[str, Any]:
    """A detail without the text of an exception that nobody foresaw."""
    if detail.get("code") != "bug":
        return detail
    return {"message": _BUG, **({"step": detail["step"]} if "step" in detail else {})}


def _format_time(text: str) -> str:
    try:
        return say_moment(datetime.fromisoformat(text))
    except ValueError:
        return text
