"""Rebuild: what was lost is made again from the source tables, and put back once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backlogctl.config import Stream
from backlogctl.errors import Refused
from backlogctl.formats import format_plural
from backlogctl.monitoring.verdict.commands import rebuild_stream
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.engine.kind import Say, Traits, Workspace, ignore_progress
from backlogctl.replay.engine.plan import RunOrigin
from backlogctl.replay.engine.values import Account, RecoveryRecord, Telling
from backlogctl.replay.injection.archived import suggest_redrive
from backlogctl.replay.injection.kind import InjectionKind, has_readers_alone
from backlogctl.replay.injection.unprocessed import is_skipped_in_log
from backlogctl.replay.kinds.rebuild.plan import (
    ALLOW_SURPLUS,
    ALLOW_UNCERTAIN,
    NAME,
    RebuildOptions,
    RebuildPlan,
)
from backlogctl.values import Certainty, Gap, Recovery

if TYPE_CHECKING:
    from backlogctl.ledger import Ledger

SURPLUS = "surplus"
# Sends nothing twice, or nothing but the newest state of rows that are restated anyway.
HARMLESS = ("exact", "covering")


class Rebuild(InjectionKind[RebuildPlan, RebuildOptions]):
    """Lost messages, by P2 and P3."""

    name = NAME
    summary = "Rebuild what was lost from the source table, and put it back once."
    traits = Traits(repairs_gaps=True, injects=True, uses_spark=True)
    plan_model = RebuildPlan
    options_model = RebuildOptions

    def make_plan(
        self,
        workspace: Workspace,
        stream: Stream,
        options: RebuildOptions,
        *,
        origin: RunOrigin | None = None,
        say: Say = ignore_progress,
    ) -> Recovery:
        """Finds, compares, proves and stages; Kafka and the source are only read."""
        from backlogctl.replay.kinds.rebuild.planning import plan_rebuild

        return plan_rebuild(workspace, stream, options, origin=origin, say=say)

    def check(self, plan: RebuildPlan, recovery: Recovery) -> None:
        """Surplus, or mostly rows that may have been read, that was not allowed by name; or readers
        who would get messages twice."""
        subject = f"recovery {recovery.id}"
        if plan.outcome.verdict == SURPLUS and ALLOW_SURPLUS not in plan.allowed:
            surplus = format_plural(plan.outcome.counts.surplus, "message")
            raise Refused(
                f"the plan would send {surplus} not known to be lost",
                subject=subject,
                hint=f"mend the configuration, or `backlogctl plan rebuild {plan.stream} "
                "--allow surplus`",
            )
        if plan.is_mostly_uncertain and ALLOW_UNCERTAIN not in plan.allowed:
            taken = plan.outcome.uncertain.taken
            raise Refused(
                f"of {format_plural(plan.message_count, 'message')} that it would send {taken} may "
                "have been read: most of them are not known to be lost",
                subject=subject,
                hint=f"look at the rows in {plan.outcome.uncertain.path}; then `source.edge: "
                f"exclude` leaves them out, or `backlogctl plan rebuild {plan.stream} "
                "--allow uncertain` takes them",
            )
        super().check(plan, recovery)

    def is_automatic(self, plan: RebuildPlan) -> bool:
        """An exact or covering one that nobody else gets."""
        return plan.outcome.verdict in HARMLESS and has_readers_alone(plan)

    def suggest(
        self, ledger: Ledger, stream: Stream, course: Verdict, lag: int, topic_id: str
    ) -> bool:
        """Where a gap is open that rows can fill; any other stays until a person waives it."""
        from backlogctl.replay.kinds.rebuild.losses import list_repairable

        return bool(list_repairable(ledger, stream, topic_id))

    def suggest_plans(
        self, ledger: Ledger, stream: Stream, gaps: Collection[Gap]
    ) -> tuple[str, ...]:
        """Where rows can fill a gap whose messages are nowhere else."""
        from backlogctl.replay.kinds.rebuild.losses import explain_unrebuildable

        fills = any(
            gap.certainty is not Certainty.POSSIBLE
            and not suggest_redrive(ledger, gap)
            and not is_skipped_in_log(ledger, stream, gap)
            and not explain_unrebuildable(ledger, gap, stream)
            for gap in gaps
        )
        return (rebuild_stream(stream.name),) if fills else ()

    def is_configured(self, stream: Stream) -> bool:
        """There is a table to rebuild from."""
        return stream.source is not None

    def tell(self, plan: RebuildPlan, recovery: Recovery) -> Telling:
        """What will be put back, and why."""
        from backlogctl.replay.kinds.rebuild.describe import describe_rebuild_plan

        return describe_rebuild_plan(plan, recovery)

    def account(self, plan: RebuildPlan, record: RecoveryRecord) -> Account:
        """What was put back and read back."""
        from backlogctl.replay.kinds.rebuild.describe import account_for_rebuild

        return account_for_rebuild(plan, record)

    def say_run(self, plan: RebuildPlan, counts: Mapping[str, Any]) -> str:
        """`1,000 messages are in topic orders, each once`."""
        told = super().say_run(plan, counts)
        if not plan.delivers:
            told += "; the gaps are as they were"
        if left_out := counts["quarantined"]:
            told += f"; {format_plural(left_out, 'row')} in quarantine"
        return told

    def say_cancelled(self, recovery: Recovery, ways: Sequence[str] = ()) -> str:
        """Its gaps, and what was put back."""
        plan = self.read_plan(recovery)
        if not plan.delivers:
            return "the gaps are as they were: it sent nothing to the stream's own topic"
        told = "its gaps are open again"
        if not recovery.injected:
            return told
        were = "was" if recovery.injected == 1 else "were"
        return (
            f"{told} ({format_plural(recovery.injected, 'message')} {were} put "
            "back before; later plans subtract them)"
        )

    def find_gaps(
        self, plan: RebuildPlan, ledger: Ledger, recovery: Recovery, ended_at: datetime | None
    ) -> tuple[Gap, ...]:
        """The gaps that it took, as they were planned: one that was released may have grown."""
        ids = set(ledger.recoveries.gap_ids(recovery.id))
        planned = {gap.id: gap for gap in plan.gaps}
        found = [
            replace(gap, start=planned[gap.id].start, end=planned[gap.id].end)
            if gap.id in planned and gap.sequences is None
            else gap
            for gap in ledger.gaps.list(recovery.stream)
            if gap.id in ids
        ]
        return tuple(sorted(found, key=lambda gap: (gap.partition, gap.start or 0)))


KIND = Rebuild()
