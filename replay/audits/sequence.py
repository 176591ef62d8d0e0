"""`audit sequence`: messages that were stamped and never reached the log (protocol P7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backlogctl.clock import read_millis, utc_now
from backlogctl.config import Stream
from backlogctl.formats import format_duration, format_moment, format_plural
from backlogctl.monitoring.offsets.bulk_look import measure_clock_skew
from backlogctl.replay.audits.audit import (
    Audit,
    AuditFinding,
    AuditLevel,
    AuditOptions,
    AuditOutcome,
    Say,
    reading_topic,
    start_spark,
)
from backlogctl.replay.audits.carrying import make_producer_gap
from backlogctl.replay.audits.span import Span, find_settled, read_span
from backlogctl.replay.audits.tiers import find_archived, list_archives, read_parts
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.observe.stream import note_stream
from backlogctl.values import Gap, GapState, SequenceRange, to_document
from backlogctl_delivery.sequenced.sequence import RangeSet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backlogctl.spark_backfill.audits.sequence import SequenceAudit, SequenceHole

CLAIMS = (
    "Each hole is messages that their producer numbered and that are nowhere in the topic. What a "
    "producer lost after the last message that arrived is not seen."
)
_SHOWN = 20
_LONGEST_RUN_MS = 10 * 365 * 86_400_000
SURE = "hole"
UNSURE: Mapping[str, tuple[AuditLevel, str, str]] = {
    "compacted": (
        AuditLevel.UNKNOWN,
        "are missing from a compacted topic, where messages vanish by themselves",
        "audit a topic that keeps its messages",
    ),
    "beside-unreadable": (
        AuditLevel.SUSPECT,
        "are missing beside messages whose stamp cannot be read, which may be these",
        "see who writes them",
    ),
    "not-settled": (
        AuditLevel.UNKNOWN,
        "are missing, and may still come: no sample shows that what follows was in the log",
        "producers retry for so long: look again in",
    ),
    "at-the-head": (
        AuditLevel.NOTED,
        "are missing right after the log's start: retention may have taken them",
        "",
    ),
}


class SequenceAuditing(Audit):
    """By Spark, over what the topic holds and what offloads moved into archives."""

    name = "sequence"
    summary = "Find messages that were numbered by a SequencedProducer and are not in the topic."

    def look(
        self, workspace: Workspace, stream: Stream, bounds: AuditOptions, say: Say
    ) -> AuditOutcome:
        """Reads every message once; nothing near the end of the log is judged before its grace."""
        from backlogctl.spark_backfill.audits.sequence import audit_sequence
        from backlogctl.spark_backfill.spark.kafka_options import make_java_options

        # The samples are in the ledger's time.
        began_at = utc_now() + measure_clock_skew(workspace.ledger)
        make_java_options(workspace.properties(stream))  # refuses now what Spark could not use
        say("looking at the topic")
        span = read_span(workspace, stream, bounds.since)
        settled = find_settled(workspace, stream, span.topic.topic_id, bounds.waits, began_at)
        note_stream(workspace, stream)  # so that a later look knows how old what is there now is
        say("starting Spark")
        messages, whole = _open(workspace, stream, span, bounds.since)
        say(f"reading {format_plural(sum(r.count for r in span.ranges), 'offset')}")
        with reading_topic(workspace, stream, "read what is numbered"):
            found = audit_sequence(messages, stream.topic, whole)
        holes, closed = _leave_out_closed(workspace, stream, span.topic.topic_id, found.holes)
        found = replace(found, holes=holes)
        judged = _sort_holes(found, span, settled, bounds)
        return AuditOutcome(
            figures=_list_figures(found),
            findings=_tell(found, judged, bounds, stream, closed),
            claims=CLAIMS,
            tables={"producers": _list_producers(found)},
            losses=tuple(_make_loss(stream, span.topic.topic_id, hole) for hole in judged[SURE]),
        )


def _open(
    workspace: Workspace, stream: Stream, span: Span, since: datetime | None
) -> tuple[DataFrame, list[int]]:
    """What the topic has, and what archives have right before that; and which partitions are read
    from their first message on."""
    from backlogctl.spark_backfill.existing.messages import read_log

    records = list_archives(workspace, span.topic.topic_id) if since is None else ()
    spark = start_spark(workspace, stream, SequenceAuditing.name, records)
    begins = {item.partition: item.start for item in span.ranges}
    archived = find_archived(records, begins)
    messages = read_log(spark, workspace.properties(stream), stream.topic, span.ranges)
    # With a stretch missing in between, what is before it would look lost.
    messages = messages.unionAll(read_parts(spark, archived.list_joined()))
    return messages, [number for number, start in archived.begins.items() if start == 0]


def _leave_out_closed(
    workspace: Workspace, stream: Stream, topic_id: str, holes: Iterable[SequenceHole]
) -> tuple[tuple[SequenceHole, ...], int]:
    """The holes without what was put back or given up, and how many messages that is: a rebuilt
    message has no number, so its place stays empty."""
    closed: dict[tuple[int, str, int], RangeSet] = {}
    for gap in workspace.ledger.gaps.list(stream.name, [GapState.VERIFIED, GapState.WAIVED]):
        if (named := gap.sequences) is not None and gap.topic_id == topic_id:
            chain = (gap.partition, named.producer, named.epoch)
            closed.setdefault(chain, RangeSet()).add(named.first, named.last)
    none = RangeSet()
    kept = tuple(
        replace(hole, first=first, last=last)
        for hole in holes
        for first, last in closed.get(
            (hole.id.partition, hole.id.producer, hole.id.epoch), none
        ).list_gaps(hole.first, hole.last)
    )
    return kept, sum(hole.count for hole in holes) - sum(hole.count for hole in kept)


def _make_loss(stream: Stream, topic_id: str, hole: SequenceHole) -> Gap:
    before = _guess_start(hole) if hole.before is None else hole.before.at_ms
    times = [at for at in (before, hole.after.at_ms) if at is not None]
    return make_producer_gap(
        stream,
        topic_id,
        hole.id.partition,
        SequenceRange(hole.id.producer, hole.id.epoch, hole.first, hole.last),
        (None if before is None else min(times), max(times, default=None)),
    )


def _guess_start(hole: SequenceHole) -> int | None:
    """When the producer began, in ms: our own epochs are microseconds of that."""
    began, after = hole.id.epoch // 1000, hole.after.at_ms
    return began if after is not None and after - _LONGEST_RUN_MS < began <= after else None


def _sort_holes(
    found: SequenceAudit, span: Span, settled: Mapping[int, int], bounds: AuditOptions
) -> dict[str, list[SequenceHole]]:
    """By what is known of them: `SURE`, or why they may be no loss."""
    judged: dict[str, list[SequenceHole]] = {name: [] for name in (SURE, *UNSURE)}
    within_ms = round(bounds.waits.total_seconds() * 1000)
    for hole in found.holes:
        if bounds.until is not None and not _is_before(hole, bounds.until):
            continue
        place = hole.id.partition
        old = max(span.lows.get(place, 0), settled.get(place, 0))
        if span.is_compacted:
            why = "compacted"
        elif _is_beside(hole, found.doubtful.get(place)):
            why = "beside-unreadable"
        elif hole.after.offset >= old:
            why = "not-settled"
        elif found.is_at_head(hole, within_ms):
            why = "at-the-head"
        else:
            why = SURE
        judged[why].append(hole)
    return judged


def _tell(
    found: SequenceAudit,
    judged: Mapping[str, list[SequenceHole]],
    bounds: AuditOptions,
    stream: Stream,
    closed: int,
) -> Iterator[AuditFinding]:
    if not found.counts.stamped:
        yield AuditFinding(
            "not-stamped",
            AuditLevel.UNKNOWN,
            f"none of {format_plural(found.counts.read, 'message')} has a legible stamp of this "
            "topic",
            "take the sequenced producer in: until then losses on the way to Kafka leave no trace"
            + (" here, and only rows beside messages show them" if stream.source else ""),
            (f"backlogctl audit counts {stream.name}",) if stream.source else (),
        )
    if found.counts.foreign:
        yield AuditFinding(
            "foreign",
            AuditLevel.NOTED,
            f"{format_plural(found.counts.foreign, 'message')} with the stamp of another topic, "
            "which numbers nothing here",
            "see who passes on the headers of what it handled, and have it leave these out",
        )
    if found.counts.unreadable:
        yield AuditFinding(
            "unreadable-stamp",
            AuditLevel.UNKNOWN,
            f"{format_plural(found.counts.unreadable, 'message')} are stamped in a way that cannot "
            "be read: what they number is not known",
            "see who writes them, and compare with the format",
        )
    if found.counts.misplaced:
        yield AuditFinding(
            "misplaced",
            AuditLevel.UNKNOWN,
            f"{format_plural(found.counts.misplaced, 'message')} in another partition than the "
            "stamp says: each fills its own place, and what is missing behind it is not known",
            "see who sends on what others numbered, and have it leave out the headers, or what "
            "moves messages of the sequenced producer to another partition",
        )
    if not found.is_whole:
        yield AuditFinding(
            "too-many",
            AuditLevel.UNKNOWN,
            "there are more producers, holes or reports than can be listed: more may be missing",
            "look at less at once, with --since",
        )
    if closed:
        yield AuditFinding(
            "put-back",
            AuditLevel.NOTED,
            f"{format_plural(closed, 'message')} never reached the topic, and were put back or "
            "waived since",
        )
    yield from _tell_lost(judged[SURE], stream)
    yield from (
        _tell_unsure(name, judged[name], bounds, stream.name) for name in UNSURE if judged[name]
    )


def _is_before(hole: SequenceHole, until: datetime) -> bool:
    at = hole.after.at_ms
    return at is None or at < until.timestamp() * 1000


def _is_beside(hole: SequenceHole, doubtful: tuple[int, int] | None) -> bool:
    """Whether an illegible message may be one of the hole's."""
    if doubtful is None:
        return False
    first = 0 if hole.before is None else min(hole.before.offset, hole.after.offset)
    last = hole.after.offset if hole.before is None else max(hole.before.offset, hole.after.offset)
    return doubtful[0] <= last and first <= doubtful[1]


def _tell_lost(holes: list[SequenceHole], stream: Stream) -> Iterator[AuditFinding]:
    again = "put back what the table knows"
    commands = [f"backlogctl doctor {stream.name}"]
    if stream.source is None:
        again = "send them again, and close the gaps"
        commands.append(f"backlogctl gaps {stream.name}")
    for hole in holes[:_SHOWN]:
        yield AuditFinding(
            SURE,
            AuditLevel.LOST,
            f"{_describe(hole)} never reached the topic{_date(hole)}",
            "the producer numbered them and did not report that they failed: look at its acks, its "
            f"retries and what it does with failed deliveries; then {again}",
            tuple(commands),
            count=hole.count,
            detail=_detail(hole),
        )
    if rest := holes[_SHOWN:]:
        many = sum(hole.count for hole in rest)
        yield AuditFinding(
            SURE,
            AuditLevel.LOST,
            f"{format_plural(many, 'message')} in {format_plural(len(rest), 'more hole')}",
            "`--json` lists them all",
            count=many,
            detail={"holes": [_detail(hole) for hole in rest]},
        )


def _tell_unsure(
    name: str, holes: list[SequenceHole], bounds: AuditOptions, stream: str
) -> AuditFinding:
    many = format_plural(sum(hole.count for hole in holes), "message")
    level, found, mend = UNSURE[name]
    if name == "not-settled":
        waits = format_duration(bounds.waits.total_seconds())
        found, mend = f"{found} {waits} ago", f"{mend} {waits}"
    again = (f"backlogctl audit sequence {stream}",) if name == "not-settled" else ()
    detail = {"holes": [_detail(hole) for hole in holes]}
    return AuditFinding(name, level, f"{many} {found}", mend, again, detail=detail)


def _describe(hole: SequenceHole) -> str:
    places = f"{hole.first:,}" if hole.count == 1 else f"{hole.first:,} to {hole.last:,}"
    return (
        f"{format_plural(hole.count, 'message')} (sequence {places}) of producer "
        f"{hole.id.producer}, epoch {hole.id.epoch}, for partition {hole.id.partition}"
    )


def _date(hole: SequenceHole) -> str:
    before = None if hole.before is None else hole.before.at_ms
    if before is None or hole.after.at_ms is None:
        return ""
    return f"; its neighbours are of {_write(before)} and {_write(hole.after.at_ms)}"


def _write(at_ms: int) -> str:
    return format_moment(read_millis(at_ms))


def _detail(hole: SequenceHole) -> dict[str, Any]:
    return {
        "partition": hole.id.partition,
        "producer": hole.id.producer,
        "epoch": hole.id.epoch,
        "first": hole.first,
        "last": hole.last,
        "before_offset": None if hole.before is None else hole.before.offset,
        "before_ms": None if hole.before is None else hole.before.at_ms,
        "after_offset": hole.after.offset,
        "after_ms": hole.after.at_ms,
    }


def _list_figures(found: SequenceAudit) -> dict[str, int | None]:
    counts = found.counts
    return {
        "messages": counts.read,
        "stamped": counts.stamped,
        "unreadable": counts.unreadable,
        "put_back": counts.put_back,
        "misplaced": counts.misplaced,
        "foreign": counts.foreign,
        "producers": len({chain.id.producer for chain in found.chains}),
        "epochs": len({chain.id[1:] for chain in found.chains}),
        "repeats": sum(chain.repeats for chain in found.chains),
        "reported": found.reported,
        "begun_before": found.heads,
    }


def _list_producers(found: SequenceAudit) -> list[dict[str, Any]]:
    return [
        {
            **to_document(chain.id, "producer", "epoch", "partition"),
            **to_document(chain, "messages", "repeats", "first", "last", "first_ms", "last_ms"),
            "closed": chain.is_closed,
        }
        for chain in found.chains
    ]
