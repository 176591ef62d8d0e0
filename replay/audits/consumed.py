"""`audit consumed`: messages that were committed, and that the consumer's own table lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backlogctl.clock import format_time, read_millis
from backlogctl.config import Consumed, Stream
from backlogctl.errors import UsageError
from backlogctl.formats import format_duration, format_moment, format_plural
from backlogctl.replay.audits.audit import (
    Audit,
    AuditFinding,
    AuditLevel,
    AuditOptions,
    AuditOutcome,
    Say,
    open_folder,
    reading_topic,
    start_spark,
)
from backlogctl.replay.audits.carrying import make_unprocessed
from backlogctl.replay.audits.span import GroupSnapshot, look_at_group
from backlogctl.replay.engine.kind import Workspace
from backlogctl.values import Cause, Gap, GapState, OffsetRange

if TYPE_CHECKING:
    from backlogctl.spark_backfill.audits.consumed import ConsumedAudit, UnhandledRange

CLAIMS = (
    "It finds messages that were committed and whose identity is not in the consumer's table. A "
    "consumer that leaves messages out on purpose looks the same, and so do rows that were removed "
    "from the table. Where keys repeat, only a key that is wholly absent is seen."
)
_SHOWN = 20


class ConsumedAuditing(Audit):
    """By Spark: the topic below the group's committed offsets against the consumer's table."""

    name = "consumed"
    summary = "Find messages that were committed and are not in the consumer's own table."

    def look(
        self, workspace: Workspace, stream: Stream, bounds: AuditOptions, say: Say
    ) -> AuditOutcome:
        """Reads the offsets, then the table, then the messages.

        Raises:
            UsageError: the stream has no `source.consumed`.
            ConfigurationError, SourceError: there is no such table, or it could not be read.
            KafkaFailure: the topic could not be read in full.
        """
        consumed = _require_table(stream)
        from backlogctl.spark_backfill.spark.kafka_options import make_java_options

        make_java_options(workspace.properties(stream))  # refuses now what Spark could not use
        say("looking at the topic and the group")
        look = look_at_group(workspace, stream, bounds)
        found = _compare(workspace, stream, consumed, bounds, look, say)
        teller = _Teller(stream, f"table {consumed.database}.{consumed.table}", bounds, look)
        not_judged = teller.count_not_judged(found)
        return AuditOutcome(
            figures={**asdict(found.counts), "not_judged": not_judged},
            findings=teller.judge(found),
            claims=f"{_say_not_judged(not_judged)}. {CLAIMS}" if not_judged else CLAIMS,
            tables={"partitions": _list_partitions(look)},
            losses=teller.make_losses(found),
            answered=teller.find_answered(found, workspace.ledger.gaps.list(stream.name)),
        )


def _require_table(stream: Stream) -> Consumed:
    if stream.source is None or stream.source.consumed is None:
        at = f"streams.{stream.name}.source"
        first = "" if stream.source is not None else f"describe the source table in `{at}`, then "
        raise UsageError(
            "what its consumer handled is not known: no table of it is configured",
            subject=f"stream {stream.name}",
            hint=f"{first}add `{at}.consumed` with `database`, `table` and `column`: the table in "
            "which the consumer notes the identity of each message that it handled",
        )
    return stream.source.consumed


def _compare(
    workspace: Workspace,
    stream: Stream,
    consumed: Consumed,
    bounds: AuditOptions,
    look: GroupSnapshot,
    say: Say,
) -> ConsumedAudit:
    from backlogctl.spark_backfill.audits.consumed import (
        ConsumedScope,
        audit_consumed,
        read_consumed,
    )
    from backlogctl.spark_backfill.existing.messages import read_log

    config, properties = workspace.config, workspace.properties(stream)
    assert stream.source is not None
    say("starting Spark")
    spark = start_spark(workspace, stream, ConsumedAuditing.name)
    with open_folder(config) as work:
        say(f"reading table {consumed.table}")
        keys = read_consumed(spark, config.sources, consumed, stream.name, work / "consumed")
        say(f"reading {format_plural(sum(r.count for r in look.below), 'offset')}")
        messages, later = (
            read_log(spark, properties, stream.topic, ranges) for ranges in (look.below, look.ahead)
        )
        scope = ConsumedScope(
            topic_id=look.span.topic.topic_id,
            header=stream.source.identity.header,
            settled=look.settled,
            since_ms=_to_ms(bounds.since),
            until_ms=_to_ms(bounds.until),
            waived=_list_waived(workspace, stream, look.span.topic.topic_id),
        )
        with reading_topic(workspace, stream, "compare the topic with the consumer's table"):
            return audit_consumed(messages, later, keys, scope)


def _list_waived(workspace: Workspace, stream: Stream, topic_id: str) -> tuple[OffsetRange, ...]:
    return tuple(
        OffsetRange(gap.partition, gap.start, gap.end)
        for gap in workspace.ledger.gaps.list_lost(stream.name)
        if gap.state is GapState.WAIVED
        and (gap.group, gap.topic_id) == (stream.group, topic_id)
        and gap.start is not None
        and gap.end is not None
    )


@dataclass(frozen=True, slots=True)
class _Teller:
    """Judges what was found, in words."""

    stream: Stream
    table: str
    bounds: AuditOptions
    look: GroupSnapshot

    def judge(self, found: ConsumedAudit) -> Iterator[AuditFinding]:
        counts = found.counts
        if all(at is None for at in self.look.committed.values()):
            yield AuditFinding(
                "nothing-committed",
                AuditLevel.UNKNOWN,
                f"group {self.stream.group} has committed nothing on {self.stream.topic}",
                "look at its name in the configuration, and whether its consumers commit",
                (f"backlogctl status {self.stream.name}",),
            )
        # Said by `--since`: from then on the table is complete.
        is_bounded = self.bounds.since is not None
        if counts.unhandled and not counts.handled and not is_bounded:
            yield self._tell_no_match(found)
        else:
            lost = self.list_lost(found)
            many = counts.unhandled if is_bounded else counts.unhandled - counts.older
            if many:
                yield self._tell_lost(lost, many)
            if counts.older and not is_bounded:
                yield self._tell_older(found)
        if not found.is_whole:
            yield AuditFinding(
                "too-many",
                AuditLevel.UNKNOWN,
                "there are more ranges of such messages than can be listed; the count is of all",
                "look at less at once, with --since and --until",
            )
        yield from self._tell_unsure(found)

    def list_lost(self, found: ConsumedAudit) -> list[UnhandledRange]:
        """Those that were never handled, for all that is known."""
        is_bounded = self.bounds.since is not None
        if not found.counts.handled and not is_bounded:
            return []
        return [one for one in found.ranges if is_bounded or not one.is_older]

    def make_losses(self, found: ConsumedAudit) -> tuple[Gap, ...]:
        """As gaps; none of a compacted topic, where nobody could put them back."""
        if self.look.span.is_compacted:
            return ()
        return tuple(
            make_unprocessed(
                self.stream,
                self.look.span.topic.topic_id,
                OffsetRange(one.partition, one.first, one.last + 1),
                (one.first_ms, one.last_ms),
            )
            for one in self.list_lost(found)
        )

    def find_answered(self, found: ConsumedAudit, known: Iterable[Gap]) -> dict[str, str]:
        """Open gaps whose messages were all handled since; none where some may still be on their
        way, or only a part was looked at."""
        counts, bounds = found.counts, self.bounds
        if counts.not_settled or counts.coming_again or not (counts.handled and found.is_whole):
            return {}
        if bounds.since is not None or bounds.until is not None:
            return {}
        return {
            gap.id: "handled since, or a newer copy of it is on record instead"
            for gap in known
            if (gap.cause, gap.state) == (Cause.UNPROCESSED, GapState.OPEN)
            and gap.topic_id == self.look.span.topic.topic_id
            and gap.group == self.stream.group
            and any(_is_within(gap, item) for item in self.look.below)
            and not any(_overlaps(gap, one) for one in found.ranges)
        }

    def _tell_lost(self, ranges: Sequence[UnhandledRange], many: int) -> AuditFinding:
        mend = (
            "unless the consumer leaves such messages out on purpose, or their rows were removed, "
            "it commits before it has handled them; once that is mended, put them back"
        )
        if self.look.span.is_compacted:
            mend = (
                "the topic is compacted, where an old message must not come after a newer one: "
                "handle them by hand, or have their producer send the newest state"
            )
        return AuditFinding(
            "unprocessed",
            AuditLevel.LOST,
            f"{_say_many(many)} committed and {'is' if many == 1 else 'are'} not in {self.table}: "
            f"{_describe(ranges)}",
            mend,
            count=many,
            detail=_detail(ranges),
        )

    def _tell_older(self, found: ConsumedAudit) -> AuditFinding:
        ranges = [one for one in found.ranges if one.is_older]
        many = found.counts.older
        return AuditFinding(
            "older-than-the-table",
            AuditLevel.SUSPECT,
            f"{_say_many(many)} committed, not in {self.table}, and older than any message that it "
            f"names: {_describe(ranges)}. They may have been handled before the table or the group "
            "began, or their rows were removed",
            "if the table goes back further, say since when",
            (self._since(ranges),),
            detail=_detail(ranges),
        )

    def _tell_no_match(self, found: ConsumedAudit) -> AuditFinding:
        many = found.counts.unhandled
        return AuditFinding(
            "no-match",
            AuditLevel.SUSPECT,
            f"{_say_many(many)} committed, and {self.table} has the identity of none",
            "see whether `source.consumed` names the right table and column, and whether it holds "
            "what `source.identity.message` says; if it does, say since when it is complete",
            (self._since(found.ranges),),
            detail=_detail(found.ranges),
        )

    def _since(self, ranges: Sequence[UnhandledRange]) -> str:
        times = [one.first_ms for one in ranges if one.first_ms is not None]
        begin = read_millis(min(times)) if times else None
        at = "TIME" if begin is None else format_time(begin)
        return f"backlogctl audit consumed {self.stream.name} --since {at}"

    def count_not_judged(self, found: ConsumedAudit) -> int:
        """Handled messages of which one row may hide another; a header names each message."""
        assert self.stream.source is not None
        return found.counts.repeated if self.stream.source.identity.header is None else 0

    def _tell_unsure(self, found: ConsumedAudit) -> Iterator[AuditFinding]:
        counts, waits = found.counts, format_duration(self.bounds.waits.total_seconds())
        again = (f"backlogctl audit consumed {self.stream.name}",)
        if counts.not_settled:
            yield AuditFinding(
                "not-settled",
                AuditLevel.UNKNOWN,
                f"{format_plural(counts.not_settled, 'message')} of those committed less than "
                f"{waits} ago, for all that samples show, cannot be found in "
                f"{self.table}; they may still be handled",
                f"look again in {waits}",
                again,
            )
        if self.look.hidden:
            places = ", ".join(f"{r.partition}:{r.start}-{r.end - 1}" for r in self.look.hidden)
            yield AuditFinding(
                "open-transaction",
                AuditLevel.UNKNOWN,
                f"offsets {places} were committed; an open transaction hides what is there",
                "look again when it has ended",
                again,
                detail={"offsets": [[r.partition, r.start, r.end] for r in self.look.hidden]},
            )
        if many := self.count_not_judged(found):
            yield AuditFinding(
                "repeated-keys",
                # It alarms nobody (alert and nightly event take lost and suspect); NOTED would
                # let the audit end as clean, of messages that it never judged.
                AuditLevel.UNKNOWN,
                f"{_say_not_judged(many)}: {self.table} has the key, and does not say of which of "
                "its messages",
                "where each message has an id in a header, identify it by that "
                "(`source.identity.message`)",
            )
        if counts.coming_again:
            yield AuditFinding(
                "coming-again",
                AuditLevel.NOTED,
                f"{format_plural(counts.coming_again, 'message')} not in {self.table} will come "
                "again: the group is still to read a message of the same identity",
                "look again when it has",
                again,
            )


def _say_not_judged(many: int) -> str:
    return (
        f"{format_plural(many, 'message')} share{'s' if many == 1 else ''} a key with another one "
        f"and {'was' if many == 1 else 'were'} not judged"
    )


def _is_within(gap: Gap, item: OffsetRange) -> bool:
    start, end = gap.start, gap.end
    if start is None or end is None or gap.partition != item.partition:
        return False
    return item.start <= start and end <= item.end


def _overlaps(gap: Gap, one: UnhandledRange) -> bool:
    start, end = gap.start, gap.end
    if start is None or end is None or gap.partition != one.partition:
        return False
    return start <= one.last and one.first < end


def _say_many(many: int) -> str:
    return f"{format_plural(many, 'message')} {'was' if many == 1 else 'were'}"


def _describe(ranges: Sequence[UnhandledRange]) -> str:
    """Where they are, and of what time."""
    places = ", ".join(one.place for one in ranges[:_SHOWN])
    if (rest := len(ranges) - _SHOWN) > 0:
        places += f" and {format_plural(rest, 'more range')}"
    firsts = [one.first_ms for one in ranges if one.first_ms is not None]
    lasts = [one.last_ms for one in ranges if one.last_ms is not None]
    if not firsts or not lasts:
        return f"offsets {places}, of unknown time"
    first, last = (format_moment(read_millis(at)) for at in (min(firsts), max(lasts)))
    return f"offsets {places}, of {first}" + (f" to {last}" if last != first else "")


def _detail(ranges: Sequence[UnhandledRange]) -> dict[str, Any]:
    return {"ranges": [asdict(one) for one in ranges]}


def _to_ms(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000)


def _list_partitions(look: GroupSnapshot) -> list[dict[str, Any]]:
    return [
        {
            **asdict(item),
            "committed": look.committed.get(item.partition),
            "settled": look.settled.get(item.partition),
        }
        for item in look.below
    ]
