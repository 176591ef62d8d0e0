"""Step 4: reads everything back; only then is a gap verified."""

from __future__ import annotations

from backlog.step import Step
from backlog.values import GapState
from replay.injection.context import InjectionContext
from replay.injection.ledger import make_job
from replay.recovery.brakes import check_requests


class Verify(Step[InjectionContext]):
    """Every message id exactly once, bytes and partition as staged (spark_backfill)."""

    name = "verify"

    def start(self, context: InjectionContext) -> None:
        """Reads the target ranges back.

        Raises:
            VerificationFailed: names the ids that are missing, doubled or different.
            PausedBecause, CancelRequested: somebody asked; the next run reads back again.
        """
        # What was asked for during the last wave, after which nothing looks.
        check_requests(context)
        spark = context.spark
        context.bar.say("reading back")
        from spark_backfill.injection.verification import verify

        job = make_job(context)
        result = verify(
            spark,
            properties=job.properties,
            topic=job.topic,
            topic_id=job.topic_id,
            partitions=job.partitions,
            manifest=job.manifest,
            directory=job.directory,
            start_offsets=job.start_offsets,
            known_ends=_find_ends(context),
            look=lambda: check_requests(context),
        )
        context.found["verified"] = result.to_json()
        context.record("read back", **result.to_json())
        result.require_exact(f"topic {job.topic}")

    def complete(self, context: InjectionContext) -> None:
        """The gaps are closed."""
        context.advance_gaps(GapState.VERIFIED, [GapState.INJECTED])
        context.bar.say("verified")


def _find_ends(context: InjectionContext) -> dict[int, int]:
    """The offset after the last injected message of each slot whose chunks' offsets are known."""
    chunks = context.workspace.ledger.chunks.list(context.recovery.id)
    ends: dict[int, list[int | None]] = {}
    for record in chunks:
        ends.setdefault(record.chunk.slot, []).append(record.last_offset)
    return {
        slot: max(known) + 1
        for slot, offsets in ends.items()
        if len(known := [at for at in offsets if at is not None]) == len(offsets)
    }
