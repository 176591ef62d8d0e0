"""Where a recovery stands: one headline, one sentence, the figures that matter."""

from __future__ import annotations

from typing import Any

from backlog.errors import PlanStale
from backlog.ledger.steps import has_stopped_consumers
from backlog.numbers import format_duration
from backlog.values import Recovery, RecoveryState
from replay.recovery.workspace import Workspace
from replay.report.timeline import describe_detail
from replay.telling.account import Account, RecoveryRecord
from replay.telling.documents import list_next_commands

S = RecoveryState


def describe_standing(
    workspace: Workspace, record: RecoveryRecord, account: Account
) -> dict[str, Any]:
    """Headline, sentence, and what an operator would type next."""
    return {
        "headline": _describe_headline(record.recovery, account),
        "sentence": _describe_state(record, account),
        "next": _list_next(workspace, record.recovery),
        "good": record.recovery.state is S.VERIFIED,
    }


def describe_figures(record: RecoveryRecord, account: Account) -> list[dict[str, str]]:
    """A few numbers for the top of the page."""
    figures = list(account.figures)
    begun = record.find_first("running")
    if begun is not None:
        end = record.ended_at or record.events[-1].at
        took = format_duration((end - begun.at).total_seconds())
        figures.append(("took" if record.ended_at else "so far", took))
    return [{"told": told, "value": value} for told, value in figures]


_ASIDE = {
    S.RUNNING: "under way",
    S.PAUSED: "paused",
    S.FAILED: "failed",
    S.REJECTED: "rejected",
    S.CANCELLED: "cancelled",
}


def _describe_headline(recovery: Recovery, account: Account) -> str:
    if recovery.state is S.VERIFIED:
        return account.achieved
    if aside := _ASIDE.get(recovery.state):
        return f"The recovery {account.aim}: {aside}"
    return f"A plan {account.aim}" + (", approved" if recovery.state is S.APPROVED else "")


def _describe_state(record: RecoveryRecord, account: Account) -> str:
    recovery = record.recovery
    last = record.find_last(str(recovery.state))
    why = describe_detail(last) if last else ""
    match recovery.state:
        case S.VERIFIED:
            return account.verified
        case S.PLANNED:
            return "The plan waits for an approval. Nothing was changed."
        case S.APPROVED:
            return "The plan is approved and was not run. Nothing was changed."
        case S.RUNNING:
            asked = f"; {recovery.requested} was asked for" if recovery.requested else ""
            return f"It is being carried out{asked}. This report is not its last."
        case S.PAUSED:
            told = f"It stopped and can go on: {why}." if why else "It stopped and can go on."
            return told + _describe_stopped(record)
        case S.FAILED:
            stale = recovery.detail.get("code") == PlanStale.code
            told = "It failed" if stale else "It failed, and can be run again"
            told += f": {why}." if why else "."
            return told + _describe_stopped(record)
        case S.REJECTED:
            superseded = recovery.detail.get("superseded_by")
            if superseded:
                return f"Nobody approved the plan before {superseded} took its place."
            return f"The plan was rejected: {why}." if why else "The plan was rejected."
        case S.CANCELLED:
            return account.cancelled


def _describe_stopped(record: RecoveryRecord) -> str:
    """Whether people's consumers stand still meanwhile."""
    if not has_stopped_consumers(record.steps):
        return ""
    return " The group's own consumers are stopped until it goes on, or is cancelled."


def _list_next(workspace: Workspace, recovery: Recovery) -> list[str]:
    commands = list_next_commands(workspace, recovery)
    if recovery.state in (S.REJECTED, S.CANCELLED):
        gone = recovery.detail.get("superseded_by")
        if gone:
            return [f"backlogctl show {gone}"]
        return [f"backlogctl plan {recovery.kind} {recovery.stream}"]
    if recovery.state is S.PLANNED and not commands:
        # Its warnings say why it may not run.
        return [f"backlogctl reject {recovery.id} --reason TEXT"]
    return commands
