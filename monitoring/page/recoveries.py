"""One recovery: its plan, who answers for it, how far it is, and its record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backlog.ledger import Ledger, StepRecord
from backlog.values import Event, Recovery, RecoveryState
from monitoring.details import tell_detail
from monitoring.page.drawings import Drawing
from monitoring.page.plans import Facts, PlanWords, tell_plan
from monitoring.page.progress import Progress, draw_burndown, draw_injection, measure_progress
from monitoring.page.statuses import EXPAND
from monitoring.page.steps import read_steps
from monitoring.page.words import say_moment, say_word

MOST_EVENTS = 200
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
class StepRow:
    """A step and how long it took, or is at it."""

    name: str
    state: str
    began: datetime
    seconds: float | None
    attempts: int


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
    facts: Facts


@dataclass(frozen=True, slots=True)
class RecoveryPage:
    """All that the page of a recovery shows.

    Attributes:
        trouble: why it failed, is paused or was closed; "" where nothing is to be said.
        broken: what is wrong with the record; "" for a whole one.
    """

    recovery: Recovery
    plan: PlanWords
    planner: str
    commands: tuple[str, ...]
    trouble: str
    alive: bool
    progress: Progress | None
    steps: tuple[StepRow, ...]
    drawing: Drawing | None
    verification: Verification | None
    gap_ids: tuple[str, ...]
    events: tuple[EventRow, ...]
    more_events: int
    broken: str


def read_recovery(
    ledger: Ledger, recovery: Recovery, commands: Iterable[str], now: datetime
) -> RecoveryPage:
    """Reads it.

    Raises:
        LedgerError.
    """
    events = ledger.events.list(recovery.id)
    steps = ledger.steps.list(recovery.id) or read_steps(events)
    if recovery.kind == EXPAND:
        burndown = ledger.burndown.list(recovery.id)
        drawing = draw_burndown(burndown, steps)
        progress = measure_progress(recovery, burndown=burndown)
    else:
        chunks = ledger.chunks.list(recovery.id)
        drawing = draw_injection(chunks, steps)
        progress = measure_progress(recovery, chunks=chunks, now=now)
    rows = list_events(events)
    return RecoveryPage(
        recovery=recovery,
        plan=tell_plan(recovery),
        planner=tell_planner(recovery.plan.get("planned_by")),
        commands=tuple(commands),
        trouble=tell_trouble(recovery, now),
        alive=recovery.lease_until is not None and recovery.lease_until > now,
        progress=progress,
        steps=list_steps(recovery, steps, now),
        drawing=drawing,
        verification=find_verification(steps, events),
        gap_ids=ledger.recoveries.gap_ids(recovery.id),
        events=rows[-MOST_EVENTS:],
        more_events=max(0, len(rows) - MOST_EVENTS),
        broken=ledger.events.find_break(recovery.id) or "",
    )


def tell_planner(who: Any) -> str:
    """`os:ada@host`; a dash where the plan does not say."""
    if not isinstance(who, Mapping):
        return "—"
    return f"{who.get('kind', '')}:{who.get('user', '')}@{who.get('host', '')}"


def tell_trouble(recovery: Recovery, now: datetime) -> str:
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
    lease = recovery.lease_until
    if recovery.state is RecoveryState.RUNNING and (lease is None or lease <= now):
        return "no runner is at it: run it again, it goes on where it was"
    return ""


def list_steps(
    recovery: Recovery, steps: Iterable[StepRecord], now: datetime
) -> tuple[StepRow, ...]:
    """In the order they began; time passes only while it runs."""
    running = recovery.state is RecoveryState.RUNNING
    rows = []
    for step in steps:
        state = "done" if step.completed_at else ("running" if running else "stopped")
        if step.rolled_back_at is not None:
            state = "rolled back"
        end = step.rolled_back_at or step.completed_at or (now if running else None)
        seconds = None if end is None else max(0.0, (end - step.first_started_at).total_seconds())
        rows.append(
            StepRow(say_word(step.step), state, step.first_started_at, seconds, step.attempts)
        )
    return tuple(rows)


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
    done = {event.action for event in lines}
    rows = []
    for event in lines:
        step, _, word = event.action.rpartition(" ")
        if word == "started" and f"{step} completed" in done:
            continue
        told = tell_detail(hide_bug(event.detail), _tell_time)
        rows.append(EventRow(event.at, event.actor, event.action, told))
    return tuple(rows)


def hide_bug(detail: Mapping[str, Any]) -> Mapping[str, Any]:
    """A detail without the text of an exception that nobody foresaw."""
    if detail.get("code") != "bug":
        return detail
    return {"message": _BUG, **({"step": detail["step"]} if "step" in detail else {})}


def _tell_time(text: str) -> str:
    try:
        return say_moment(datetime.fromisoformat(text))
    except ValueError:
        return text
