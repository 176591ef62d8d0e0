"""Freezes what a plan is computed from: the candidate rows, and the messages that survive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from backlog.errors import KafkaFailure
from backlog.values import OffsetRange
from spark_backfill.evidence import SurvivorEvidence
from spark_backfill.evidence.archives import OpenArchive, find_starts, read_survivors
from spark_backfill.evidence.offsets import LogOffsets, describe_moves, read_offsets
from spark_backfill.failures import translating
from spark_backfill.messages.candidates import (
    SourceAccess,
    build_candidates,
    count_rows,
    drop_duplicates,
    read_rows,
)
from spark_backfill.messages.filters import filter_times
from spark_backfill.messages.rules import RESTATED, MessageRules
from spark_backfill.messages.windows import Bounds
from spark_backfill.request import RebuildRequest

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
        frozen = drop_duplicates(messages, rules, unique=unique)
        # Nearly every value is another one: a dictionary of them is only work.
        frozen.write.option("parquet.enable.dictionary", "false").mode("overwrite").parquet(path)
    after = count_rows(access, where)
    if before != after:
        warn(
            f"rows changed while they were read: {before} before, {after} after; "
            "what was read is frozen"
        )
    return access.spark.read.parquet(path)


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
            archived=read_survivors(archives, rules.source.identity.header),
            archived_starts=find_starts(archives),
        )
        try:
            evidence.freeze()
        except KafkaFailure:
            again = read_offsets(properties, topic, request.partitions)
            if not left or not describe_moves(offsets.starts, again.starts):
                raise
            moved = describe_moves(offsets.starts, again.starts)
            warn(f"retention moved while the log was read, {moved}: read again")
            offsets = again
            continue
        break
    now = read_offsets(properties, topic, request.partitions)
    if moved := describe_moves(offsets.starts, now.starts):
        warn(f"retention moved on meanwhile, {moved}: a new gap may be there")
    return evidence, offsets
