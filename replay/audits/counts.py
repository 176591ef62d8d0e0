"""`audit counts`: rows, messages and handled rows side by side, in windows of event time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backlogctl.clock import Deadline, format_time, utc_now
from backlogctl.config import Stream
from backlogctl.formats import format_duration, format_moment, format_plural
from backlogctl.monitoring.offsets.observation import observe_stream
from backlogctl.replay.audits.audit import (
    Audit,
    AuditFinding,
    AuditLevel,
    AuditOptions,
    AuditOutcome,
    Say,
    start_spark,
)
from backlogctl.replay.audits.tiers import (
    Counting,
    RowCount,
    count_again,
    list_archives,
    require_source,
)
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.observe.stream import LOOK_SECONDS
from backlogctl.values import to_document

if TYPE_CHECKING:
    from backlogctl.spark_backfill.audits.counts import CountsAudit

CLAIMS = (
    "These are counts by the times of the rows: they show where to look, and prove no loss. "
    "`audit sequence` and `audit consumed` prove more."
)
_SHOWN = 5


class CountsAuditing(Audit):
    """By Spark, over the table, the topic with its archives, and the consumer's own table."""

    name = "counts"
    summary = "Compare counts of rows, messages and handled rows in windows of event time."

    def look(
        self, workspace: Workspace, stream: Stream, bounds: AuditOptions, say: Say
    ) -> AuditOutcome:
        """Reads the group's offsets, then the topic's ends, then the tables, and the topic's ends
        once more where rows seem to have no message: what is handled or sent meanwhile looks like
        no loss.

        Raises:
            UsageError: the stream has no source table, or --until is not after --since.
        """
        from backlogctl.spark_backfill.sources.reflection import require_tables
        from backlogctl.spark_backfill.spark.kafka_options import make_java_options

        began_at = utc_now()
        source = require_source(stream, bounds)
        properties = workspace.properties(stream)
        make_java_options(properties)  # refuses now what Spark could not use
        say("looking at the topic and the tables")
        require_tables(workspace.config.sources, stream)
        sample = observe_stream(workspace.ledger, stream, properties, Deadline(LOOK_SECONDS)).sample
        say("starting Spark")
        # The archives are looked up once more with what is counted; here, only where they lie.
        archives = list_archives(workspace, sample.topic_id)
        spark = start_spark(workspace, stream, self.name, archives)
        counting = Counting(workspace, stream, source, bounds, began_at, sample, spark, say)
        counted = count_again(counting)
        return AuditOutcome(
            figures=_list_figures(counted, has_consumed=source.consumed is not None),
            findings=_judge(counting, counted),
            claims=CLAIMS,
            tables={"windows": _list_windows(counted)},
        )


@dataclass(frozen=True, slots=True)
class _Difference:
    """Words for one difference between two tiers."""

    check: str
    level: AuditLevel
    count: str
    one: str
    many: str
    mend: str
    commands: tuple[str, ...]


def _list_differences(counting: Counting, counted: RowCount) -> Iterator[_Difference]:
    name, source = counting.stream.name, counting.source
    level = AuditLevel.SUSPECT
    mend = (
        "each may never have been sent, or its transaction was aborted: look at its producer. "
        "Where that numbers, the first command finds what a plan puts back; else send the rows of "
        "these times again from where they came, with their own ids, and count again by the second"
    )
    if source.mutable and not counted.judged.is_whole:
        mend += "; or it was sent long ago, has expired, and the row has changed since"
    if counted.span.is_compacted and source.identity.header is not None:
        level = AuditLevel.UNKNOWN
        mend = "the topic is compacted: a newer message of the same key may have replaced it"
    yield _Difference(
        "rows-without-messages",
        level,
        "rows_without_message",
        "row has no message in the topic or an archive",
        "rows have no message in the topic or an archive",
        mend,
        (f"backlogctl audit sequence {name}", *_count_again(name, counted)),
    )
    yield _Difference(
        "messages-not-handled",
        AuditLevel.SUSPECT,
        "not_handled",
        "message that the group has read is not in the consumer's own table",
        "messages that the group has read are not in the consumer's own table",
        "the consumer may have committed without handling it, or its table does not keep rows so "
        "long",
        (f"backlogctl audit consumed {name}",),
    )
    yield _Difference(
        "messages-without-rows",
        AuditLevel.NOTED,
        "messages_without_row",
        "message has no row in the table",
        "messages have no row in the table",
        "its row was deleted or is much older, its transaction was rolled back after it was sent, "
        "or something else writes to the topic",
        (),
    )


def _count_again(name: str, counted: RowCount) -> Iterator[str]:
    """The times of the rows without a message alone."""
    hit = [w for w in counted.found.windows if w.rows_without_message] if counted.found else []
    if hit:
        since, until = format_time(hit[0].start), format_time(hit[-1].end)
        yield f"backlogctl audit counts {name} --since {since} --until {until}"


def _judge(counting: Counting, counted: RowCount) -> Iterator[AuditFinding]:
    judged, found, name = counted.judged, counted.found, counting.stream.name
    if found is None or judged.begin is None or counted.width is None:
        yield _tell_nothing(counting, counted)
        return
    yield AuditFinding(
        "span",
        AuditLevel.NOTED,
        f"rows of {format_moment(judged.begin)} to {format_moment(judged.end)} are judged, in "
        f"{format_plural(len(found.windows), 'window')} of "
        f"{format_duration(counted.width.total_seconds())}"
        + (f": {judged.why}" if judged.why else ""),
        detail={"begin": format_time(judged.begin), "end": format_time(judged.end)},
    )
    if counted.zone:
        # Its counts would be of other times than they say.
        yield AuditFinding(
            "zone", AuditLevel.UNKNOWN, counted.zone, "set it right, and count again"
        )
        return
    for difference in _list_differences(counting, counted):
        yield from _tell(difference, found)
    if waiting := sum(window.archived for window in found.windows):
        yield AuditFinding(
            "in-an-archive",
            AuditLevel.NOTED,
            f"of {format_plural(waiting, 'row')} the message waits in the archive of an offload",
            "no loss: a redrive puts back what waits in archives",
            (f"backlogctl gaps {name}",),
        )
    handled = sum(w.rows - w.messages - w.archived - w.rows_without_message for w in found.windows)
    if handled:
        yield AuditFinding(
            "handled-without-messages",
            AuditLevel.NOTED,
            f"{format_plural(handled, 'row')} without a message in the topic "
            f"{'was' if handled == 1 else 'were'} handled all the same",
            "compaction may have taken the message, or the consumer gets rows in another way",
        )
    if found.unplaced_rows:
        yield AuditFinding(
            "unplaced-rows",
            AuditLevel.UNKNOWN,
            f"{format_plural(found.unplaced_rows, 'row')} without a message cannot be compared: "
            "the time or the identity is NULL or cannot be read",
            f"look at `{counting.source.time_column}` in {counting.source.table}",
        )
    if found.without_identity:
        yield AuditFinding(
            "without-identity",
            AuditLevel.NOTED,
            f"{format_plural(found.without_identity, 'message')} without an identity "
            f"(`{counting.source.identity.message}`): whose they are is not known",
            "rows without messages may be theirs",
        )
    if counting.source.consumed is not None and not any(
        part.committed is not None for part in counting.sample.partitions
    ):
        yield AuditFinding(
            "no-commits",
            AuditLevel.UNKNOWN,
            f"the group {counting.stream.group} has committed no offsets: whether messages were "
            "handled is not judged",
            "is it the right group, and has it run?",
            (f"backlogctl status {name}",),
        )


def _tell_nothing(counting: Counting, counted: RowCount) -> AuditFinding:
    judged = counted.judged
    found = f"nothing can be judged: {judged.why}"
    if judged.begin is not None:
        found = (
            f"nothing can be judged: of rows before {format_moment(judged.begin)} the topic may "
            f"have lost messages, and from {format_moment(judged.end)} on they may still come"
        )
        found += f" ({judged.why})" if judged.why else ""
    return AuditFinding(
        "nothing-judged",
        AuditLevel.UNKNOWN,
        found,
        f"look again in {format_duration(counting.bounds.waits.total_seconds())}, or at other "
        "times with --since and --until",
    )


def _tell(difference: _Difference, found: CountsAudit) -> Iterator[AuditFinding]:
    from backlogctl.spark_backfill.audits.counts import list_stretches

    counted = [(w, getattr(w, difference.count) or 0) for w in found.windows]
    many = sum(count for _, count in counted)
    if not many:
        return
    ranked = sorted(list_stretches(found.windows, difference.count), key=lambda one: -one.count)
    shown = [
        f"{one.count:,} of {format_moment(one.start)} to {format_moment(one.end)}"
        for one in ranked[:_SHOWN]
    ]
    if rest := ranked[_SHOWN:]:
        others = sum(one.count for one in rest)
        shown.append(f"{others:,} at {format_plural(len(rest), 'other time')}")
    yield AuditFinding(
        difference.check,
        difference.level,
        f"{many:,} {difference.one if many == 1 else difference.many}: {', '.join(shown)}",
        difference.mend,
        difference.commands,
        count=many,
        detail={
            "windows": [
                {"start": format_time(w.start), "end": format_time(w.end), "count": count}
                for w, count in counted
                if count
            ]
        },
    )


def _list_figures(counted: RowCount, *, has_consumed: bool) -> dict[str, int | None]:
    found = counted.found
    if found is None or counted.zone:
        names = ("rows", "messages", "archived", *(("handled",) if has_consumed else ()))
        return dict.fromkeys(names)
    figures: dict[str, int | None] = {
        "rows": sum(window.rows for window in found.windows),
        "messages": sum(window.messages for window in found.windows),
        "archived": sum(window.archived for window in found.windows),
    }
    if has_consumed:
        figures["handled"] = sum(window.handled or 0 for window in found.windows)
    names = ("repeats", "put_back", "unknown_rows", "without_identity")
    return {**figures, **to_document(found, *names)}


def _list_windows(counted: RowCount) -> list[dict[str, Any]]:
    if counted.found is None or counted.zone:
        return []
    names = ("start", "end", "rows", "messages", "archived", "handled")
    differences = ("rows_without_message", "messages_without_row", "not_handled")
    return [to_document(window, *names, *differences) for window in counted.found.windows]
