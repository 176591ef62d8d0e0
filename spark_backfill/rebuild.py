"""The plan of a rebuild: which rows were lost, proved, staged and judged (P2)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from sqlalchemy.engine import Engine

from backlog.clock import format_time, utc_now
from backlog.errors import KafkaFailure, StagingError, UsageError
from backlog.manifest import MANIFEST_NAME, Manifest, write_manifest
from backlog.progress import Say
from backlog.values import Chunk, OffsetRange
from spark_backfill.evidence import (
    CONSUMED,
    INJECTED,
    LOST,
    QUARANTINED,
    SURVIVING,
    ConsumedEvidence,
    Evidence,
    InjectedEvidence,
    SurvivorEvidence,
    label_candidates,
)
from spark_backfill.evidence.offsets import LogOffsets, describe_moves, read_offsets
from spark_backfill.failures import translating
from spark_backfill.guards import (
    check_policy,
    find_basis,
    require_messages,
    warn_about_index,
    warn_about_rows,
    warn_about_rules,
)
from spark_backfill.messages.candidates import (
    Bounds,
    SourceAccess,
    build_candidates,
    count_rows,
    drop_duplicates,
    filter_times,
    find_bounds,
    read_rows,
)
from spark_backfill.messages.rules import DEFAULT_MAX_BYTES, RESTATED, MessageRules, check_rules
from spark_backfill.messages.staging import ChunkLimits, stage_lost
from spark_backfill.proof import prove_rules
from spark_backfill.request import (
    Counts,
    Proof,
    Quarantine,
    RebuildOutcome,
    RebuildRequest,
)
from spark_backfill.sources.jdbc import make_access
from spark_backfill.sources.reflection import check_columns, open_engine, reflect_table
from spark_backfill.tally import (
    LabelCounts,
    check_identity_unique,
    count_labels,
    write_quarantine,
)
from spark_backfill.verdict import RebuildVerdict, count_expected, judge_plan

_SURVIVOR_TRIES = 3


@dataclass(slots=True)
class _PlanLog:
    """Progress, warnings and times of one planning."""

    progress: Say
    warnings: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str, doing: str) -> Iterator[None]:
        self.progress(doing)
        start = monotonic()
        yield
        self.seconds[name] = round(monotonic() - start, 2)


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
        progress: gets a line before each long part.
        limits: how chunks are cut.

    Raises:
        ConfigurationError: a table, column or expression is wrong; nothing was read.
        UsageError: the beginning of the loss is not known.
        Refused: `stale: refuse`, an ambiguous identity, a failed proof, no or too many messages.
        SourceError, KafkaFailure, StagingError: something could not be read or written.
    """
    log = _PlanLog(progress or (lambda line: None))
    check_policy(request)
    ranges = _find_ranges(request)
    with _open_source(spark, request, ranges) as (access, rules, consumed):
        bounds = find_bounds(
            request.gaps,
            since=request.since,
            until=request.until,
            margin=rules.source.margin,
            mutable=rules.source.mutable,
            has_consumed=consumed is not None,
        )
        warn_about_index(access, rules, bounds, log.warnings)
        warn_about_rules(request, access, rules, log.warnings)
        work = _prepare_directory(request)
        with log.timed("candidates", f"reading candidates from {access.table.label}"):
            candidates = _freeze_candidates(access, rules, bounds, work, log)
        read_at = utc_now()
        with log.timed("evidence", f"reading survivors of topic {rules.stream.topic}"):
            survivors, offsets = _freeze_survivors(spark, request, rules, ranges, work, log)
            known = tuple(chunk for chunk in request.prior if not chunk.lost)
            injected = InjectedEvidence(spark, request.staging_root, known)
            # What we put back is in the log as well: the more specific label wins.
            evidence: list[Evidence] = [injected, survivors, *([consumed] if consumed else [])]
            for item in evidence:
                item.freeze()
        labelled = label_candidates(candidates, evidence)
        with log.timed("labels", "finding the lost rows"):
            if not access.table.is_unique(_identity_columns(rules)):
                check_identity_unique(candidates, rules.stream.name)
            counts = count_labels(labelled, format_time(read_at - rules.source.margin))
        with log.timed("proof", "proving the rules on survivors"):
            proof = prove_rules(survivors, rules, access, candidates)
        warn_about_rows(counts, proof, offsets, rules, log.warnings)
        expected = count_expected(ranges)
        spans = survivors.measure_spans()
        basis = find_basis(request, rules, ranges, spans, counts, proof)
        verdict = judge_plan(expected, counts.to_tally(), basis)
        require_messages(request, rules, counts, verdict, proof, spans)
        with log.timed("staging", f"staging {counts.total(LOST)} messages"):
            chunks = stage_lost(
                labelled.where(F.col("label") == LOST),
                rules,
                counts.placed(LOST),
                recovery_id=request.recovery_id,
                directory=request.directory,
                limits=limits,
            )
            quarantine = write_quarantine(
                labelled, rules.key_names(), request.directory, counts.total(QUARANTINED)
            )
        result = _Result(request, rules, bounds, offsets, counts, proof, quarantine, verdict)
        return _finish(result, chunks, log, work)


@dataclass(frozen=True, slots=True)
class _Result:
    request: RebuildRequest
    rules: MessageRules
    bounds: Bounds
    offsets: LogOffsets
    labels: LabelCounts
    proof: Proof
    quarantine: Quarantine
    verdict: RebuildVerdict

    def counts(self) -> Counts:
        partitions = self.verdict.partitions
        return Counts(
            expected=sum(item.expected for item in partitions),
            candidates=self.labels.candidates,
            duplicates=self.labels.duplicates,
            surviving=self.labels.total(SURVIVING),
            consumed=self.labels.total(CONSUMED),
            already_injected=self.labels.total(INJECTED),
            rebuilt=self.labels.total(LOST),
            collapsed=sum(item.collapsed for item in partitions),
            quarantined=self.labels.total(QUARANTINED),
            surplus=sum(item.surplus for item in partitions),
            shortfall=sum(item.shortfall for item in partitions),
        )


def _finish(
    result: _Result, chunks: tuple[Chunk, ...], log: _PlanLog, work: Path
) -> RebuildOutcome:
    """Writes the manifest, the last file of a plan, and throws the working files away."""
    request, verdict, counts = result.request, result.verdict, result.counts()
    origin: dict[str, Any] = {
        **request.origin,
        "stream": request.stream.fingerprint(),
        "gaps": [
            {"id": g.id, "partition": g.partition, "start": g.start, "end": g.end}
            for g in sorted(request.gaps, key=lambda g: g.id)
        ],
        "bounds": list(result.bounds.to_text()),
        "partitions": request.partitions,
        "log_start": {str(p): at for p, at in sorted(result.offsets.starts.items())},
        "log_end": {str(p): at for p, at in sorted(result.offsets.ends.items())},
        "allow": sorted(request.allow),
        "verdict": verdict.kind,
        "fidelity": result.rules.fidelity,
    }
    manifest = Manifest(request.recovery_id, request.stream.topic, chunks, origin)
    sha256 = write_manifest(request.directory, manifest)
    shutil.rmtree(work, ignore_errors=True)
    return RebuildOutcome(
        recovery_id=request.recovery_id,
        verdict=verdict.kind,
        reasons=verdict.reasons,
        counts=counts,
        partitions=verdict.partitions,
        proof=result.proof,
        quarantine=result.quarantine,
        warnings=tuple(log.warnings),
        manifest_sha256=sha256,
        chunks=len(chunks),
        bytes=sum(chunk.bytes for chunk in chunks),
        fidelity=result.rules.fidelity,
        bounds=result.bounds.to_text(),
        log_start=dict(result.offsets.starts),
        log_end=dict(result.offsets.ends),
        seconds=log.seconds,
    )


def _find_ranges(request: RebuildRequest) -> tuple[OffsetRange, ...]:
    subject = f"stream {request.stream.name}"
    if not request.gaps:
        raise UsageError("has no gap to rebuild", subject=subject, hint="see `backlogctl gaps`")
    unknown = [gap.id for gap in request.gaps if gap.start is None or gap.end is None]
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
    spark: SparkSession, request: RebuildRequest, ranges: tuple[OffsetRange, ...]
) -> Iterator[tuple[SourceAccess, MessageRules, ConsumedEvidence | None]]:
    """Checks all names and expressions, also of the consumer's table, before a row is read."""
    stream = request.stream
    assert stream.source is not None
    engines: list[Engine] = []

    def open_table(database: str, name: str) -> SourceAccess:
        source = request.sources[database]
        engine = open_engine(source, database)
        engines.append(engine)
        table = reflect_table(engine, database, name)
        jdbc = make_access(source, database)
        limit = source.limits.connections
        return SourceAccess(spark, engine, jdbc, table, source.timezone, limit)

    try:
        access = open_table(stream.source.database, stream.source.table)
        rules = check_rules(
            spark,
            stream,
            access.table,
            partitions=request.partitions,
            targets=sorted({item.partition for item in ranges}),
            max_bytes=int(request.topic_config.get("max.message.bytes", DEFAULT_MAX_BYTES)),
            timezone=access.timezone,
        )
        consumed = None
        if (where := stream.source.consumed) is not None:
            other = open_table(where.database, where.table)
            at = f"streams.{stream.name}.source.consumed.column"
            check_columns(other.table, [where.column], at)
            consumed = ConsumedEvidence(other, where.column, request.directory / "work/consumed")
        yield access, rules, consumed
    finally:
        for engine in engines:
            engine.dispose()


def _prepare_directory(request: RebuildRequest) -> Path:
    """An empty directory that only its owner can enter; a plan that was killed leaves remains."""
    directory = request.directory
    if (directory / MANIFEST_NAME).exists():
        raise StagingError(
            "this recovery is staged already", subject=str(directory), hint="plan a new one"
        )
    with translating("make the staging directory", subject=str(directory), kind=StagingError):
        request.staging_root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(mode=0o700)
        work = directory / "work"
        work.mkdir(mode=0o700)
    return work


def _freeze_candidates(
    access: SourceAccess, rules: MessageRules, bounds: Bounds, work: Path, log: _PlanLog
) -> DataFrame:
    """Reads the table once; all that follows comes from this copy (fault 30)."""
    where = filter_times(access.table, rules.source.time_column, bounds, access.timezone)
    before = count_rows(access, where)
    rows = read_rows(access, rules, where, rows=before)
    messages = build_candidates(rows, rules, bounds)
    unique = access.table.is_unique(rules.source.primary_key)
    path = str(work / "candidates")
    hint = "use try_ functions where an expression of the configuration may fail on a row"
    with translating("read", subject=access.subject, hint=hint, secrets=access.jdbc.secrets):
        frozen = drop_duplicates(messages, rules, unique=unique)
        # Nearly every value is another one: a dictionary of them is only work.
        frozen.write.option("parquet.enable.dictionary", "false").mode("overwrite").parquet(path)
    after = count_rows(access, where)
    if before != after:
        log.warnings.append(
            f"rows changed while they were read: {before} before, {after} after; "
            "what was read is frozen"
        )
    return access.spark.read.parquet(path)


def _freeze_survivors(
    spark: SparkSession,
    request: RebuildRequest,
    rules: MessageRules,
    ranges: tuple[OffsetRange, ...],
    work: Path,
    log: _PlanLog,
) -> tuple[SurvivorEvidence, LogOffsets]:
    """Reads the log after the table, so that a row's message is there if it was ever sent."""
    topic, properties = rules.stream.topic, request.client_properties
    offsets = read_offsets(properties, topic, request.partitions)
    for left in reversed(range(_SURVIVOR_TRIES)):
        evidence = SurvivorEvidence(
            spark=spark,
            topic=topic,
            header=rules.source.identity.header,
            client_properties=properties,
            starts=offsets.starts,
            ends=offsets.ends,
            lost=ranges,
            work=work / "survivors",
            restated=rules.fidelity == RESTATED,
        )
        try:
            evidence.freeze()
        except KafkaFailure:
            again = read_offsets(properties, topic, request.partitions)
            if not left or not describe_moves(offsets.starts, again.starts):
                raise
            moved = describe_moves(offsets.starts, again.starts)
            log.warnings.append(f"retention moved while the log was read, {moved}: read again")
            offsets = again
            continue
        break
    now = read_offsets(properties, topic, request.partitions)
    if moved := describe_moves(offsets.starts, now.starts):
        log.warnings.append(f"retention moved on meanwhile, {moved}: a new gap may be there")
    return evidence, offsets


def _identity_columns(rules: MessageRules) -> tuple[str, ...]:
    name = rules.source.identity.row.column
    return () if name is None else (name,)
