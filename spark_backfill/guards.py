"""Guards and warnings of a plan, and the basis of its verdict."""

from __future__ import annotations

from backlog.errors import ConfigurationError, Refused
from backlog.values import Certainty, OffsetRange
from spark_backfill.evidence import CONSUMED, INJECTED, LOST, QUARANTINED, SURVIVING
from spark_backfill.evidence.offsets import LogOffsets
from spark_backfill.evidence.survivors import LogSpan
from spark_backfill.messages.candidates import Bounds, SourceAccess
from spark_backfill.messages.rules import RESTATED, MessageRules
from spark_backfill.proof import describe_unproved, require_proof
from spark_backfill.request import PriorChunk, Proof, RebuildRequest
from spark_backfill.tally import LabelCounts
from spark_backfill.verdict import RebuildVerdict, VerdictBasis


def check_policy(request: RebuildRequest) -> None:
    """Refuses what the stream's own rules do not allow, before anything is read."""
    stream = request.stream
    source = stream.source
    subject = f"stream {stream.name}"
    if source is None:
        raise ConfigurationError(
            "has no `source`, so nothing can be rebuilt",
            subject=subject,
            hint="name the table that its messages are made from",
        )
    compacted = "compact" in request.topic_config.get("cleanup.policy", "")
    if source.stale == "refuse" and (source.message.key is not None or compacted):
        raise Refused(
            f"its topic is {'compacted' if compacted else 'keyed'}, and it is not configured "
            "what an old message after a newer one means",
            subject=subject,
            hint="set `stale: restate` (the newest state of a row) or `stale: events`",
        )
    if source.stale == "events" and source.identity.message == "key":
        raise Refused(
            "`stale: events` does not go with `identity.message: key`: a surviving event would "
            "hide a lost one of the same key",
            subject=subject,
            hint="identify events by a header",
        )


def find_basis(
    request: RebuildRequest,
    rules: MessageRules,
    ranges: tuple[OffsetRange, ...],
    spans: tuple[LogSpan, ...],
    counts: LabelCounts,
    proof: Proof,
) -> VerdictBasis:
    """The basis of the verdict: sharpness, holes, collapsing, the proof."""
    spread = request.start_spread
    restated = rules.fidelity == RESTATED
    # A consumed row may have changed since: that it was consumed is no evidence on later messages.
    named = rules.source.consumed is not None and not restated
    return VerdictBasis(
        sharp=named or (spread is not None and spread < rules.source.margin),
        bounded=any(gap.certainty is not Certainty.EXACT for gap in request.gaps),
        holes=_find_holes(request, ranges, spans, request.prior),
        collapsible=restated,
        spread=counts.without_key > 0,
        unproved=describe_unproved(proof),
    )


def _find_holes(
    request: RebuildRequest,
    ranges: tuple[OffsetRange, ...],
    spans: tuple[LogSpan, ...],
    prior: tuple[PriorChunk, ...],
) -> str:
    """Why offsets need not be messages, judged by the survivors: what is lost cannot be read."""
    if "compact" in request.topic_config.get("cleanup.policy", ""):
        return "the topic is compacted"
    missing = sum(span.span_before_ours - span.records_before_ours for span in spans)
    if missing > 0:
        return f"{missing} of the surviving offsets are control or aborted records"
    ours = {span.partition: span.first_ours for span in spans}
    injected = {chunk.slot for chunk in prior}
    for item in ranges:
        first = ours.get(item.partition)
        if item.partition in injected and (first is None or item.end > first):
            return "an earlier recovery wrote control records there"
    if not any(span.records for span in spans):
        return "no message survives that would show control records or holes"
    return ""


def require_messages(
    request: RebuildRequest,
    rules: MessageRules,
    counts: LabelCounts,
    verdict: RebuildVerdict,
    proof: Proof,
    spans: tuple[LogSpan, ...],
) -> None:
    """Refuses a plan that proves nothing, has nothing to send (fault 37), or too much."""
    subject = f"stream {rules.stream.name}"
    survivors = sum(span.records_before_ours for span in spans)
    require_proof(proof, request.allow, subject, survivors=survivors)
    lost = counts.total(LOST)
    expected = sum(item.expected for item in verdict.partitions)
    if not lost:
        raise Refused(
            f"no row was lost among {counts.candidates} candidates, but {expected} offsets are: "
            f"{counts.total(SURVIVING)} survive, {counts.total(CONSUMED)} were consumed, "
            f"{counts.total(INJECTED)} injected before, {counts.total(QUARANTINED)} in quarantine",
            subject=subject,
            hint="check --since and --until, `time_column` and `identity`; or waive the gap",
        )
    if lost > rules.stream.limits.max_messages:
        raise Refused(
            f"{lost} messages are more than `limits.max_messages` "
            f"({rules.stream.limits.max_messages})",
            subject=subject,
            hint="raise the limit, or plan a shorter time with --since and --until",
        )


def warn_about_index(
    access: SourceAccess, rules: MessageRules, bounds: Bounds, warnings: list[str]
) -> None:
    """Warns where a bounded read cannot use an index."""
    bounded = bounds.lower is not None or bounds.upper is not None
    if bounded and rules.source.time_column not in access.table.indexed:
        warnings.append(
            f"the time column {rules.source.time_column} of {access.table.label} has no index: "
            "the whole table is read"
        )


def warn_about_rules(
    request: RebuildRequest, access: SourceAccess, rules: MessageRules, warnings: list[str]
) -> None:
    """Warns where the stream's rules, as they are, can hide a lost message."""
    source = rules.source
    if source.consumed is not None and rules.fidelity == RESTATED:
        warnings.append(
            "`consumed` says nothing about later changes of the same row: lost messages of rows "
            "that it names are not rebuilt"
        )
    if source.mutable and request.until is not None:
        warnings.append(
            "--until leaves out rows that changed after it, also those whose lost message was "
            "sent before"
        )
    column = source.identity.row.column
    # NULLs would not share a message: rows with one are in quarantine.
    unique = column is not None and frozenset({column}) in access.table.unique
    if not source.mutable and source.identity.message == "key" and not unique:
        warnings.append(
            f"nothing in {access.table.label} keeps the identity unique: a surviving message of "
            "another row with the same key would hide a lost one"
        )


def warn_about_rows(
    counts: LabelCounts,
    proof: Proof,
    offsets: LogOffsets,
    rules: MessageRules,
    warnings: list[str],
) -> None:
    if counts.without_key:
        warnings.append(
            f"{counts.without_key} lost messages have no key: their old partition is unknown, "
            "they are spread over the partitions of the gaps"
        )
    if counts.young:
        warnings.append(
            f"{counts.young} lost rows changed less than `margin` ago: their "
            "message may still be on its way"
        )
    if counts.duplicates:
        warnings.append(f"{counts.duplicates} rows repeat a primary key: one message for each key")
    if offsets.undecided:
        warnings.append(
            f"{offsets.undecided} offsets belong to open transactions and were not read"
        )
    if not proof.compared:
        warnings.append("no survivor could be compared, so the rules are not proved")
    elif proof.mutable and proof.equal_values < proof.compared:
        warnings.append(
            f"{proof.compared - proof.equal_values} of {proof.compared} compared rows changed "
            "since their message was sent: lost messages are restated from the rows as they are"
        )
