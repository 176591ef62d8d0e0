"""What `audit counts` reads, in which order, and which event times it can judge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from backlogctl.clock import format_time
from backlogctl.config import Stream, StreamSource
from backlogctl.config.streams import MessageSection, Value
from backlogctl.errors import KafkaFailure, UsageError
from backlogctl.formats import format_plural
from backlogctl.ledger.archives import ArchiveRecord
from backlogctl.replay.audits.audit import AuditOptions, Say, open_folder, reading_topic
from backlogctl.replay.audits.span import Span, read_span
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.injection.ledger import intersect_ranges, subtract_ranges
from backlogctl.values import OffsetRange, Sample

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlogctl.spark_backfill.audits.counts import CountsAudit
    from backlogctl.spark_backfill.messages.candidates import SourceAccess
    from backlogctl.spark_backfill.messages.rules import MessageRules
    from backlogctl.spark_backfill.messages.windows import Bounds


# What offloads moved out of a topic: an audit reads it beside what the topic still has.

_NO_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """Ranges to read of one archive."""

    record: ArchiveRecord
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class ArchivedCounts:
    """What the archives of a topic have.

    Attributes:
        parts: newest archive first; each offset once, and none that the topic still has.
        begins: by partition, from which offset on the topic and the archives that join on to it
            have all there was.
    """

    parts: tuple[ArchivedPart, ...]
    begins: Mapping[int, int]

    def list_joined(self, offsets: int | None = None) -> tuple[ArchivedPart, ...]:
        """Without what lies before a stretch that is gone; of each partition at most its first
        `offsets` offsets."""
        kept = [
            OffsetRange(number, begin, _NO_END if offsets is None else begin + offsets)
            for number, begin in self.begins.items()
        ]
        cut = [(part.record, intersect_ranges(part.ranges, kept)) for part in self.parts]
        return tuple(ArchivedPart(record, ranges) for record, ranges in cut if ranges)


def list_archives(workspace: Workspace, topic_id: str) -> tuple[ArchiveRecord, ...]:
    """Of this topic, newest first.

    Read the log starts before: an offload writes its archive down before it deletes.
    """
    records = workspace.ledger.archives.list(with_purged=False)
    return tuple(one for one in reversed(records) if one.topic_id == topic_id)


def find_archived(records: Iterable[ArchiveRecord], lows: Mapping[int, int]) -> ArchivedCounts:
    """What archives have that a topic lacks.

    Args:
        records: newest first.
        lows: log start offsets; the topic has all from there on.
    """
    taken = [OffsetRange(number, low, _NO_END) for number, low in lows.items()]
    parts = []
    for record in records:
        ranges = [OffsetRange(item.partition, item.start, item.end) for item in record.ranges]
        if left := subtract_ranges(ranges, taken):
            parts.append(ArchivedPart(record, left))
            taken += left
    begins = dict(lows)
    for item in sorted(taken, key=lambda one: -one.start):
        if item.end == begins.get(item.partition):
            begins[item.partition] = item.start
    return ArchivedCounts(tuple(parts), begins)


def read_parts(spark: SparkSession, parts: Iterable[ArchivedPart]) -> DataFrame:
    """Their messages, in the columns of `ORIGINALS_SCHEMA` and in no order.

    Raises:
        StagingError: an archive is not there, or not the one that is on record.
    """
    from backlogctl.spark_backfill.archive.reading import read_archive
    from backlogctl.spark_backfill.archive.verification import read_archive_manifest
    from backlogctl.spark_backfill.existing.messages import ORIGINALS_SCHEMA, as_originals
    from backlogctl.spark_backfill.spark.frames import make_empty

    messages = make_empty(spark, ORIGINALS_SCHEMA)
    for part in parts:
        at = part.record.location
        manifest = read_archive_manifest(spark, at, part.record.manifest_sha256)
        messages = messages.unionAll(as_originals(read_archive(spark, at, manifest, part.ranges)))
    return messages


_TRIES = 3
# Of each partition so many offsets are looked at for what its oldest messages are.
_HEAD_OFFSETS = 1_000
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Counting:
    """What is counted, and with what."""

    workspace: Workspace
    stream: Stream
    source: StreamSource
    bounds: AuditOptions
    began_at: datetime
    sample: Sample
    spark: SparkSession
    say: Say


@dataclass(frozen=True, slots=True)
class Judged:
    """The event times `[begin, end)` that can be judged.

    Attributes:
        begin: the topic still holds the messages of all rows from then on; None is unknown.
        why: what decides on the beginning, as a sentence.
        is_whole: whether the topic still has its first messages.
    """

    begin: datetime | None
    end: datetime
    why: str
    is_whole: bool

    @property
    def is_empty(self) -> bool:
        return self.begin is None or self.begin >= self.end


@dataclass(frozen=True, slots=True)
class RowCount:
    """`found` is None where nothing can be judged; `zone` says that rows seem to be read in a wrong
    time zone, "" for no."""

    judged: Judged
    span: Span
    width: timedelta | None = None
    found: CountsAudit | None = None
    zone: str = ""


def require_source(stream: Stream, bounds: AuditOptions) -> StreamSource:
    if stream.source is None:
        raise UsageError(
            "has no source table, so there is nothing to compare its messages with",
            subject=f"stream {stream.name}",
            hint=f"add `streams.{stream.name}.source`, or use `backlogctl audit sequence "
            f"{stream.name}`",
        )
    since, until = bounds.since, bounds.until
    if since is not None and until is not None and until <= since:
        raise UsageError(
            "--until is not after --since",
            subject=f"stream {stream.name}",
            hint="use a later --until, or an earlier --since",
        )
    return stream.source


def count_again(counting: Counting) -> RowCount:
    """Counts; once more where retention moved on while the topic was read."""
    for left in reversed(range(_TRIES)):
        span = _read_span(counting)
        try:
            with reading_topic(counting.workspace, counting.stream, "count rows and messages"):
                return _count(counting, span)
        except KafkaFailure:
            if not left or _read_span(counting).lows == span.lows:
                raise
            counting.say("retention moved on meanwhile: reading again")
    raise AssertionError("the last try returns or raises")


def _read_span(counting: Counting) -> Span:
    """A mutable row may be younger than its message by any time, others hardly."""
    since, source = counting.bounds.since, counting.source
    is_bounded = since is not None and not source.mutable and since - _EPOCH > source.margin
    lower = since - source.margin if is_bounded and since is not None else None
    return read_span(counting.workspace, counting.stream, lower)


def _count(counting: Counting, span: Span) -> RowCount:
    from pyspark.sql import functions as F  # noqa: N812

    from backlogctl.spark_backfill.audits.counts import as_tier, choose_width, count_tiers
    from backlogctl.spark_backfill.existing.messages import read_log
    from backlogctl.spark_backfill.messages.windows import Bounds
    from backlogctl.spark_backfill.proof import suspect_zone
    from backlogctl.spark_backfill.sources.databases import ColumnKind
    from backlogctl.spark_backfill.spark.frames import mark_within

    workspace, stream, source = counting.workspace, counting.stream, counting.source
    archived = find_archived(list_archives(workspace, span.topic.topic_id), span.lows)
    with _open_tables(counting) as (access, rules, consumed):
        is_date = access.table.column(source.time_column).kind is ColumnKind.DATE
        judged = _find_judged(counting, span, archived, is_date=is_date)
        if (begin := judged.begin) is None or judged.is_empty:
            return RowCount(judged, span)
        width = _DAY if is_date else choose_width(begin, judged.end)
        if consumed is not None:
            counting.say(f"reading {consumed.access.table.label}")
            consumed.freeze()
        upper = None if source.mutable else judged.end + source.margin
        lower = begin - source.margin
        rows = _read_rows(access, rules, Bounds(lower, upper)).cache()
        read = [
            OffsetRange(part.partition, 0, part.committed)
            for part in counting.sample.partitions
            if part.committed is not None
        ]
        # Of rows that change, a message may be older than its row by any time.
        parts = [p for p in archived.parts if source.mutable or _is_younger(p.record, lower)]
        handled = None if consumed is None else consumed.collect_keys().toDF("identity")

        def read_messages(ranges: Sequence[OffsetRange]) -> DataFrame:
            log = read_log(counting.spark, workspace.properties(stream), stream.topic, ranges)
            place = {"partition": "source_partition", "offset": "source_offset"}
            log = mark_within(log, read, "is_read", **place)
            return as_tier(log, source.identity.header, F.col("is_read"))

        def count(later: Sequence[OffsetRange] = ()) -> CountsAudit:
            number = sum(item.count for item in (*span.ranges, *later))
            counting.say(f"reading {access.table.label} and {format_plural(number, 'offset')}")
            messages = read_messages(span.ranges)
            if later:
                # Rows of other messages may have come after the table was read.
                known = read_messages(later).join(rows, "identity", "left_semi")
                messages = messages.unionAll(known)
            return count_tiers(
                rows,
                messages,
                handled,
                begin=begin,
                end=judged.end,
                width=width,
                # Not read by the group: an offload moves what is unread.
                archived=as_tier(
                    read_parts(counting.spark, parts), source.identity.header, F.lit(False)
                ),
            )

        try:
            found = count()
            # A row that came late is older than the grace, and its message came meanwhile.
            if any(w.rows_without_message for w in found.windows):
                found = count(subtract_ranges(_read_span(counting).ranges, span.ranges))
        finally:
            rows.unpersist()
        times = [(log_ms, _write(row_ms)) for log_ms, row_ms in found.pairs]
        # Of rows that change, the time is not that of their message.
        zone = "" if source.mutable else suspect_zone(times, rules, access.table)
    return RowCount(judged, span, width, found, zone)


@contextmanager
def _open_tables(counting: Counting) -> Iterator[tuple[SourceAccess, MessageRules, Any]]:
    """The source table with the rules for its times and identities, and the consumer's table."""
    from backlogctl.spark_backfill.evidence.consumed import open_consumed, open_source
    from backlogctl.spark_backfill.messages.rules import DEFAULT_MAX_BYTES, check_rules

    spark, source, config = counting.spark, counting.source, counting.workspace.config
    with ExitStack() as stack:
        access = stack.enter_context(
            open_source(spark, config.sources, counting.stream.name, source)
        )
        rules = check_rules(
            spark,
            _without_contents(counting.stream, source),
            access.table,
            partitions=len(counting.sample.partitions),
            targets=(),
            max_bytes=DEFAULT_MAX_BYTES,
            timezone=access.timezone,
        )
        consumed = None
        if (where := source.consumed) is not None:
            work = stack.enter_context(open_folder(config)) / "consumed"
            consumed = stack.enter_context(
                open_consumed(spark, config.sources, where, counting.stream.name, work)
            )
        yield access, rules, consumed


def _without_contents(stream: Stream, source: StreamSource) -> Stream:
    """Only keys, times and identities are read of the table, not what messages are made of."""
    bare = MessageSection(value=Value(column=source.time_column))
    update = {"message": bare, "order_by": ()}
    return stream.model_copy(update={"source": source.model_copy(update=update)})


def _read_rows(access: SourceAccess, rules: MessageRules, bounds: Bounds) -> DataFrame:
    """identity binary, at_ms long; NULL where it cannot be read exactly."""
    from backlogctl.spark_backfill.messages.candidates import count_rows, read_rows
    from backlogctl.spark_backfill.messages.rules import read_bytes, time_text
    from backlogctl.spark_backfill.messages.windows import filter_times
    from backlogctl.spark_backfill.sources.columns import REASON

    where = filter_times(access.table, rules.source, bounds, access.timezone)
    rows = read_rows(access, rules, where, rows=count_rows(access, where))
    row = rules.source.identity.row
    rows, bytes_of = read_bytes(rows, [row])
    at_ms = f"unix_millis(try_cast({time_text(rules)} AS timestamp))"
    return rows.selectExpr(
        f"CASE WHEN {REASON} IS NULL THEN {bytes_of[row]} END AS identity",
        f"CASE WHEN {REASON} IS NULL THEN {at_ms} END AS at_ms",
    )


def _is_younger(record: ArchiveRecord, than: datetime) -> bool:
    """Whether some of its messages may be."""
    return any(item.last_time is None or item.last_time >= than for item in record.ranges)


def _find_judged(
    counting: Counting, span: Span, archived: ArchivedCounts, *, is_date: bool
) -> Judged:
    """From the time on from which no message is gone, and that the topic has begun by."""
    from backlogctl.spark_backfill.audits.counts import find_heads
    from backlogctl.spark_backfill.existing.messages import read_log

    bounds, properties = counting.bounds, counting.workspace.properties(counting.stream)
    ends = {item.partition: item.end for item in span.ranges}
    beginnings = [
        OffsetRange(number, low, min(ends[number], archived.begins[number] + _HEAD_OFFSETS))
        for number, low in span.lows.items()
    ]
    log = read_log(counting.spark, properties, counting.stream.topic, beginnings)
    offloaded = read_parts(counting.spark, archived.list_joined(_HEAD_OFFSETS))
    first = find_heads(log.unionAll(offloaded))
    heads = {partition: datetime.fromtimestamp(at / 1000, UTC) for partition, at in first.items()}
    last = counting.began_at - bounds.waits
    # A row of a day may be of its last second.
    end = max(min(last, bounds.until or last), _EPOCH + _DAY) - (_DAY if is_date else timedelta(0))
    whole = not any(archived.begins.values())
    gone = _find_gone(counting, span.topic.topic_id, archived.begins)
    begins = [(min(heads.values()), "the topic's first messages are about as old")] if heads else []
    for number, begin_at in archived.begins.items():
        if begin_at:
            # A row may be marked later than its message was written.
            known = [gone[number] + counting.source.drift[1]]
            known += [heads[number] + counting.source.margin] if number in heads else []
            why = (
                f"retention took older messages of partition {number}"
                if begin_at == span.lows[number]
                else f"no archive has older messages of partition {number}"
            )
            begins.append((min(known), why))
    if not begins:
        return Judged(None, end, "the topic holds no messages", whole)
    begin, why = max(begins)
    if bounds.since is not None and bounds.since >= begin:
        begin, why = bounds.since, ""
    return Judged(_cut(begin), _cut(end), why, whole)


def _find_gone(counting: Counting, topic_id: str, begins: Mapping[int, int]) -> dict[int, datetime]:
    """By partition, by when all that lies before its beginning had been written, as samples saw
    it."""
    gone: dict[int, datetime] = {}
    for sample in counting.workspace.ledger.samples.history(counting.stream.name):
        if sample.topic_id == topic_id:
            at = sample.taken_at + timedelta(seconds=sample.took)
            for part in sample.partitions:
                if part.high >= begins.get(part.partition, 0):
                    gone.setdefault(part.partition, at)
    return {number: gone.get(number, counting.began_at) for number in begins}


def _cut(at: datetime) -> datetime:
    """To the millisecond, as Kafka's times are."""
    return at - timedelta(microseconds=at.microsecond % 1000)


def _write(at_ms: int) -> str:
    return format_time(datetime.fromtimestamp(at_ms / 1000, UTC))
