"""Where a recovery stands: one headline, one sentence, the figures that matter."""

from __future__ import annotations

from typing import Any

from backlog.errors import PlanStale
from backlog.numbers import format_duration, format_plural
from backlog.values import RecoveryState
from replay.report.material import Material
from replay.report.timeline import tell_detail
from replay.views import list_next_commands

S = RecoveryState


def describe_standing(material: Material) -> dict[str, Any]:
    """Headline, sentence, and what an operator would type next."""
    recovery = material.recovery
    return {
        "headline": _tell_headline(material),
        "sentence": _tell_state(material),
        "next": _list_next(material),
        "good": recovery.state is S.VERIFIED,
    }


def describe_figures(material: Material) -> list[dict[str, str]]:
    """A few numbers for the top of the page."""
    own = _figures_of_expansion if material.is_expansion else _figures_of_rebuild
    figures = own(material)
    begun = material.find_first("running")
    if begun is not None:
        end = material.ended_at or material.events[-1].at
        took = format_duration((end - begun.at).total_seconds())
        figures.append(("took" if material.ended_at else "so far", took))
    return [{"told": told, "value": value} for told, value in figures]


def _figures_of_rebuild(material: Material) -> list[tuple[str, str]]:
    recovery = material.recovery
    counts = recovery.plan["outcome"]["counts"]
    read = material.find_last("read back")
    matched = read.detail.get("matched") if read else None
    return [
        ("lost at most", f"{counts['expected']:,}"),
        ("rebuilt", f"{counts['rebuilt']:,}"),
        ("put back", f"{recovery.injected:,}"),
        *([("read back as staged", f"{matched:,}")] if matched is not None else []),
    ]


def _figures_of_expansion(material: Material) -> list[tuple[str, str]]:
    plan = material.recovery.plan
    figures = [("unread when planned", f"{plan['lag']:,}")]
    if material.burndown:
        figures.append(("handled", f"{material.burndown[-1].handled:,}"))
    figures.append(("consumers", f"{plan['replicas']:,} → {plan['consumers']:,}"))
    counts = material.recovery.detail.get("counts") or {}
    if rate := counts.get("drained_per_second"):
        figures.append(("drained", f"{rate:,.0f}/s"))
    return figures


_ASIDE = {
    S.RUNNING: "under way",
    S.PAUSED: "paused",
    S.FAILED: "failed",
    S.REJECTED: "rejected",
    S.CANCELLED: "cancelled",
}


def _tell_headline(material: Material) -> str:
    recovery = material.recovery
    if recovery.state is S.VERIFIED:
        return _tell_success(material)
    if material.is_expansion:
        many = format_plural(recovery.plan["lag"], "unread message")
        told = f"to drain {many} of topic {recovery.topic}"
    else:
        many = format_plural(recovery.plan["outcome"]["counts"]["rebuilt"], "lost message")
        told = f"to put {many} of topic {recovery.topic} back"
    if aside := _ASIDE.get(recovery.state):
        return f"The recovery {told}: {aside}"
    return f"A plan {told}" + (", approved" if recovery.state is S.APPROVED else "")


def _tell_success(material: Material) -> str:
    recovery = material.recovery
    if not material.is_expansion:
        done = format_plural(recovery.injected, "lost message")
        return f"{done} of topic {recovery.topic} put back, each once"
    relayed = (recovery.detail.get("counts") or {}).get("relayed", recovery.plan["lag"])
    many = format_plural(relayed, "unread message")
    return f"{many} of topic {recovery.topic} drained, and the layout restored"


def _tell_state(material: Material) -> str:
    recovery = material.recovery
    last = material.find_last(str(recovery.state))
    why = tell_detail(last) if last else ""
    match recovery.state:
        case S.VERIFIED if material.is_expansion:
            return (
                f"Everything that group {recovery.group} had not read was handled with "
                f"{recovery.plan['consumers']:,} consumers instead of "
                f"{recovery.plan['replicas']:,}. What was relayed is what was written and handled; "
                "the group's own consumers are back."
            )
        case S.VERIFIED:
            return (
                f"They are at the ends of their partitions for group {recovery.group}. All of "
                "them were read back: once each, with the bytes that were approved."
            )
        case S.PLANNED:
            return "The plan waits for an approval. Nothing was changed."
        case S.APPROVED:
            return "The plan is approved and was not run. Nothing was changed."
        case S.RUNNING:
            asked = f"; {recovery.requested} was asked for" if recovery.requested else ""
            return f"It is being carried out{asked}. This report is not its last."
        case S.PAUSED:
            told = f"It stopped and can go on: {why}." if why else "It stopped and can go on."
            return told + _tell_stopped(material)
        case S.FAILED:
            stale = recovery.detail.get("code") == PlanStale.code
            told = "It failed" if stale else "It failed, and can be run again"
            told += f": {why}." if why else "."
            return told + _tell_stopped(material)
        case S.REJECTED:
            superseded = recovery.detail.get("superseded_by")
            if superseded:
                return f"Nobody approved the plan before {superseded} took its place."
            return f"The plan was rejected: {why}." if why else "The plan was rejected."
        case S.CANCELLED if material.is_expansion:
            return (
                "It was cancelled: what had been relayed was handled, and the layout restored."
                if material.steps
                else "It was cancelled before it began. Nothing was changed."
            )
        case S.CANCELLED:
            put_back = format_plural(recovery.injected, "message")
            return (
                f"It was cancelled. {put_back} put back before that stay in the topic; the gaps "
                "are open again, and a new plan takes off what was put back."
                if recovery.injected
                else "It was cancelled before anything was put back. The gaps are open again."
            )


def _tell_stopped(material: Material) -> str:
    """Whether people's consumers stand still meanwhile."""
    steps = {step.step: step for step in material.steps}
    restored = steps.get("restore")
    if "stop_consumers" not in steps or (restored is not None and restored.is_complete):
        return ""
    return " The group's own consumers are stopped until it goes on, or is cancelled."


def _list_next(material: Material) -> list[str]:
    recovery = material.recovery
    commands = list_next_commands(recovery)
    if recovery.state in (S.REJECTED, S.CANCELLED):
        gone = recovery.detail.get("superseded_by")
        if gone:
            return [f"backlogctl show {gone}"]
        return [f"backlogctl plan {recovery.kind} {recovery.stream}"]
    if recovery.state is S.PLANNED and not commands:
        # Something stands against this plan: it is said among its warnings.
        return [f"backlogctl reject {recovery.id} --reason TEXT"]
    return commands
