"""What came of an expansion: whether what was relayed, written and handled is one number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from backlog.numbers import format_plural
from backlog.values import GapState, RecoveryState
from replay.kinds.expand.outsiders import READ_BESIDE, REPEATED, SKIPPED
from replay.kinds.expand.plan import ExpandPlan
from replay.telling.account import Account, Checked, RecoveryRecord, Unexplained, Verification

UNVERIFIED = "cancelled without verification"
_OUTSIDE: Mapping[str, str] = {
    SKIPPED: "Somebody set the group's offsets past what was relayed: what lies between is a gap.",
    READ_BESIDE: "A reader of the group committed past what was relayed, so that was left to it.",
    REPEATED: "Somebody set the group's offsets back: what lies between was handled once more.",
}


def account_for_expansion(plan: ExpandPlan, record: RecoveryRecord) -> Account:
    """Of the plan, and of what the ledger has on its runs."""
    counts: Mapping[str, Any] = record.recovery.detail.get("counts") or {}
    verification = _describe_verification(plan, record)
    many = format_plural(counts.get("relayed", plan.lag), "unread message")
    rebuilds = ""
    if any(gap.state is GapState.OPEN for gap in record.gaps):
        rebuilds = (
            f" Draining does not bring these back: `backlogctl plan rebuild {plan.stream}` does."
        )
    return Account(
        aim=f"to drain {format_plural(plan.lag, 'unread message')} of topic {plan.topic}",
        achieved=f"{many} of topic {plan.topic} drained, and the layout restored",
        verified=f"Everything that group {plan.group} had not read was handled with "
        f"{plan.consumers:,} consumers instead of {plan.replicas:,}. What was relayed is what was "
        "written and handled; the group's own consumers are back.",
        cancelled="It was cancelled: what had been relayed was handled, and the layout restored."
        if record.steps
        else "It was cancelled before it began. Nothing was changed.",
        no_losses=f"Nothing of topic {plan.topic} is known to be lost.",
        after_losses=rebuilds,
        figures=tuple(_list_figures(plan, record, counts)),
        verification=verification,
        unexplained=_describe_rest(record, verification, counts),
    )


def _list_figures(
    plan: ExpandPlan, record: RecoveryRecord, counts: Mapping[str, Any]
) -> list[tuple[str, str]]:
    figures = [("unread when planned", f"{plan.lag:,}")]
    if record.burndown:
        figures.append(("handled", f"{record.burndown[-1].handled:,}"))
    figures.append(("consumers", f"{plan.replicas:,} → {plan.consumers:,}"))
    if rate := counts.get("drained_per_second"):
        figures.append(("drained", f"{rate:,.0f}/s"))
    return figures


def _describe_verification(plan: ExpandPlan, record: RecoveryRecord) -> Verification:
    step = record.find_step("verify")
    detail: Mapping[str, Any] = (
        step.detail if step and step.is_complete else record.recovery.detail.get("verified", {})
    )
    failure = record.recovery.detail if record.recovery.state is RecoveryState.FAILED else {}
    checks: tuple[Checked, ...] = ()
    result: Literal["passed", "failed", "pending"] = "pending"
    told = "Nothing was verified yet."
    if "relayed" in detail:
        result = "passed"
        told = (
            "The temporary topic was read to its end as a read_committed consumer sees it and "
            "held against what the relay counted, partition by partition; nothing in it was "
            "unread. Then the original group was watched until it moved, or had nothing left to "
            "read."
        )
        checks = (
            Checked("relayed, by the counters in the relay's own commits", detail["relayed"]),
            Checked("written, counted by reading the temporary topic", detail.get("written")),
        )
    elif failure.get("code") == "verification_failed" or record.find_last(UNVERIFIED):
        result, told = "failed", "The temporary topic is not what was relayed, and is kept."
    relayed: Mapping[str, int] = detail.get("partitions", {})
    return Verification(
        result=result,
        told=told,
        checks=checks,
        columns=("partition", "unread when planned", "relayed"),
        partitions=tuple(
            (row.partition, row.lag, relayed.get(str(row.partition))) for row in plan.partitions
        ),
    )


def _describe_rest(
    record: RecoveryRecord, verification: Verification, counts: Mapping[str, Any]
) -> Unexplained:
    reasons = [
        "What is relayed is not what was unread when planned: the group read on until it was "
        "stopped, and new messages came until the relay ended.",
        "Aborted messages are not relayed: no read_committed consumer would have read them.",
        "Handled more than once is allowed: where consumers stop and others go on, what was "
        "handled and not committed is handled again, as after any rebalance.",
    ]
    reasons += [_OUTSIDE[action] for action in _OUTSIDE if record.find_last(action)]
    if verification.result == "passed":
        return Unexplained(_compare(verification.checks, counts), reasons=tuple(reasons))
    if not record.burndown:
        return Unexplained("Nothing was relayed.")
    last = record.burndown[-1]
    told = (
        f"Not known yet. When last looked at, {format_plural(last.relayed, 'message')} were "
        f"relayed and {last.handled:,} handled; {last.source_lag:,} were left in the topic and "
        f"{last.temporary_lag:,} in the temporary topic."
    )
    return Unexplained(told, reasons=tuple(reasons))


def _compare(checks: Sequence[Checked], counts: Mapping[str, Any]) -> str:
    """Whether what was relayed, written and handled are one number."""
    found = {
        "relayed": checks[0].value,
        "written": checks[1].value,
        # Not the burn-down's: its last sample is a moment before the end.
        "handled": counts.get("handled"),
    }
    known = {name: value for name, value in found.items() if value is not None}
    if len(set(known.values())) == 1:
        total = format_plural(checks[0].value or 0, "message")
        return f"Nothing: {' = '.join(known)}, {total}."
    return f"Not the same: {', '.join(f'{value:,} {name}' for name, value in known.items())}."
