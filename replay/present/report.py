"""What was lost: the gaps, in figures and words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from backlogctl.clock import format_time
from backlogctl.errors import PlanStale
from backlogctl.formats import format_duration, format_moment, format_plural
from backlogctl.ledger.steps import has_stopped_consumers
from backlogctl.replay.engine.approval import AUTOMATIC
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import LOOKED_AHEAD, list_next_commands
from backlogctl.replay.engine.plan import Plan, mask_values
from backlogctl.replay.engine.values import Account, RecoveryRecord, Telling
from backlogctl.replay.present.document import tell_progress
from backlogctl.replay.present.figures import describe_course
from backlogctl.replay.present.status import describe_gap
from backlogctl.replay.present.timeline import collect_record, describe_detail, list_lines
from backlogctl.values import FINAL, Gap, Recovery, RecoveryState, to_document, to_plain

_CAUSES = {
    "expired": "retention deleted them unread",
    "skipped": "the group's commit jumped over them",
    "discarded": "an offload took them off the brokers",
    "producer_gap": "their producer numbered them, and they never reached the topic",
    "unprocessed": "they were committed, and the consumer's own table lacks them",
    "topic_recreated": "the topic was deleted and made anew",
    "commit_vanished": "the group's commit vanished",
    "never_committed": "the group never committed",
}
_CERTAINTIES = {
    "exact": "exact offsets",
    "bounded": "at most this range",
    "possible": "at most this range, perhaps nothing of it",
    "reported": "reported; its range is not known",
}


def describe_losses(record: RecoveryRecord, account: Account) -> dict[str, Any]:
    """The gaps of the recovery, and one sentence about them."""
    gaps = record.gaps
    return {
        "gaps": [_describe_gap(gap) for gap in gaps],
        "count": sum(gap.count or 0 for gap in gaps),
        "unknown": sum(gap.count is None for gap in gaps),
        "partitions": len({gap.partition for gap in gaps}),
        "sentence": _describe_all(record, account),
    }


def _describe_all(record: RecoveryRecord, account: Account) -> str:
    gaps, recovery = record.gaps, record.recovery
    if not gaps:
        return account.no_losses
    topic, group = f"topic {recovery.topic}", f"group {recovery.group}"
    sorts: dict[str, list[Gap]] = {}
    for gap in gaps:
        sorts.setdefault("archived" if gap.archive is not None else str(gap.cause), []).append(gap)
    archived = sorts.pop("archived", [])
    unsent, unhandled = sorts.pop("producer_gap", []), sorts.pop("unprocessed", [])
    lost = [gap for sort in sorts.values() for gap in sort]
    told = [
        f"At most {_count(some)} {what}, in {_place(some)}."
        for some, what in (
            (lost, f"of {topic} were lost to {group} unread"),
            (unsent, f"that their producer had numbered never reached {topic}"),
            (unhandled, f"of {topic} were committed by {group} and not handled"),
            (archived, f"of {topic} that {group} had not read are in an archive"),
        )
        if some
    ]
    if any(gap.count is None for gap in gaps):
        told.append("For some the range is not known.")
    return " ".join(told) + account.after_losses


def _count(gaps: Sequence[Gap]) -> str:
    return format_plural(sum(gap.count or 0 for gap in gaps), "message")


def _place(gaps: Sequence[Gap]) -> str:
    places = format_plural(len({gap.partition for gap in gaps}), "partition")
    return f"{format_plural(len(gaps), 'gap')} of {places}"


def _describe_gap(gap: Gap) -> dict[str, Any]:
    return {
        **describe_gap(gap),
        "cause_told": _CAUSES.get(str(gap.cause), str(gap.cause)),
        "certainty_told": _CERTAINTIES.get(str(gap.certainty), str(gap.certainty)),
    }


# The plan, and who planned and approved it.


def describe_people(plan: Plan, record: RecoveryRecord) -> dict[str, Any]:
    """Who planned and who approved, by account and by name, when, and which hash."""
    recovery = record.recovery
    approved = record.find_last("approved")
    return {
        "planned_by": str(plan.planned_by),
        **to_document(plan, "planned_at", "approval"),
        **to_document(recovery, "plan_hash", "approved_by", "approved_identity", "approved_hash"),
        "approved_at": to_plain(approved and approved.at),
        "expires_at": to_plain(recovery.approval_expires_at),
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
            {**to_document(one, "name", "value", "sign", "strong"), "told": one.words}
            for one in told.counts
        ],
        "terms": [{"name": name, "value": value} for name, value in terms],
        "partitions": list(told.document.get("partitions", ())),
        "other_groups": told.say_others("none reads the topic"),
        "allowed": list(plan.allowed),
        "warnings": list(told.warnings),
    }


# Where a recovery stands: one headline, one sentence, the figures that matter.

S = RecoveryState


def describe_standing(
    workspace: Workspace, record: RecoveryRecord, account: Account
) -> dict[str, Any]:
    """Headline, sentence, and what an operator would type next."""
    return {
        "headline": _describe_headline(record.recovery, account),
        "sentence": _describe_state(record, account),
        "next": list_next_commands(workspace, record.recovery),
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


# What retention takes next: a figure that grows old, so it has its time.

NOTHING_AHEAD = "no loss in sight"
LookAhead = Callable[[str, bool], str]
"""Of a stream, to which messages may be added: what is in sight now; "" where nothing is."""


def adds_messages(workspace: Workspace, recovery: Recovery) -> bool:
    """Whether it may still put some into its stream's topic."""
    return recovery.state not in FINAL and workspace.kind_of(recovery).traits.injects


def describe_ahead(
    workspace: Workspace, record: RecoveryRecord, look: LookAhead | None
) -> dict[str, Any]:
    """As it is seen now, or as it is on record of the state that the recovery is in."""
    recovery, now = record.recovery, record.now
    if look is not None:
        at, text = now, look(recovery.stream, adds_messages(workspace, recovery)) or NOTHING_AHEAD
    else:
        lines = (one for one in reversed(record.events) if one.action in (LOOKED_AHEAD, *S))
        last = next(lines, None)
        if last is None or last.action != LOOKED_AHEAD:
            told = "Not known: nobody has looked since it came to this state; "
            return {"at": None, "told": f"{told}`backlogctl report {recovery.id}` looks."}
        at, text = last.at, str(last.detail["message"])
    age = format_duration((now - at).total_seconds())
    seen = format_moment(at) if at == now else f"{format_moment(at)}, {age} before this report"
    return {"at": format_time(at), "told": f"As seen {seen}: {text}."}


# The document of a report: what `report --json` prints, and the page is drawn from.

# Messages are never in it: not their values, keys or headers, nor the keys of rows.
FORMAT = 1


def make_report(
    workspace: Workspace, recovery_id: str, look: LookAhead | None = None
) -> dict[str, Any]:
    """The report of a recovery in any state, from the ledger; secrets are masked.

    Args:
        look: asks the brokers what retention takes next; None tells what is on record of it.

    Raises:
        UsageError: there is no such recovery.
        Refused: another program, or another version of this one, planned it.
    """
    record = collect_record(workspace, recovery_id)
    document = describe_report(workspace, record, look)
    masked: dict[str, Any] = mask_values(workspace.config.mask_secrets, document)
    return masked


def describe_report(
    workspace: Workspace, record: RecoveryRecord, look: LookAhead | None = None
) -> dict[str, Any]:
    """The document, of what was read."""
    recovery = record.recovery
    kind = workspace.kind_of(recovery)
    plan = kind.read_plan(recovery)
    account, told = kind.account(plan, record), kind.tell(plan, recovery)
    isolation = str(plan.configuration.get("isolation", "read_committed"))
    lines, left_out = list_lines(record, isolation)
    return {
        "format": FORMAT,
        **to_document(recovery, "id", "kind", "stream", "cluster", "topic", "group", "state"),
        "verdict": told.verdict,
        "made_at": format_time(record.now),
        "made_by": f"backlogctl {_find_version()}",
        "from": format_time(lines[0].at if lines else recovery.created_at),
        "to": format_time(record.ended_at or record.now),
        "ended": record.ended_at is not None,
        "standing": describe_standing(workspace, record, account),
        "figures": describe_figures(record, account),
        "losses": describe_losses(record, account),
        "timeline": {"lines": to_plain(lines), "left_out": left_out},
        "plan": describe_plan(plan, told),
        "people": describe_people(plan, record),
        "steps": _describe_steps(record),
        **describe_course(record, isolation),
        "verification": _describe_verification(account),
        "unexplained": _describe_rest(account),
        "ahead": describe_ahead(workspace, record, look),
        "record": {
            "intact": record.problem is None,
            "problem": record.problem,
            "events": len(record.events),
            "head": record.events[-1].hash if record.events else None,
            "plan_holds": record.plan_holds,
        },
    }


def _describe_verification(account: Account) -> dict[str, Any]:
    found = account.verification
    return {
        **to_document(found, "result", "told", "columns", "partitions"),
        "checks": [{"told": check.words, "value": check.value} for check in found.checks],
    }


def _describe_rest(account: Account) -> dict[str, Any]:
    rest = account.unexplained
    items = [{"name": name, "value": value, "told": words} for name, value, words in rest.items]
    return {"told": rest.told, "items": items, "reasons": list(rest.reasons)}


def _describe_steps(record: RecoveryRecord) -> list[dict[str, Any]]:
    steps = tell_progress(record)["steps"]
    # A step's detail may be long; the report shows it where it belongs.
    return [{name: value for name, value in step.items() if name != "detail"} for step in steps]


def _find_version() -> str:
    try:
        return version("backlogctl")
    except PackageNotFoundError:
        return "(not installed)"
