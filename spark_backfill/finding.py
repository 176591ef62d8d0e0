"""Finds the lost rows: reads the table and the log, proves the rules, and labels each row (P2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from backlog.clock import format_time, utc_now
from backlog.values import OffsetRange
from spark_backfill.evidence import ConsumedEvidence, Evidence, InjectedEvidence, label_candidates
from spark_backfill.evidence.archives import OpenArchive, list_stretches
from spark_backfill.evidence.holes import Holes, measure_holes
from spark_backfill.evidence.offsets import LogOffsets, read_offsets
from spark_backfill.evidence.survivors import LogSpan
from spark_backfill.freezing import freeze_candidates, freeze_survivors
from spark_backfill.guards import warn_about_index
from spark_backfill.messages.candidates import SourceAccess, find_newest
from spark_backfill.messages.rules import ORIGINAL, MessageRules
from spark_backfill.messages.windows import Bounds, find_windows
from spark_backfill.phases import PlanLog
from spark_backfill.placing.placement import Ground, Placement, place_candidates
from spark_backfill.proof import describe_unproved, prove_rules
from spark_backfill.request import Proof, RebuildRequest
from spark_backfill.staging_folder import prepare_staging
from spark_backfill.tally import check_identity_unique

_MORE_ROWS = 1000
# So many times the rows are read where those were too few.
MORE_OFTEN = 4


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read, and by which rules."""

    spark: SparkSession
    request: RebuildRequest
    ranges: tuple[OffsetRange, ...]
    access: SourceAccess
    rules: MessageRules
    consumed: ConsumedEvidence | None
    log: PlanLog
    archives: tuple[OpenArchive, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """The candidates with their labels, and what they were judged by.

    Attributes:
        is_short_of_rows: a loss that no sample dates began before the first row that was read.
    """

    candidates: DataFrame
    bounds: Bounds
    offsets: LogOffsets
    spans: tuple[LogSpan, ...]
    holes: Holes
    injected: InjectedEvidence
    proof: Proof
    zone: str
    placement: Placement
    young_after: str
    work: Path
    is_short_of_rows: bool


def find_lost(reading: Reading, factor: int) -> Found:
    """Reads the table, then the log, and labels each row.

    Args:
        factor: so many times the rows that a loss without a date seems to need.
    """
    spark, request, ranges = reading.spark, reading.request, reading.ranges
    access, rules, consumed, log = reading.access, reading.rules, reading.consumed, reading.log
    countable = rules.fidelity == ORIGINAL and consumed is None and not request.is_unsent
    undated = _find_undated(reading, factor) if countable else None
    windows = find_windows(
        request.gaps,
        since=request.since,
        until=request.until,
        margin=rules.source.margin,
        drift=rules.source.drift,
        mutable=rules.source.mutable,
        has_consumed=consumed is not None,
        read_since=request.read_since,
        countable=countable,
        undated=undated,
    )
    warn_about_index(access, rules, windows.read, log.warnings)
    work = prepare_staging(request.staging_root, request.directory)
    with log.timed("candidates", f"reading candidates from {access.table.label}"):
        candidates = freeze_candidates(access, rules, windows.read, work, log.warnings.append)
    young_after = format_time(utc_now() - rules.source.drift[0])
    with log.timed("evidence", f"reading survivors of topic {rules.stream.topic}"):
        survivors, offsets = freeze_survivors(
            spark, request, rules, ranges, work, log.warnings.append, reading.archives
        )
        spans = survivors.measure_spans()
        prior = (*request.prior, *request.elsewhere)
        injected = InjectedEvidence(spark, request.staging_root, prior, ranges, survivors)
        holes = measure_holes(spans, request.prior, injected.list_stretches())
        # What we put back is in the log as well: the more specific label wins.
        evidence: list[Evidence] = [injected, survivors, *([consumed] if consumed else [])]
        for item in evidence:
            item.freeze()
    with log.timed("proof", "proving the rules on survivors"):
        if not access.table.is_unique(_identity_columns(rules)):
            check_identity_unique(candidates, rules.stream.name)
        proof, zone = prove_rules(survivors, rules, access, candidates)
    with log.timed("labels", "finding the lost rows"):
        ground = Ground(
            request, rules, windows, ranges, survivors, injected, spans, holes,
            not describe_unproved(proof), young_after, work, list_stretches(reading.archives),
        )  # fmt: skip
        placement = place_candidates(label_candidates(candidates, evidence), ground)
    undated_partitions = {gap.partition for gap in request.gaps if gap.first_time is None}
    short = any(placement.beyond.get(number) for number in undated_partitions)
    return Found(
        candidates, windows.read, offsets, spans, holes, injected, proof, zone, placement,
        young_after, work, undated is not None and short,
    )  # fmt: skip


def _find_undated(reading: Reading, factor: int) -> datetime | None:
    """From when on rows are read where no sample dates a loss: as many as its partition wrote
    since, and twice that, for partitions that are not written alike."""
    request, access, rules = reading.request, reading.access, reading.rules
    gaps = [gap for gap in request.gaps if gap.first_time is None]
    if not gaps or request.since is not None:
        return None
    ends = read_offsets(request.client_properties, rules.stream.topic, request.partitions).ends
    total = sum(ends.values())
    rows = max(
        2 * (ends[gap.partition] - (gap.start or 0)) * total // max(1, ends[gap.partition])
        for gap in gaps
    )
    last = min((gap.last_time for gap in gaps if gap.last_time is not None), default=None)
    rows = factor * (rows + _MORE_ROWS)
    found = find_newest(access, rules.source, rows)
    # At least from before the loss on, else nothing shows how much more is needed.
    while found is not None and last is not None and found > last:
        rows *= MORE_OFTEN
        found = find_newest(access, rules.source, rows)
    began = "the table's beginning" if found is None else format_time(found)
    reading.log.warnings.append(
        f"no sample tells when the loss of {gaps[0].id} began: rows are read from {began} on"
    )
    return found


def _identity_columns(rules: MessageRules) -> tuple[str, ...]:
    name = rules.source.identity.row.column
    return () if name is None else (name,)
