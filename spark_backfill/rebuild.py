"""The plan of a rebuild: which rows were lost, proved, staged and judged (P2)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from backlog.errors import UsageError
from backlog.manifest import Manifest, write_manifest
from backlog.numbers import format_plural
from backlog.progress import Say
from backlog.values import Chunk, OffsetRange
from spark_backfill.archived.choosing import Chosen, choose_archived
from spark_backfill.archived.judging import add_again, add_archived, count_archived
from spark_backfill.archived.opening import OpenArchive, describe_moved, open_archives
from spark_backfill.archived.planning import plan_archived
from spark_backfill.archived.segments import number_segments
from spark_backfill.archived.staging import stage_all
from spark_backfill.evidence import (
    CONSUMED,
    INJECTED,
    LOST,
    OUTSIDE,
    QUARANTINED,
    SURVIVING,
    ConsumedEvidence,
)
from spark_backfill.evidence.zones import explaining
from spark_backfill.finding import MORE_OFTEN, Found, Reading, find_lost
from spark_backfill.full_disk import planning_into
from spark_backfill.guards import (
    check_policy,
    find_basis,
    require_messages,
    warn_about_rows,
    warn_about_rules,
)
from spark_backfill.messages.candidates import SourceAccess
from spark_backfill.messages.rules import DEFAULT_MAX_BYTES, MessageRules, check_rules
from spark_backfill.messages.staging import ChunkLimits
from spark_backfill.opening import open_consumed, open_source
from spark_backfill.phases import PlanLog
from spark_backfill.placing.attribution import fill_needs
from spark_backfill.placing.placement import (
    describe_evidence,
)
from spark_backfill.request import (
    Counts,
    Quarantine,
    RebuildOutcome,
    RebuildRequest,
    Uncertain,
)
from spark_backfill.tally import (
    LabelCounts,
    count_labels,
    write_quarantine,
    write_uncertain,
)
from spark_backfill.verdict import RebuildVerdict, count_expected, count_unsent, judge_plan


def plan_rebuild(
    spark: SparkSession,
    request: RebuildRequest,
    *,
    progress: Say | None = None,
    limits: ChunkLimits | None = None,
) -> RebuildOutcome:
    """Finds the lost rows, rebuilds their messages and stages them. Changes neither Kafka nor
    the source. A `surplus` verdict is returned, not refused: that is for whoever runs the plan.

    Args:
        progress: gets a line before each long part, and one each ten seconds of it.
        limits: how chunks are cut.

    Raises:
        ConfigurationError: a table, column or expression is wrong; nothing was read.
        UsageError: the beginning of the loss is not known.
        Refused: `stale: refuse`, an ambiguous identity, a failed proof, no or too many messages.
        SourceError, KafkaFailure, StagingError: something could not be read or written.
    """
    log = PlanLog(progress or (lambda line: None), spark)
    has_rows = bool(request.gaps) and request.stream.source is not None
    if has_rows or not (request.archived or request.gaps):
        check_policy(request)
    ranges = _find_ranges(request)
    with planning_into(str(request.directory)), log.telling():
        with log.timed("archives", "verifying the archive") if request.archives else nullcontext():
            archives = open_archives(spark, request.archives)
        log.warnings += describe_moved(archives, request.target_topic, request.target_partitions)
        if has_rows:
            return _plan_rows(spark, request, ranges, archives, log, limits)
        staged = plan_archived(spark, request, ranges, archives, log, limits)
        return _finish_archived(request, staged, log)


def _plan_rows(
    spark: SparkSession,
    request: RebuildRequest,
    ranges: tuple[OffsetRange, ...],
    archives: tuple[OpenArchive, ...],
    log: PlanLog,
    limits: ChunkLimits | None,
) -> RebuildOutcome:
    """Rows of the table, and beside them what archives hold."""
    with _open_source(spark, request) as (access, rules, consumed):
        warn_about_rules(request, access, rules, log.warnings)
        reading = Reading(spark, request, ranges, access, rules, consumed, log, archives)
        found = find_lost(reading, 1)
        factor = 1
        while found.is_short_of_rows:
            factor *= MORE_OFTEN
            log.warnings.append(
                f"a loss is older than the rows that were read: {factor} times as many"
            )
            found = find_lost(reading, factor)
        stretches = found.injected.list_stretches()
        expected = count_unsent(request.gaps) or count_expected(ranges, stretches)
        decided, counts = _fill_gaps(found.placement.decided, expected, found.young_after)
        warn_about_rows(counts, found.proof, found.offsets, rules, log.warnings)
        basis = find_basis(
            request, rules, ranges, found.spans, found.holes, counts, found.proof, found.placement
        )
        segments = number_segments((r for a in archives for r in a.manifest.ranges), ranges)
        archived = choose_archived(
            spark, request, archives, found.injected, segments, found.work, found.candidates
        )
        verdict = judge_plan(expected, add_again(counts.to_tally(), archived.again), basis)
        verdict = add_archived(verdict, archived)
        with explaining(found.zone, log.warnings):
            require_messages(
                request, rules, counts, verdict, found.proof, found.spans, archived.count
            )
        staged = counts.total(LOST) + archived.count
        with log.timed("staging", f"staging {format_plural(staged, 'message')}"):
            lost_from = F.coalesce("home", "counted", "slot").alias("lost_from")
            lost = decided.where(F.col("label") == LOST).select("message_id", "slot", lost_from)
            rows = (found.candidates, lost, rules, counts.slots)
            chunks, slots = stage_all(request, archived, segments, limits, rows)
            keys = rules.key_names()
            rejected = sum(item.quarantined for item in archived.taken.values())
            quarantine = write_quarantine(
                decided,
                keys,
                request.directory,
                counts.total(QUARANTINED) + rejected,
                archived.rejected,
            )
            uncertain = write_uncertain(
                decided, keys, request.directory, sum(counts.uncertain.values())
            )
        result = _Result(
            request, rules, found, counts, quarantine, verdict, uncertain, archived, slots
        )
        return _finish(result, chunks, log)


def _fill_gaps(
    decided: DataFrame, expected: Mapping[int, int], young_after: str
) -> tuple[DataFrame, LabelCounts]:
    """Gives messages without a key to the partitions that lack some, and counts all labels."""
    counts = count_labels(decided, young_after)
    if not counts.without_home:
        return decided, counts
    keyed = counts.placed_by_key
    needs = {number: max(0, lost - keyed.get(number, 0)) for number, lost in expected.items()}
    filled = fill_needs(decided, needs)
    return filled, count_labels(filled, young_after)


@dataclass(frozen=True, slots=True)
class _Result:
    request: RebuildRequest
    rules: MessageRules
    found: Found
    labels: LabelCounts
    quarantine: Quarantine
    verdict: RebuildVerdict
    uncertain: Uncertain
    archived: Chosen
    slots: Mapping[int, int]

    def counts(self) -> Counts:
        partitions = self.verdict.partitions
        rows = Counts(
            expected=sum(item.expected for item in partitions),
            candidates=self.labels.candidates,
            duplicates=self.labels.duplicates,
            surviving=self.labels.total(SURVIVING),
            consumed=self.labels.total(CONSUMED),
            already_injected=self.labels.total(INJECTED),
            outside=self.labels.total(OUTSIDE),
            rebuilt=self.labels.total(LOST),
            collapsed=sum(item.collapsed for item in partitions),
            quarantined=self.labels.total(QUARANTINED),
            surplus=sum(item.surplus for item in partitions),
            shortfall=sum(item.shortfall for item in partitions),
        )
        return count_archived(rows, self.archived)


def _finish(result: _Result, chunks: tuple[Chunk, ...], log: PlanLog) -> RebuildOutcome:
    """Writes the manifest, the last file of a plan, and throws the working files away."""
    request, verdict, counts = result.request, result.verdict, result.counts()
    order = result.found.placement.order
    origin: dict[str, Any] = {
        **request.origin,
        **_describe_gaps(request),
        "bounds": list(result.found.bounds.to_text()),
        "partitions": request.partitions,
        "log_start": {str(p): at for p, at in sorted(result.found.offsets.starts.items())},
        "log_end": {str(p): at for p, at in sorted(result.found.offsets.ends.items())},
        "allow": sorted(request.allow),
        "verdict": verdict.kind,
        "fidelity": result.rules.fidelity,
    }
    manifest = Manifest(request.recovery_id, request.target_topic, chunks, origin)
    sha256 = write_manifest(request.directory, manifest)
    shutil.rmtree(result.found.work, ignore_errors=True)
    return RebuildOutcome(
        recovery_id=request.recovery_id,
        verdict=verdict.kind,
        reasons=verdict.reasons,
        counts=counts,
        partitions=verdict.partitions,
        proof=result.found.proof,
        quarantine=result.quarantine,
        warnings=tuple(log.warnings),
        manifest_sha256=sha256,
        chunks=len(chunks),
        bytes=sum(chunk.bytes for chunk in chunks),
        fidelity=result.rules.fidelity,
        bounds=result.found.bounds.to_text(),
        log_start=dict(result.found.offsets.starts),
        log_end=dict(result.found.offsets.ends),
        seconds=log.seconds,
        evidence=describe_evidence(result.found.placement),
        uncertain=result.uncertain,
        displacement=None if order is None else order.displacement,
        slots=tuple(sorted(result.slots)),
    )


def _finish_archived(
    request: RebuildRequest, staged: tuple[RebuildOutcome, tuple[Chunk, ...]], log: PlanLog
) -> RebuildOutcome:
    """The same, where no row was read."""
    outcome, chunks = staged
    origin: dict[str, Any] = {
        **request.origin,
        **_describe_gaps(request),
        "partitions": request.partitions,
        "log_start": {str(p): at for p, at in sorted(outcome.log_start.items())},
        "log_end": {str(p): at for p, at in sorted(outcome.log_end.items())},
        "verdict": outcome.verdict,
        "fidelity": outcome.fidelity,
    }
    manifest = Manifest(request.recovery_id, request.target_topic, chunks, origin)
    sha256 = write_manifest(request.directory, manifest)
    shutil.rmtree(request.directory / "work", ignore_errors=True)
    return replace(
        outcome, manifest_sha256=sha256, warnings=tuple(log.warnings), seconds=log.seconds
    )


def _describe_gaps(request: RebuildRequest) -> dict[str, Any]:
    return {
        "stream": request.stream.fingerprint(),
        "gaps": [
            {"id": g.id, "partition": g.partition, "start": g.start, "end": g.end}
            for g in sorted((*request.gaps, *request.archived), key=lambda g: g.id)
        ],
        "archives": {
            source.recovery_id: source.manifest_sha256
            for source in request.archives
            if source.taken
        },
    }


def _find_ranges(request: RebuildRequest) -> tuple[OffsetRange, ...]:
    subject = f"stream {request.stream.name}"
    if not (request.gaps or request.archived):
        raise UsageError("has no gap to rebuild", subject=subject, hint="see `backlogctl gaps`")
    unknown = [gap.id for gap in (*request.gaps, *request.archived) if gap.count is None]
    if unknown:
        raise UsageError(
            f"the range of {', '.join(unknown)} is not known, so it cannot be planned",
            subject=subject,
            hint="plan the other gaps by their ids",
        )
    return tuple(
        OffsetRange(gap.partition, gap.start, gap.end)
        for gap in request.gaps
        if gap.start is not None and gap.end is not None
    )


@contextmanager
def _open_source(
    spark: SparkSession, request: RebuildRequest
) -> Iterator[tuple[SourceAccess, MessageRules, ConsumedEvidence | None]]:
    """Checks all names and expressions, also of the consumer's table, before a row is read."""
    stream = request.stream
    assert stream.source is not None
    with ExitStack() as stack:
        access = stack.enter_context(
            open_source(spark, request.sources, stream.name, stream.source)
        )
        rules = check_rules(
            spark,
            stream,
            access.table,
            partitions=request.partitions,
            targets=request.lost_from,
            max_bytes=int(request.topic_config.get("max.message.bytes", DEFAULT_MAX_BYTES)),
            timezone=access.timezone,
            growth=request.growth,
        )
        consumed = None
        if (where := stream.source.consumed) is not None:
            work = request.directory / "work/consumed"
            consumed = stack.enter_context(
                open_consumed(spark, request.sources, where, stream.name, work)
            )
        yield access, rules, consumed
