"""Guards and warnings of a plan, and the basis of its verdict."""

from __future__ import annotations

from backlog.errors import ConfigurationError, Refused
from backlog.numbers import format_plural
from backlog.values import Certainty, OffsetRange
from spark_backfill.evidence import CONSUMED, INJECTED, LOST, OUTSIDE, QUARANTINED, SURVIVING
from spark_backfill.evidence.holes import Holes
from spark_backfill.evidence.offsets import LogOffsets
from spark_backfill.evidence.survivors import LogSpan
from spark_backfill.messages.candidates import SourceAccess
from spark_backfill.messages.rules import RESTATED, MessageRules
from spark_backfill.messages.windows import Bounds
from spark_backfill.placing.placement import Placement, describe_unordered
from spark_backfill.proof import describe_unproved, require_proof
from spark_backfill.request import Proof, RebuildRequest
from spark_backfill.tally import LabelCounts
from spark_backfill.verdict import RebuildVerdict, VerdictBasis

# With fewer, no plan is exact: a hundred without an exception mean at most 3 % (rule of three).
ENOUGH_SURVIVORS = 100
_SHOWN = 10


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
    holes: Holes,
    counts: LabelCounts,
    proof: Proof,
    placement: Placement,
) -> VerdictBasis:
    """The basis of the verdict: edges, holes, collapsing, the proof."""
    numbers = placement.gaps
    return VerdictBasis(
        blurred=() if placement.consumed else placement.by_time,
        uncertain=counts.uncertain,
        evidence={number: str(placement.find_evidence(number)) for number in numbers},
        differs={number: placement.find_difference(number) for number in numbers},
        uneven=placement.uneven,
        unread=_describe_unread(request, rules, counts, placement.unreached),
        # What the group read of a bounded gap, its own table knows.
        bounded=not placement.consumed
        and any(gap.certainty is not Certainty.EXACT for gap in request.gaps),
        holes=_describe_holes(request, ranges, spans, holes),
        collapsible=rules.fidelity == RESTATED,
        # A consumer's own table says which messages without a key were lost, wherever they were.
        spread=counts.without_home > 0 and not placement.consumed,
        unordered=describe_unordered(placement, placement.misplaced),
        ragged=_describe_ragged(placement),
        unproved=describe_unproved(proof),
    )


def _describe_unread(
    request: RebuildRequest, rules: MessageRules, counts: LabelCounts, unreached: tuple[int, ...]
) -> str:
    """Rows that are sent as they are now, and of which some were not looked at."""
    if unreached and rules.source.consumed is None:
        numbers = ", ".join(map(str, unreached[:_SHOWN]))
        return (
            f"retention has taken messages of the time around the holes in partitions {numbers}: "
            "rows of messages that have expired look as if they had never been sent"
        )
    if rules.fidelity != RESTATED:
        return ""
    if consumed := counts.total(CONSUMED):
        named = format_plural(consumed, "row")
        return f"{named} that `consumed` names are not sent: a later change of one is missing"
    if request.until is not None:
        return "rows that changed after --until are not sent, also where they changed before it"
    begun = [gap.first_time for gap in request.gaps if gap.first_time is not None]
    if request.since is not None and begun and request.since > min(begun):
        return "--since is later than a loss may have begun: what changed in between is not sent"
    return ""


def _describe_ragged(placement: Placement) -> str:
    """Rows that were never sent and rows that are gone, as survivors show them."""
    order = placement.order
    if order is None or not any(placement.gaps.values()):
        return ""  # times decide, and the verdict says that
    if order.compared < ENOUGH_SURVIVORS:
        return f"only {format_plural(order.compared, 'survivor')} show how the rows are ordered"
    if not (order.unsent or order.gone):
        return ""
    parts = []
    if order.unsent:
        parts.append(f"{format_plural(order.unsent, 'row')} without a message")
    if order.gone:
        parts.append(f"{format_plural(order.gone, 'message')} without a row")
    return (
        f"among {format_plural(order.compared, 'survivor')} are {' and '.join(parts)}: among the "
        "lost ones there may be as many for each"
    )


def _describe_holes(
    request: RebuildRequest,
    ranges: tuple[OffsetRange, ...],
    spans: tuple[LogSpan, ...],
    holes: Holes,
) -> str:
    """Why offsets need not be messages, judged by the survivors: what is lost cannot be read."""
    if request.is_unsent:
        return ""  # its producer counted messages
    if "compact" in request.topic_config.get("cleanup.policy", ""):
        return "the topic is compacted"
    if holes.missing:
        return f"{holes.missing} of the surviving offsets are control or aborted records"
    ours = {span.partition: span.first_ours for span in spans}
    injected = {chunk.slot for chunk in request.prior if chunk.first_offset is None}
    for item in ranges:
        first = ours.get(item.partition)
        if item.partition in injected and (first is None or item.end > first):
            return "an earlier recovery wrote control records there"
    if not holes.offsets:
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
    """Refuses a plan that proves nothing, or has nothing to send (fault 37)."""
    subject = f"stream {rules.stream.name}"
    survivors = sum(span.records_before_ours for span in spans)
    require_proof(proof, request.allow, subject, survivors=survivors)
    lost = counts.total(LOST)
    expected = sum(item.expected for item in verdict.partitions)
    if not lost:
        uncertain = sum(counts.uncertain.values())
        hint = ""
        if uncertain:
            hint = (
                f"`edge: {rules.source.edge}` leaves out all {uncertain} rows that may be lost; "
                "else "
            )
        raise Refused(
            f"no row was lost among {counts.candidates} candidates, but {expected} offsets are: "
            f"{counts.total(SURVIVING)} survive, {counts.total(CONSUMED)} were consumed, "
            f"{counts.total(INJECTED)} injected before, {counts.total(OUTSIDE)} lie in no gap, "
            f"{counts.total(QUARANTINED)} in quarantine",
            subject=subject,
            hint=hint + "check --since and --until, `time_column` and `identity`; or waive the gap",
        )
    most = request.stream.limits.max_messages
    if lost > most:
        raise Refused(
            f"{lost} messages are more than `limits.max_messages` ({most})",
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
    if counts.without_home:
        warnings.append(
            f"{counts.without_home} lost messages have no partition that is known (no key, or sent "
            "while the topic got partitions): they fill what the gaps lack, and totals are compared"
        )
    if counts.young:
        warnings.append(
            f"{counts.young} lost rows are younger than `margin`: their "
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
