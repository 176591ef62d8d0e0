"""Step 3: canary first, then waves, each chunk once (spark_backfill.injection.waves)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from backlog.clock import utc_now
from backlog.errors import Refused
from backlog.step import Step
from backlog.values import GapState
from replay.injection.context import InjectionContext
from replay.injection.ledger import make_job
from replay.recovery.brakes import check_brakes
from replay.telling.progress import measure_injection

if TYPE_CHECKING:
    from datetime import datetime

    from spark_backfill.injection.brakes import InjectionProgress
    from spark_backfill.injection.writer import ChunkResult

_KEPT = 10_000


class Inject(Step[InjectionContext]):
    """Puts every staged message into the topic."""

    name = "inject"

    def validate(self, context: InjectionContext) -> None:
        """A plan without messages is not a success.

        Raises:
            Refused: nothing is staged.
        """
        if not context.manifest.count:
            raise Refused("the plan holds no messages", subject=f"recovery {context.recovery.id}")

    def start(self, context: InjectionContext) -> None:
        """Injects; what an earlier run committed is skipped."""
        spark = context.spark
        from spark_backfill.injection.brakes import Brake, CombinedBrakes, LiveLagBrake
        from spark_backfill.injection.disk_brake import DiskBrake
        from spark_backfill.injection.waves import inject

        job = make_job(context)
        brakes: list[Brake] = [
            _RunBrake(context),
            DiskBrake(job.properties, job.topic, job.manifest),
        ]
        if context.plan.delivers and context.plan.limits.max_live_lag is not None:
            brakes.append(
                LiveLagBrake(
                    job.properties,
                    context.stream.group,
                    job.topic,
                    job.partitions,
                    context.plan.limits.max_live_lag,
                )
            )
        context.bar.say("canary")
        tracker = _Tracker(context)
        with context.interrupts.deferred():
            inject(
                spark,
                job,
                CombinedBrakes(brakes),
                on_chunk=tracker.note_chunk,
                on_progress=tracker.note_progress,
            )

    def complete(self, context: InjectionContext) -> None:
        """The gaps' messages are in the topic."""
        context.advance_gaps(GapState.INJECTED, [GapState.PLANNED, GapState.STAGED])


class _RunBrake:
    """The window, requests, Ctrl-C and the lease, as a brake of the waves."""

    def __init__(self, context: InjectionContext) -> None:
        self._context = context

    def look(self, progress: InjectionProgress) -> str:
        """Raises what stops the run; never waits."""
        check_brakes(self._context)
        return ""


class _Tracker:
    """Copies what was committed into SQL, and moves the bar."""

    def __init__(self, context: InjectionContext) -> None:
        self._context = context
        # The page measures the same rate of the ledger's copy.
        self._done: deque[tuple[datetime, int]] = deque(maxlen=_KEPT)
        self._counts = context.found.setdefault("counts", {"injected": 0, "skipped": 0})

    def note_chunk(self, result: ChunkResult) -> None:
        """Called once for each committed chunk; the copy is right after any crash."""
        from spark_backfill.injection.writer import Outcome

        ledger, recovery_id = self._context.workspace.ledger, self._context.recovery.id
        ledger.chunks.mark_injected(
            recovery_id, result.slot, result.number, result.first_offset, result.last_offset
        )
        name = "skipped" if result.outcome is Outcome.SKIPPED else "injected"
        self._counts[name] += result.count
        if result.outcome is Outcome.INJECTED:
            self._done.append((utc_now(), result.count))

    def note_progress(self, progress: InjectionProgress) -> None:
        """Called after each wave."""
        bar = self._context.bar
        bar.say("injecting")
        done = progress.injected + progress.skipped
        rate = measure_injection(self._done, utc_now())
        bar.move(done, rate=rate or 0.0, eta=progress.left / rate if rate else None)
