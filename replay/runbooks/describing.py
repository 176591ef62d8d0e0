"""What an approver is asked, and what a run's last task says."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from backlog.clock import format_time
from backlog.errors import Refused
from backlog.values import Recovery
from replay.recovery.workspace import Workspace
from replay.telling import markdown
from replay.telling.documents import tell_plan


def describe_subject(workspace: Workspace, recovery: Recovery) -> str:
    """One line: what would be done, to what."""
    return tell_plan(workspace, recovery).request


def describe_body(workspace: Workspace, recovery: Recovery, *, page: str = "") -> str:
    """The plan as Markdown.

    Args:
        page: address of the recovery's page; else that of `watch.url`.
    """
    address = page or _find_page(workspace, recovery)
    plan, told = workspace.plan_now(recovery), tell_plan(workspace, recovery)
    return markdown.describe_body(recovery, plan, told, address)


def _find_page(workspace: Workspace, recovery: Recovery) -> str:
    url = workspace.config.watch.url
    return f"{url.rstrip('/')}/recoveries/{quote(recovery.id)}" if url else ""


def describe_outcome(workspace: Workspace, recovery: Recovery) -> dict[str, Any]:
    """What came of a recovery, for a run's last task; `counts` is None where nothing is sent.

    `problem` is why this program cannot say more of it; None where it can.
    """
    counts = problem = None
    try:
        if workspace.kind_of(recovery).traits.injects:
            size = tell_plan(workspace, recovery).size
            counts = {"planned": size, "put_back": recovery.injected}
    except Refused as refused:
        problem = str(refused)
    expires = recovery.approval_expires_at
    return {
        "recovery": recovery.id,
        "kind": recovery.kind,
        "stream": recovery.stream,
        "state": str(recovery.state),
        "approved_by": recovery.approved_by,
        "approved_identity": recovery.approved_identity,
        "approval_expires_at": None if expires is None else format_time(expires),
        "counts": counts,
        "problem": problem,
        "detail": {
            name: recovery.detail[name]
            for name in ("why", "code", "message", "reason", "superseded_by")
            if name in recovery.detail
        },
    }
