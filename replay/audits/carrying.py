"""Carries an audit out, and puts what it found on record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backlog.config import Stream
from backlog.ledger.audits import AuditRecord
from backlog.values import GapState
from replay.around.rights import require_rights
from replay.audits.audit import Audit, AuditResult, Say, SpanOptions
from replay.injection.archived import suggest_plan
from replay.recovery.workspace import Workspace

# The next audit finds the rest, once these are put back.
MOST_GAPS = 1_000
_KEPT_FINDINGS, _KEPT_WINDOWS = 50, 250


def carry_out(
    audit: Audit, workspace: Workspace, stream: Stream, bounds: SpanOptions, say: Say
) -> AuditResult:
    """Examines, then records.

    What it found lost is on record as gaps, so that a plan can put it back. An audit of a part of
    the topic is not recorded itself: it would pass for one of all of it.

    Raises:
        Refused: a right is missing: brokers say so late, or as a timeout.
        BacklogError: something that it needs could not be read, or the ledger not be written.
    """
    for warning in require_rights(workspace, stream, audit.list_rights(stream)):
        say(warning)
    found = _record_losses(workspace, audit.examine(workspace, stream, bounds, say))
    if bounds.since is None and bounds.until is None:
        workspace.ledger.audits.record(
            AuditRecord(
                stream=stream.name,
                cluster=stream.cluster,
                audit=audit.name,
                at=found.began_at,
                verdict=found.verdict,
                missing=found.missing,
                document=shorten(found.to_json()),
            )
        )
    return found


def _record_losses(workspace: Workspace, found: AuditResult) -> AuditResult:
    ledger = workspace.ledger
    ledger.gaps.answer(found.answered)
    known = {gap.id: gap for gap in ledger.gaps.record_all(found.losses[:MOST_GAPS])}
    live = tuple(gap for gap in known.values() if gap.state is GapState.OPEN)
    commands = dict.fromkeys(suggest_plan(ledger, gap) for gap in live)
    return replace(found, recorded=tuple(known.values()), next_commands=tuple(commands))


def shorten(document: Mapping[str, Any]) -> dict[str, Any]:
    """Without tables and lists that grow with the topic; windows of time do not."""
    findings = [
        {**one, "detail": {k: v for k, v in one["detail"].items() if not isinstance(v, list)}}
        for one in document["findings"][:_KEPT_FINDINGS]
    ]
    kept = {name: value for name, value in document.items() if name != "tables"}
    windows = document["tables"].get("windows", [])[-_KEPT_WINDOWS:]
    return {**kept, "findings": findings, "windows": windows}
