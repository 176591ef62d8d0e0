"""Carries an audit out, and puts what it found on record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backlogctl.clock import read_millis, utc_now
from backlogctl.config import Stream
from backlogctl.ledger.measurements import AuditRecord
from backlogctl.replay.audits.audit import Audit, AuditResult, Say, SpanOptions
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import suggest_plans
from backlogctl.replay.observe.rights import require_rights
from backlogctl.values import Cause, Certainty, Gap, GapState, OffsetRange, SequenceRange

# What an audit found lost, as the ledger takes it: a gap that a plan can put back.

TimesMs = tuple[int | None, int | None]
"""Between which times messages were made, in ms since 1970; None is unknown."""


def make_unprocessed(stream: Stream, topic_id: str, place: OffsetRange, times: TimesMs) -> Gap:
    """Committed, and never handled."""
    return _make(
        stream,
        topic_id,
        place.partition,
        Cause.UNPROCESSED,
        times,
        reason="committed, and the consumer's own table lacks them",
        offsets=place,
    )


def make_producer_gap(
    stream: Stream, topic_id: str, partition: int, named: SequenceRange, times: TimesMs
) -> Gap:
    """Numbered by their producer, and nowhere in the topic."""
    return _make(
        stream,
        topic_id,
        partition,
        Cause.PRODUCER_GAP,
        times,
        reason=f"sequence {named.first:,} to {named.last:,} of producer {named.producer}, epoch "
        f"{named.epoch}, never reached the topic",
        sequences=named,
    )


def _make(
    stream: Stream,
    topic_id: str,
    partition: int,
    cause: Cause,
    times: TimesMs,
    *,
    reason: str,
    offsets: OffsetRange | None = None,
    sequences: SequenceRange | None = None,
) -> Gap:
    first, last = map(read_millis, times)
    return Gap(
        id="",
        stream=stream.name,
        cluster=stream.cluster,
        topic=stream.topic,
        group=stream.group,
        topic_id=topic_id,
        partition=partition,
        start=None if offsets is None else offsets.start,
        end=None if offsets is None else offsets.end,
        cause=cause,
        certainty=Certainty.EXACT,
        state=GapState.OPEN,
        first_time=first,
        last_time=last,
        detected_at=utc_now(),
        reason=reason,
        sequences=sequences,
    )


# The next audit finds the rest, once these are put back.
MOST_GAPS = 1_000
_KEPT_FINDINGS, _KEPT_WINDOWS = 50, 250


def run_audit(
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
    found = _record_losses(workspace, stream, audit.examine(workspace, stream, bounds, say))
    if bounds.since is None and bounds.until is None:
        workspace.ledger.audits.record(
            AuditRecord(
                stream=stream.name,
                cluster=stream.cluster,
                audit=audit.name,
                at=found.began_at,
                verdict=found.verdict,
                missing=found.missing,
                document=shorten_document(found.to_json()),
            )
        )
    return found


def _record_losses(workspace: Workspace, stream: Stream, found: AuditResult) -> AuditResult:
    ledger = workspace.ledger
    ledger.gaps.answer(found.answered)
    known = {gap.id: gap for gap in ledger.gaps.record_all(found.losses[:MOST_GAPS])}
    live = tuple(gap for gap in known.values() if gap.state is GapState.OPEN)
    commands = suggest_plans(workspace, stream, live)
    return replace(found, recorded=tuple(known.values()), next_commands=tuple(commands))


def shorten_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Without tables and lists that grow with the topic; windows of time do not."""
    findings = [
        {**one, "detail": {k: v for k, v in one["detail"].items() if not isinstance(v, list)}}
        for one in document["findings"][:_KEPT_FINDINGS]
    ]
    kept = {name: value for name, value in document.items() if name != "tables"}
    windows = document["tables"].get("windows", [])[-_KEPT_WINDOWS:]
    return {**kept, "findings": findings, "windows": windows}
