"""The plan of a rebuild: which rows were lost, proved, staged and judged (P2)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.errors import PutBackAlready, Refused, UsageError
from backlogctl.formats import Say, format_plural
from backlogctl.manifests import Manifest, write_manifest
from backlogctl.spark_backfill.basis import (
    check_policy,
    find_basis,
    require_messages,
    warn_about_rows,
    warn_about_rules,
)
from backlogctl.spark_backfill.evidence.archives import OpenArchive, open_archives
from backlogctl.spark_backfill.evidence.consumed import ConsumedEvidence, open_consumed, open_source
from backlogctl.spark_backfill.evidence.injected import (
    CONSUMED,
    INJECTED,
    LOST,
    OUTSIDE,
    QUARANTINED,
    SURVIVING,
)
from backlogctl.spark_backfill.existing.messages import place_originals
from backlogctl.spark_backfill.failures import planning_into
from backlogctl.spark_backfill.lost_rows import (
    MORE_OFTEN,
    LostRows,
    LostRowsRequest,
    find_lost_rows,
)
from backlogctl.spark_backfill.messages.candidates import SourceAccess
from backlogctl.spark_backfill.messages.encoding import choose_encoders
from backlogctl.spark_backfill.messages.rules import (
    DEFAULT_MAX_BYTES,
    ORIGINAL,
    RESTATED,
    MessageRules,
    check_rules,
)
from backlogctl.spark_backfill.messages.staging import ChunkLimits, stage_lost
from backlogctl.spark_backfill.placing.attribution import fill_needs, take_by_edge
from backlogctl.spark_backfill.placing.placement import describe_evidence
from backlogctl.spark_backfill.plan_log import PlanLog, prepare_staging
from backlogctl.spark_backfill.proof import explaining
from backlogctl.spark_backfill.request import (
    CandidateCounts,
    Quarantine,
    RebuildOutcome,
    RebuildRequest,
    Uncertain,
)
from backlogctl.spark_backfill.verdict import (
    EXACT,
    WITHIN,
    LabelCounts,
    RebuildVerdict,
    count_expected,
    count_labels,
    count_unsent,
    judge_plan,
    write_quarantine,
    write_uncertain,
)
from backlogctl.values import Chunk, OffsetRange


def stage_rebuild(
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
    check_policy(request)
    ranges = _find_ranges(request)
    with planning_into(str(request.directory)), log.telling():
        with log.timed("archives", "verifying the archive") if request.archives else nullcontext():
            archives = open_archives(spark, request.archives)
        return _plan_rows(spark, request, ranges, archives, log, limits)


def _plan_rows(
    spark: SparkSession,
    request: RebuildRequest,
    ranges: tuple[OffsetRange, ...],
    archives: tuple[OpenArchive, ...],
    log: PlanLog,
    limits: ChunkLimits | None,
) -> RebuildOutcome:
    with _open_source(spark, request) as (access, rules, consumed):
        warn_about_rules(request, access, rules, log.warnings)
        reading = LostRowsRequest(spark, request, ranges, access, rules, consumed, log, archives)
        prepare_staging(request.staging_root, request.directory)
        found = find_lost_rows(reading, 1)
        factor = 1
        while found.is_short_of_rows:
            factor *= MORE_OFTEN
            log.warnings.append(
                f"a loss is older than the rows that were read: {factor} times as many"
            )
            found = find_lost_rows(reading, factor)
        stretches = found.injected.list_stretches()
        lost_offsets = count_unsent(request.gaps) or count_expected(ranges, stretches)
        expected = _leave_out_returned(request, found, lost_offsets)
        gone = _count_gone(request, found)
        decided, counts = _fill_gaps(found.placement.decided, expected, found.young_after)
        warn_about_rows(counts, found.proof, found.offsets, rules, log.warnings)
        basis = find_basis(
            request, rules, ranges, found.spans, found.holes, counts, found.proof, found.placement,
            found.older if rules.fidelity == RESTATED else "",
        )  # fmt: skip
        basis = replace(basis, gone=gone, unlisted=found.injected.describe_missing())
        verdict = judge_plan(expected, counts.to_tally(), basis)
        if verdict.kind not in (EXACT, WITHIN):
            told = (found.undated, found.older if rules.fidelity == ORIGINAL else "")
            log.warnings += filter(None, told)
        with explaining(found.suspected, log.warnings):
            require_messages(request, rules, counts, verdict, found.proof, found.spans)
        with log.timed("staging", f"staging {format_plural(counts.total(LOST), 'message')}"):
            lost = decided.where(F.col("label") == LOST).select("message_id", "slot")
            made, slots = found.candidates.drop("slot").join(lost, "message_id"), counts.slots
            if request.target_partitions != request.partitions:
                made, slots = _move(made, request)
            chunks = stage_lost(
                made,
                rules,
                slots,
                recovery_id=request.recovery_id,
                directory=request.directory,
                limits=limits,
            )
            keys = rules.key_names()
            quarantine = write_quarantine(
                decided, keys, request.directory, counts.total(QUARANTINED)
            )
            uncertain = write_uncertain(
                decided, keys, request.directory, sum(counts.uncertain.values())
            )
        result = _Result(request, rules, found, counts, quarantine, verdict, uncertain, slots)
        return _finish(result, chunks, log)


def _leave_out_returned(
    request: RebuildRequest, found: LostRows, expected: Mapping[int, int]
) -> Mapping[int, int]:
    """What an archive gave back again is not lost any more.

    Raises:
        PutBackAlready: nothing else was lost.
    """
    returned = found.injected.count_returned()
    left = {number: max(0, n - returned.get(number, 0)) for number, n in expected.items()}
    if returned and not sum(left.values()):
        commands = [
            f'`backlogctl waive {gap.id} --reason "put back already"`' for gap in request.gaps
        ]
        raise PutBackAlready(
            f"there is nothing to put back: {format_plural(sum(returned.values()), 'message')} of "
            "these gaps came from an archive, and were put back from there again",
            subject=f"stream {request.stream.name}",
            hint=f"close what is on record: {'; '.join(commands)}",
        )
    return left


def _count_gone(request: RebuildRequest, found: LostRows) -> int:
    """Messages that were put back before and lost again, and that no row makes.

    Raises:
        Refused: an archive has some of them still.
    """
    if not found.injected.has_lost_again:
        return 0
    edge = request.stream.source.edge if request.stream.source else None
    take = take_by_edge(edge)
    rows = found.candidates.select(F.col("message_id").alias("key"))
    again = found.injected.collect_lost_again().where(take).join(rows, "key", "left_anti")
    counts = {row["archive"]: row["count"] for row in again.groupBy("archive").count().collect()}
    held = {source.recovery_id for source in request.archives}
    if name := next((name for name in counts if name in held), None):
        raise Refused(
            f"{format_plural(counts[name], 'message')} of these gaps came from archive {name}, "
            "were lost again, and are there still",
            subject=f"stream {request.stream.name}",
            hint=f"`backlogctl plan redrive {request.stream.name} --from archive:{name}` puts them "
            "back; then plan this again",
        )
    return sum(counts.values())


def _move(made: DataFrame, request: RebuildRequest) -> tuple[DataFrame, Mapping[int, int]]:
    """To the partitions of a target that has another number of them."""
    moved = made.withColumn(
        "slot",
        place_originals(
            F.col("slot"),
            of=request.partitions,
            partitioner=request.stream.partitioner,
            partitions=request.target_partitions,
        ),
    )
    counts = moved.groupBy("slot").count().collect()
    return moved, {row["slot"]: row["count"] for row in counts}


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
    found: LostRows
    labels: LabelCounts
    quarantine: Quarantine
    verdict: RebuildVerdict
    uncertain: Uncertain
    slots: Mapping[int, int]

    def counts(self) -> CandidateCounts:
        partitions = self.verdict.partitions
        return CandidateCounts(
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
        schemas=tuple(one.describe() for one in result.rules.encoders.values()),
    )


def _describe_gaps(request: RebuildRequest) -> dict[str, Any]:
    return {
        "stream": request.stream.fingerprint(),
        "gaps": [
            {"id": g.id, "partition": g.partition, "start": g.start, "end": g.end}
            for g in sorted(request.gaps, key=lambda g: g.id)
        ],
    }


def _find_ranges(request: RebuildRequest) -> tuple[OffsetRange, ...]:
    subject = f"stream {request.stream.name}"
    if not request.gaps:
        raise UsageError("has no gap to rebuild", subject=subject, hint="see `backlogctl gaps`")
    unknown = [gap.id for gap in request.gaps if gap.count is None]
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
        encoders = choose_encoders(
            stream, request.registries, request.client_properties, _find_ranges(request)
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
            encoders=encoders,
        )
        consumed = None
        if (where := stream.source.consumed) is not None:
            work = request.directory / "work/consumed"
            consumed = stack.enter_context(
                open_consumed(spark, request.sources, where, stream.name, work)
            )
        yield access, rules, consumed
