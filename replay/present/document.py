"""What is known of one recovery, read once: `--json` prints it, terminal and page render it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from backlogctl.errors import Refused
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import list_next_commands
from backlogctl.replay.engine.plan import Plan, mask_values
from backlogctl.replay.engine.values import RecoveryRecord, Telling, Verification
from backlogctl.replay.present.progress import (
    Share,
    describe_progress,
    find_finished_starts,
    find_share,
    format_detail,
    name_line,
)
from backlogctl.replay.present.status import (
    describe_event,
    describe_recovery,
    describe_recovery_plan,
    find_status,
    preview_plan,
)
from backlogctl.values import LedgerEvent, Recovery, RecoveryState

# The text of an exception may hold what a message holds.
_BUG = "an error of the program: `backlogctl show` has its text"


@dataclass(frozen=True, slots=True)
class EventLine:
    """A line of the record, for people."""

    at: datetime
    actor: str
    action: str
    detail: str


@dataclass(frozen=True, slots=True)
class PlanView:
    """The plan of a recovery, for every renderer.

    Attributes:
        plan: with the settings that apply now; None where this program cannot read it.
        telling: the same for people.
        refusal: why it cannot be read; None where it can.
    """

    recovery: Recovery
    plan: Plan | None = None
    telling: Telling | None = None
    refusal: Refused | None = None

    def require(self) -> tuple[Plan, Telling]:
        """Both.

        Raises:
            Refused: this program does not know its kind, or cannot read it.
        """
        if self.plan is None or self.telling is None:
            raise self.refusal or Refused("it has no plan", subject=self.recovery.id)
        return self.plan, self.telling


@dataclass(frozen=True, slots=True)
class RecoveryDocument:
    """One recovery.

    Attributes:
        record: what the ledger has of its work.
        summary: the fields that `plan` and `recoveries` print, too.
        progress: steps, burn-down, messages put back; with the one rate of each.
        standing: who reads, who is stopped, what is where; None where nothing of it is left.
        next_commands: what an operator would type next.
        verification: None where nothing was verified yet.
    """

    record: RecoveryRecord
    summary: dict[str, Any]
    planned: PlanView
    progress: dict[str, Any]
    standing: dict[str, Any] | None
    next_commands: tuple[str, ...]
    verification: Verification | None
    gap_ids: tuple[str, ...]

    @property
    def recovery(self) -> Recovery:
        return self.record.recovery

    @property
    def events(self) -> tuple[LedgerEvent, ...]:
        """The record, oldest line first."""
        return self.record.events

    @property
    def share(self) -> Share | None:
        """How much is done; None where nothing can be counted yet."""
        return find_share(self.recovery.state, self.progress)

    def to_json(self) -> dict[str, Any]:
        """Fields are added, and none renamed."""
        return {
            **self.summary,
            "standing": self.standing,
            "progress": self.progress,
            "events": [describe_event(event) for event in self.events],
            "events_intact": self.record.problem is None,
            "next_commands": list(self.next_commands),
        }


def read_plan(workspace: Workspace, recovery: Recovery, previews: bool = False) -> PlanView:
    """Reads the plan; with `previews` a few messages of it, for the operator's terminal."""
    try:
        describe = preview_plan if previews else describe_recovery_plan
        telling = describe(workspace, recovery)
        return PlanView(recovery, workspace.plan_now(recovery), telling)
    except Refused as refused:
        return PlanView(recovery, refusal=refused)


def read_document(
    workspace: Workspace, recovery: Recovery, *, asks: bool = True, previews: bool = False
) -> RecoveryDocument:
    """Reads it.

    Args:
        asks: the brokers, how the recovery stands.
        previews: a few messages of the plan, for the operator's terminal.

    Raises:
        LedgerError.
    """
    record = read_record(workspace, recovery)
    planned, standing, verification = read_plan(workspace, recovery, previews), None, None
    try:
        standing = find_status(workspace, recovery, ask=asks)
        account = workspace.kind_of(recovery).account(workspace.plan_of(recovery), record)
        verification = account.verification
    except Refused as refused:
        planned = replace(planned, refusal=planned.refusal or refused)
    return RecoveryDocument(
        record=record,
        summary=describe_recovery(workspace, recovery),
        planned=planned,
        progress=tell_progress(record),
        standing=mask_values(workspace.config.mask_secrets, standing),
        next_commands=tuple(
            standing["next_commands"] if standing else list_next_commands(workspace, recovery)
        ),
        verification=None if verification and verification.result == "pending" else verification,
        gap_ids=workspace.ledger.recoveries.gap_ids(recovery.id),
    )


def read_record(workspace: Workspace, recovery: Recovery) -> RecoveryRecord:
    """Its events, steps and chunks, and what was left to drain."""
    ledger = workspace.ledger
    return RecoveryRecord(
        recovery=recovery,
        now=ledger.now(),
        events=ledger.events.list(recovery.id),
        steps=ledger.steps.list(recovery.id),
        chunks=ledger.chunks.list(recovery.id),
        burndown=ledger.burndown.list(recovery.id),
        problem=ledger.events.find_break(recovery.id),
    )


def tell_progress(record: RecoveryRecord) -> dict[str, Any]:
    """How far it is now."""
    live = record.recovery.state is RecoveryState.RUNNING
    return describe_progress(
        record.steps, record.burndown, record.now, chunks=record.chunks, live=live
    )


def list_event_lines(
    events: Iterable[LedgerEvent], *, hides_bugs: bool = False
) -> tuple[EventLine, ...]:
    """Oldest first; a start whose step was completed says nothing more.

    Args:
        hides_bugs: the text of an exception that nobody foresaw is left out.
    """
    lines = tuple(events)
    finished = find_finished_starts([(event.action, event.detail) for event in lines])
    rows = []
    for number, event in enumerate(lines):
        if number not in finished:
            shown = hide_bug(event.detail) if hides_bugs else event.detail
            action, detail = name_line(event.action, shown)
            rows.append(EventLine(event.at, event.actor, action, format_detail(detail)))
    return tuple(rows)


def hide_bug(detail: Mapping[str, Any]) -> Mapping[str, Any]:
    """A detail without the text of an exception that nobody foresaw."""
    if detail.get("code") != "bug":
        return detail
    return {"message": _BUG, **({"step": detail["step"]} if "step" in detail else {})}
