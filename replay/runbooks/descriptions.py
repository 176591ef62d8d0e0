"""What a night audits: each stream as its configuration says, and what is told of each audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from backlogctl.config import Config, Stream
from backlogctl.errors import Refused
from backlogctl.formats import format_plural
from backlogctl.replay.audits import AUDITS
from backlogctl.replay.audits.audit import AuditResult
from backlogctl.replay.audits.carrying import run_audit
from backlogctl.replay.engine.approval import NOBODY
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.observe.retention import say_held
from backlogctl.replay.present import markdown
from backlogctl.replay.present.document import read_plan
from backlogctl.replay.present.status import describe_recovery_plan
from backlogctl.values import Recovery, RecoveryState, to_document

_TELLING = frozenset({"lost", "suspect"})


@dataclass(frozen=True, slots=True)
class NightAudit:
    """One audit of one stream."""

    stream: str
    audit: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def list_night_audits(config: Config, streams: Iterable[str] | None) -> tuple[NightAudit, ...]:
    """By stream, in the order of its `audits`; of those streams, or of all.

    Raises:
        ConfigurationError, UsageError: there is no such stream.
    """
    names = dict.fromkeys(streams or config.streams)
    chosen = [config.stream(name) for name in names]
    return tuple(NightAudit(stream.name, audit) for stream in chosen for audit in stream.audits)


def carry_out_audit(
    workspace: Workspace, stream: Stream, name: str, say: Callable[[str], None]
) -> AuditResult:
    """All of the topic, on record.

    Raises:
        BacklogError: something that it needs could not be read.
    """
    audit = next(one for one in AUDITS if one.name == name)
    return run_audit(audit, workspace, stream, audit.options_model(), say)


def is_alarming(verdict: str) -> bool:
    """Of an audit, whether messages are missing, or may be: worth an event."""
    return verdict in _TELLING


def describe_audit(found: AuditResult) -> dict[str, Any]:
    """What an event and the task's result say; nothing of any message."""
    return {
        **to_document(found, "stream", "audit", "verdict", "missing"),
        "sentence": _sum_up(found),
        "findings": [{"check": one.check, "level": str(one.level)} for one in found.findings],
        "gaps": [gap.id for gap in found.recorded],
        "next": next(iter(found.next_commands), f"backlogctl audit {found.audit} {found.stream}"),
    }


def _sum_up(found: AuditResult) -> str:
    """The worst finding, and how much there is beside it."""
    if not found.findings:
        return "nothing was found"
    first, *others = found.findings
    more = sum(one.level is first.level for one in others)
    told = first.found + (f"; and {format_plural(more, 'more finding')}" if more else "")
    is_all = found.missing <= (first.count or 0)
    return told if is_all else f"{told}; {format_plural(found.missing, 'message')} lost in all"


# What an approver is asked, and what a run's last task says.


def describe_subject(workspace: Workspace, recovery: Recovery) -> str:
    """One line: what would be done, to what."""
    return describe_recovery_plan(workspace, recovery).request


def describe_body(
    workspace: Workspace, recovery: Recovery, *, page: str = "", ahead: str = ""
) -> str:
    """The plan as Markdown.

    Args:
        page: address of the recovery's page; else that of `watch.url`.
        ahead: what retention takes next, "" for nothing.
    """
    view = read_plan(workspace, recovery)
    return markdown.describe_body(view, page or _find_page(workspace, recovery), ahead)


def _find_page(workspace: Workspace, recovery: Recovery) -> str:
    url = workspace.config.watch.url
    return f"{url.rstrip('/')}/recoveries/{quote(recovery.id)}" if url else ""


@dataclass(frozen=True, slots=True)
class End:
    """How it ended for a run, in one sentence; not `is_done`: what the run was for was not done,
    and nobody decided that."""

    sentence: str
    is_done: bool


def describe_end(workspace: Workspace, recovery: Recovery) -> End:
    """How a recovery stands when its run is over, and what stays raised of its retention."""
    one, detail = recovery.id, recovery.detail
    match recovery.state:
        case RecoveryState.VERIFIED:
            return End(f"{one} is verified{say_held(workspace, recovery)}", is_done=True)
        case RecoveryState.CANCELLED:
            held = say_held(workspace, recovery)
            told = f"{one} was cancelled; what was stopped is started again{held}"
            return End(told, is_done=True)
        case RecoveryState.REJECTED if newer := detail.get("superseded_by"):
            return End(f"{one} was superseded: {newer} took its place", is_done=False)
        case RecoveryState.REJECTED if detail.get("by", NOBODY) == NOBODY:
            why = detail.get("reason", "rejected")
            return End(f"{one}: {why}; nothing was changed, trigger a new run", is_done=False)
        case RecoveryState.REJECTED:
            return End(f"{one} was rejected by {detail['by']}; nothing was changed", is_done=True)
        case RecoveryState.PLANNED:
            return End(f"{one} waits for an approval: `backlogctl approve {one}`", is_done=False)
    by = f", approved by {recovery.approved_by}" if recovery.approved_by else ""
    return End(
        f"{one} is not at an end: {recovery.state}{by}; `backlogctl show {one}` says what is next",
        is_done=False,
    )


_APPROVAL = ("approved_by", "approved_identity", "approval_expires_at")


def describe_outcome(workspace: Workspace, recovery: Recovery) -> dict[str, Any]:
    """What came of a recovery, for a run's last task; `counts` is None where nothing is sent.

    `problem` is why this program cannot say more of it; None where it can.
    """
    counts = problem = None
    try:
        if workspace.kind_of(recovery).traits.injects:
            size = describe_recovery_plan(workspace, recovery).size
            counts = {"planned": size, "put_back": recovery.injected}
    except Refused as refused:
        problem = str(refused)
    return {
        "recovery": recovery.id,
        **to_document(recovery, "kind", "stream", "state", *_APPROVAL),
        "counts": counts,
        "problem": problem,
        "detail": {
            name: recovery.detail[name]
            for name in ("why", "code", "message", "reason", "superseded_by")
            if name in recovery.detail
        },
    }
