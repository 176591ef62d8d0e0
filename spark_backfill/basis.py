"""Guards and warnings of a plan of lost rows, and the basis of its verdict."""

from __future__ import annotations

from backlogctl.errors import ConfigurationError, Refused
from backlogctl.formats import format_duration, format_plural
from backlogctl.spark_backfill.evidence.injected import (
    CONSUMED,
    INJECTED,
    LOST,
    OUTSIDE,
    QUARANTINED,
    SURVIVING,
)
from backlogctl.spark_backfill.evidence.survivors import (
    Holes,
    LogOffsets,
    LogSpan,
)
from backlogctl.spark_backfill.messages.candidates import (
    SourceAccess,
)
from backlogctl.spark_backfill.messages.encoding import describe_unsure
from backlogctl.spark_backfill.messages.rules import RESTATED, MessageRules
from backlogctl.spark_backfill.messages.windows import (
    Bounds,
)
from backlogctl.spark_backfill.placing.measuring import MIN_COMPARED
from backlogctl.spark_backfill.placing.placement import (
    GapPlacement,
    describe_blurred,
    describe_few,
    describe_unordered,
)
from backlogctl.spark_backfill.proof import (
    ENOUGH_SURVIVORS,
    describe_repeated,
    describe_unproved,
    require_proof,
)
from backlogctl.spark_backfill.request import Proof, RebuildRequest
from backlogctl.spark_backfill.verdict import (
    LabelCounts,
    RebuildVerdict,
    VerdictBasis,
)
from backlogctl.values import OffsetRange

_SHOWN = 10


def check_policy(request: RebuildRequest) -> None:
    """Refuses what the stream's own rules do not allow, before anything is read."""
    stream = request.stream
    source, subject = stream.source, f"stream {stream.name}"
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
    placement: GapPlacement,
    older: str = "",
) -> VerdictBasis:
    """The basis of the verdict: edges, holes, collapsing, the proof.

    Args:
        older: as `describe_older` says.
    """
    numbers = placement.gaps
    return VerdictBasis(
        blurred=() if placement.consumed else placement.by_time,
        advice=describe_blurred(placement),
        counted=placement.is_counted,
        uncertain=counts.uncertain,
        evidence={number: str(placement.find_evidence(number)) for number in numbers},
        differs={number: placement.find_difference(number) for number in numbers},
        uneven=placement.uneven,
        unread=_describe_unread(request, rules, counts, placement.unreached) or older,
        # What the group read of a bounded gap, its own table knows.
        bounded=not placement.consumed and any(gap.may_be_read for gap in request.gaps),
        holes=_describe_holes(request, ranges, spans, holes),
        collapsible=rules.fidelity == RESTATED,
        # A consumer's own table says which messages without a key were lost, wherever they were.
        spread=counts.without_home > 0 and not placement.consumed,
        unordered=describe_unordered(placement, placement.misplaced),
        ragged=describe_repeated(proof) or _describe_ragged(placement, proof),
        unproved=describe_unproved(proof),
        unsure=describe_unsure(rules.encoders.values(), proof.returns),
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


def _describe_ragged(placement: GapPlacement, proof: Proof) -> str:
    """Rows that were never sent and rows that are gone, as survivors show them."""
    order = placement.order
    if placement.consumed or placement.unsent:
        # Counts that fit have as many rows that were never sent as lost ones that are gone.
        if not (gone := proof.sampled - proof.compared):
            return ""
        return (
            f"of {format_plural(proof.sampled, 'survivor')} {gone} have no row that was read: lost "
            "messages may have none either, and rows that were never sent stand for them"
        )
    if order is None or not any(placement.gaps.values()):
        return ""  # times decide, and the verdict says that
    if order.compared < MIN_COMPARED:
        return (
            f"{describe_few(order)}: that rows before a bookmark's were handled, and those behind "
            "it were lost, rests on `order_by` alone"
        )
    if order.compared < ENOUGH_SURVIVORS:
        survivors = format_plural(order.compared, "survivor")
        return f"only {survivors} show the rows' order, {ENOUGH_SURVIVORS} are needed to rely on it"
    if not (order.unsent or order.gone):
        return ""
    parts = [f"{format_plural(order.unsent, 'row')} without a message"] if order.unsent else []
    parts += [f"{format_plural(order.gone, 'message')} without a row"] if order.gone else []
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
    if any(gap.maybe_empty for gap in request.gaps):
        return "some of what is lost may be aborted messages or transaction markers"
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


def warn_about_skipped(request: RebuildRequest, offsets: LogOffsets, warnings: list[str]) -> None:
    """Says first which gaps need no table: all of their messages are in the topic still.

    Of a compacted topic that is not known; and where rows change, the table has newer states.
    """
    compacts = "compact" in request.topic_config.get("cleanup.policy", "")
    source = request.stream.source
    if compacts or source is None or (source.mutable and source.stale == "restate"):
        return
    there = [
        gap
        for gap in request.gaps
        if gap.sequences is None
        and gap.start is not None
        and gap.start >= offsets.starts.get(gap.partition, 0)
    ]
    if there:
        some, more = there[:_SHOWN], ", ..." if len(there) > _SHOWN else ""
        names = ", ".join(gap.id for gap in some) + more
        places = " ".join(
            f"--offsets {gap.partition}:{gap.start}-{(gap.end or 0) - 1}" for gap in some
        )
        told = (
            f"all messages of {names} are in the topic still: `backlogctl plan redrive "
            f"{request.stream.name} --from log {places}` puts them back as they were, without the "
            "table"
        )
        if told not in warnings:
            warnings.insert(0, told)


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
            f"no unique column of {access.table.label} is the identity: a surviving message with "
            "the key of a lost one, of a row that is not read, would hide it"
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
            f"{counts.without_home:,} lost messages have no partition that is known (no key, or "
            "sent while the topic got partitions): they fill what the gaps lack, and totals are "
            "compared"
        )
    if counts.young:
        margin = format_duration(rules.source.margin.total_seconds())
        warnings.append(
            f"{counts.young:,} lost rows are younger than `margin` ({margin}): their message may "
            "still be on its way, and would come twice; plan again when they are older"
        )
    if counts.duplicates:
        warnings.append(
            f"{counts.duplicates:,} rows repeat a primary key: one message for each key"
        )
    if offsets.undecided:
        warnings.append(
            f"{offsets.undecided:,} offsets belong to open transactions and were not read"
        )
    if not proof.compared:
        warnings.append("no survivor could be compared, so the rules are not proved")
    elif proof.mutable and proof.equal_values < proof.compared:
        warnings.append(
            f"{proof.compared - proof.equal_values:,} of {proof.compared:,} compared rows give "
            "another value than their message has: they changed since it was sent, or "
            "`message.value` is wrong; lost messages are restated from the rows as they are, by "
            "the same rules"
        )
