"""The plan, and who planned and approved it."""

from __future__ import annotations

from typing import Any

from backlog.clock import format_time
from replay.recovery.approval import AUTOMATIC
from replay.recovery.plan import Plan
from replay.telling.account import RecoveryRecord
from replay.telling.value import Telling


def describe_people(plan: Plan, record: RecoveryRecord) -> dict[str, Any]:
    """Who planned and who approved, by account and by name, when, and which hash."""
    recovery = record.recovery
    approved = record.find_last("approved")
    expires = recovery.approval_expires_at
    return {
        "planned_by": str(plan.planned_by),
        "planned_at": format_time(plan.planned_at),
        "plan_hash": recovery.plan_hash,
        "approval": plan.approval,
        "approved_by": recovery.approved_by,
        "approved_identity": recovery.approved_identity,
        "approved_at": None if approved is None else format_time(approved.at),
        "approved_hash": recovery.approved_hash,
        "expires_at": None if expires is None else format_time(expires),
        "automatic": recovery.approved_by == AUTOMATIC,
    }


def describe_plan(plan: Plan, told: Telling) -> dict[str, Any]:
    """What was planned: its verdict, counts, partitions, terms and warnings; no names of rows."""
    terms = [(fact.name, fact.text) for fact in told.public_facts]
    terms += [(action.verb, said) for action in told.actions for said in action.sentences]
    return {
        "kind": plan.kind,
        "verdict": told.verdict,
        "verdict_told": told.verdict_words,
        "reasons": list(told.reasons),
        "counts": [
            {
                "name": count.name,
                "value": count.value,
                "told": count.words,
                "sign": count.sign,
                "strong": count.strong,
            }
            for count in told.counts
        ],
        "terms": [{"name": name, "value": value} for name, value in terms],
        "partitions": list(told.document.get("partitions", ())),
        "other_groups": told.say_others("none reads the topic"),
        "allowed": list(plan.allowed),
        "warnings": list(told.warnings),
    }
