"""The plan of a rebuild that takes all its messages from archives: no table, no proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backlog.errors import PutBackAlready, Refused
from backlog.numbers import format_plural
from backlog.values import Chunk, OffsetRange
from spark_backfill.archived.choosing import Chosen, choose_archived
from spark_backfill.archived.judging import add_again, add_archived, count_archived
from spark_backfill.archived.opening import OpenArchive
from spark_backfill.archived.segments import Segments
from spark_backfill.archived.staging import stage_all
from spark_backfill.evidence.injected import InjectedEvidence
from spark_backfill.evidence.offsets import LogOffsets, read_offsets
from spark_backfill.guards import require_few
from spark_backfill.messages.rules import ORIGINAL
from spark_backfill.messages.staging import ChunkLimits
from spark_backfill.originals.still_there import StillThere
from spark_backfill.phases import PlanLog
from spark_backfill.request import Counts, Proof, Quarantine, RebuildOutcome, RebuildRequest
from spark_backfill.staging_folder import prepare_staging
from spark_backfill.tally import list_quarantine
from spark_backfill.verdict import RebuildVerdict, Tally, VerdictBasis, count_expected, judge_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN = 5


def plan_archived(
    spark: SparkSession,
    request: RebuildRequest,
    ranges: Sequence[OffsetRange],
    archives: Sequence[OpenArchive],
    log: PlanLog,
    limits: ChunkLimits | None,
) -> tuple[RebuildOutcome, tuple[Chunk, ...]]:
    """Stages what the archives hold.

    Args:
        ranges: gaps over messages that were put back from an archive before.

    Returns:
        The outcome without its manifest, and the chunks.

    Raises:
        Refused: there is nothing to put back, or too much.
        StagingError: the archive is not what its manifest says.
    """
    work = prepare_staging(request.staging_root, request.directory)
    with log.timed("archive", "reading the archive"):
        offsets = read_offsets(request.client_properties, request.stream.topic, request.partitions)
        injected = _open_injected(spark, request, ranges, offsets)
        chosen = choose_archived(spark, request, archives, injected, Segments(), work)
    verdict = _judge(ranges, injected, chosen)
    require_archived(request, chosen)
    require_few(request, chosen.count)
    with log.timed("staging", f"staging {format_plural(chosen.count, 'message')}"):
        chunks, slots = stage_all(request, chosen, Segments(), limits)
        rejected = chosen.rejected
        count = sum(item.quarantined for item in chosen.taken.values())
        quarantine = (
            Quarantine(0, {}, (), "")
            if rejected is None
            else list_quarantine(rejected, request.directory, count)
        )
    expected = sum(row.expected for row in verdict.partitions)
    counts = count_archived(Counts(expected=expected), chosen)
    outcome = RebuildOutcome(
        recovery_id=request.recovery_id,
        verdict=verdict.kind,
        reasons=verdict.reasons,
        counts=counts,
        partitions=verdict.partitions,
        proof=Proof(0, 0, 0, 0, 0, mutable=False),
        quarantine=quarantine,
        warnings=(),
        manifest_sha256="",
        chunks=len(chunks),
        bytes=sum(chunk.bytes for chunk in chunks),
        fidelity=ORIGINAL,
        bounds=(None, None),
        log_start=dict(offsets.starts),
        log_end=dict(offsets.ends),
        slots=tuple(sorted(slots)),
    )
    return outcome, chunks


def require_archived(request: RebuildRequest, chosen: Chosen) -> None:
    """Refuses a plan that has nothing to send.

    Raises:
        PutBackAlready: all of it is put back, so that its gaps can be waived.
        Refused: of some messages that cannot be said.
    """
    if chosen.count:
        return
    taken = chosen.taken.values()
    quarantined = sum(item.quarantined for item in taken)
    what = (
        f"there is nothing to put back: of {sum(item.messages for item in taken)} archived "
        f"messages {sum(item.put_back for item in taken)} were put back by earlier recoveries, "
        f"and {quarantined} are in quarantine"
    )
    subject, verb = f"stream {request.stream.name}", "`backlogctl waive"
    if quarantined or chosen.gone or request.gaps:
        hint = f"{verb}` closes a gap that needs no recovery"
        raise Refused(what, subject=subject, hint=hint)
    commands = [f'{verb} {gap.id} --reason "put back already"`' for gap in request.archived]
    more = f"; and {len(commands) - _SHOWN} more gaps" if len(commands) > _SHOWN else ""
    raise PutBackAlready(
        what, subject=subject, hint=f"close what is on record: {'; '.join(commands[:_SHOWN])}{more}"
    )


def _open_injected(
    spark: SparkSession,
    request: RebuildRequest,
    ranges: Sequence[OffsetRange],
    offsets: LogOffsets,
) -> InjectedEvidence:
    prior = (*request.prior, *request.elsewhere)
    there = StillThere(
        spark, request.client_properties, request.stream.topic, offsets.starts, request.prior
    )
    injected = InjectedEvidence(spark, request.staging_root, prior, ranges, there)
    injected.freeze()
    return injected


def _judge(
    ranges: Sequence[OffsetRange], injected: InjectedEvidence, chosen: Chosen
) -> RebuildVerdict:
    expected = count_expected(ranges, injected.list_stretches())
    tally = add_again(Tally({}, {}, {}), chosen.again)
    return add_archived(judge_plan(expected, tally, VerdictBasis()), chosen)
