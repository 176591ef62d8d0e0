"""Freezes what a plan is computed from: the candidate rows, and the messages that survive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from backlogctl.clock import format_time, utc_now
from backlogctl.errors import KafkaFailure
from backlogctl.spark_backfill.basis import warn_about_index, warn_about_skipped
from backlogctl.spark_backfill.evidence.archives import (
    OpenArchive,
    find_starts,
    list_stretches,
    read_survivors,
)
from backlogctl.spark_backfill.evidence.consumed import ConsumedEvidence
from backlogctl.spark_backfill.evidence.injected import (
    Evidence,
    InjectedEvidence,
    label_candidates,
)
from backlogctl.spark_backfill.evidence.survivors import (
    Holes,
    LogOffsets,
    LogSpan,
    SurvivorEvidence,
    describe_moves,
    measure_holes,
    read_current_offsets,
)
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.messages.candidates import (
    SourceAccess,
    build_candidates,
    count_rows,
    drop_duplicates,
    find_newest,
    read_rows,
)
from backlogctl.spark_backfill.messages.rules import ORIGINAL, RESTATED, MessageRules
from backlogctl.spark_backfill.messages.windows import (
    Bounds,
    describe_older,
    filter_times,
    find_windows,
    widen_forwards,
)
from backlogctl.spark_backfill.placing.placement import (
    GapPlacement,
    Ground,
    place_candidates,
)
from backlogctl.spark_backfill.placing.ties import find_doubled
from backlogctl.spark_backfill.plan_log import PlanLog, renew_work
from backlogctl.spark_backfill.proof import (
    places_rows,
    prove_rules,
)
from backlogctl.spark_backfill.request import ALLOW_IDS, Proof, RebuildRequest
from backlogctl.spark_backfill.spark.frames import freeze
from backlogctl.spark_backfill.verdict import (
    advise_on_growth,
    check_identity_unique,
)
from backlogctl.values import OffsetRange

_SURVIVOR_TRIES = 3

Warn = Callable[[str], None]


def freeze_candidates(
    access: SourceAccess, rules: MessageRules, bounds: Bounds, work: Path, warn: Warn
) -> DataFrame:
    """Reads the table once; all that follows comes from this copy (fault 30)."""
    where = filter_times(access.table, rules.source, bounds, access.timezone)
    before = count_rows(access, where)
    rows = read_rows(access, rules, where, rows=before)
    messages = build_candidates(rows, rules, bounds)
    unique = access.table.is_unique(rules.source.primary_key)
    path = str(work / "candidates")
    hint = "use try_ functions where an expression of the configuration may fail on a row"
    with translating("read", subject=access.subject, hint=hint, secrets=access.jdbc.secrets):
        rows = drop_duplicates(messages, rules, unique=unique)
        # Nearly every value is another one: a dictionary of them is only work.
        frozen = freeze(rows, path, **{"parquet.enable.dictionary": "false"})
    after = count_rows(access, where)
    if before != after:
        warn(
            f"rows changed while they were read: {before:,} before, {after:,} after; "
            "what was read is frozen"
        )
    return frozen


def freeze_survivors(
    spark: SparkSession,
    request: RebuildRequest,
    rules: MessageRules,
    ranges: tuple[OffsetRange, ...],
    work: Path,
    warn: Warn,
    archives: Sequence[OpenArchive] = (),
) -> tuple[SurvivorEvidence, LogOffsets]:
    """Reads the log after the table, so that a row's message is there if it was ever sent.

    Args:
        archives: what was moved off the log.
    """
    topic, properties = rules.stream.topic, request.client_properties
    offsets = read_current_offsets(properties, topic, request.partitions)
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
            archived=read_survivors(archives, rules.source.identity.header),
            archived_starts=find_starts(archives),
        )
        try:
            evidence.freeze()
        except KafkaFailure:
            again = read_current_offsets(properties, topic, request.partitions)
            if not left or not describe_moves(offsets.starts, again.starts):
                raise
            moved = describe_moves(offsets.starts, again.starts)
            warn(f"retention moved while the log was read, {moved}: read again")
            offsets = again
            continue
        break
    now = read_current_offsets(properties, topic, request.partitions)
    if moved := describe_moves(offsets.starts, now.starts):
        warn(f"retention moved on meanwhile, {moved}: a new gap may be there")
    return evidence, offsets


# Finds the lost rows: reads the table and the log, proves the rules, and labels each row (P2).

_MORE_ROWS = 1000
# So many times the rows are read where those were too few.
MORE_OFTEN = 4


@dataclass(frozen=True, slots=True)
class LostRowsRequest:
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
class LostRows:
    """The candidates with their labels, and what they were judged by.

    Attributes:
        is_short_of_rows: a loss that no sample dates began before the first row that was read.
        undated: what to say of a loss that no sample dates, unless something better tells its rows.
        older: what to say of rows that may be older than those that were read.
    """

    candidates: DataFrame
    bounds: Bounds
    offsets: LogOffsets
    spans: tuple[LogSpan, ...]
    holes: Holes
    injected: InjectedEvidence
    proof: Proof
    suspected: str
    older: str
    placement: GapPlacement
    young_after: str
    work: Path
    is_short_of_rows: bool
    undated: str


def find_lost_rows(reading: LostRowsRequest, factor: int) -> LostRows:
    """Reads the table, then the log, and labels each row.

    Args:
        factor: so many times the rows that a loss without a date seems to need.
    """
    spark, request, ranges = reading.spark, reading.request, reading.ranges
    access, rules, consumed, log = reading.access, reading.rules, reading.consumed, reading.log
    countable = rules.fidelity == ORIGINAL and consumed is None and not request.is_unsent
    undated, undated_told = _find_undated(reading, factor) if countable else (None, "")
    doubled = find_doubled(rules)
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
        doubled=doubled,
    )
    warn_about_index(access, rules, windows.read, log.warnings)
    work = renew_work(request.directory)
    with log.timed("candidates", f"reading candidates from {access.table.label}"):
        candidates = freeze_candidates(access, rules, windows.read, work, log.warnings.append)
    young_after = format_time(widen_forwards(utc_now() - rules.source.drift[0], doubled))
    with log.timed("evidence", f"reading survivors of topic {rules.stream.topic}"):
        survivors, offsets = freeze_survivors(
            spark, request, rules, ranges, work, log.warnings.append, reading.archives
        )
        warn_about_skipped(request, offsets, log.warnings)
        spans = survivors.measure_spans()
        prior = (*request.prior, *request.elsewhere)
        may_lack = ALLOW_IDS in request.allow
        injected = InjectedEvidence(
            spark, request.staging_root, prior, ranges, survivors, may_lack=may_lack
        )
        holes = measure_holes(spans, request.prior, injected.list_stretches())
        # What we put back is in the log as well: the more specific label wins.
        evidence: list[Evidence] = [injected, survivors, *([consumed] if consumed else [])]
        for item in evidence:
            item.freeze()
    with log.timed("proof", "proving the rules on survivors"):
        name = rules.source.identity.row.column
        if rules.identified_by_key or not access.table.is_unique(() if name is None else (name,)):
            check_identity_unique(candidates, rules.stream.name)
        proof, suspected, lag = prove_rules(survivors, rules, access, candidates)
        suspected = "; ".join(filter(None, (suspected, advise_on_growth(request, proof))))
    with log.timed("labels", "finding the lost rows"):
        ground = Ground(
            request, rules, windows, ranges, survivors, injected, spans, holes,
            places_rows(proof), young_after, work, list_stretches(reading.archives),
        )  # fmt: skip
        placement = place_candidates(label_candidates(candidates, evidence), ground)
    undated_partitions = {gap.partition for gap in request.gaps if gap.first_time is None}
    short = any(placement.beyond.get(number) for number in undated_partitions)
    return LostRows(
        candidates, windows.read, offsets, spans, holes, injected, proof, suspected,
        describe_older(request.gaps, windows.read, lag, request.since), placement,
        young_after, work, undated is not None and short, undated_told,
    )  # fmt: skip


def _find_undated(reading: LostRowsRequest, factor: int) -> tuple[datetime | None, str]:
    """From when on rows are read where no sample dates a loss: as many as its partition wrote
    since, and twice that, for partitions that are not written alike. Also what to say of that,
    where nothing else tells which rows were lost."""
    request, access, rules = reading.request, reading.access, reading.rules
    gaps = [gap for gap in request.gaps if gap.first_time is None]
    if not gaps or request.since is not None:
        return None, ""
    ends = read_current_offsets(
        request.client_properties, rules.stream.topic, request.partitions
    ).ends
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
    return found, (
        f"no sample tells when the loss of {gaps[0].id} began: rows are read from {began} on"
    )
