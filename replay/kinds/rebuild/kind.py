"""Rebuild: what was lost is made again from the source tables, and put back once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console

from backlog.config import Config, Stream
from backlog.errors import Refused
from backlog.numbers import format_plural
from backlog.step import Step
from backlog.values import Gap, GapState, Recovery
from monitoring.verdicts import Verdict
from replay.kinds.rebuild.options import ALLOW_SURPLUS, RebuildOptions
from replay.kinds.rebuild.plan import NAME, RebuildPlan
from replay.recovery.context import RunContext
from replay.recovery.kind import Kind, Say, Traits, say_nothing
from replay.recovery.plan import Origin, PlannedWindow
from replay.recovery.workspace import Workspace
from replay.telling.account import Account, RecoveryRecord
from replay.telling.standing import PutBack, Readers, Reads, Standing, make_standing
from replay.telling.value import Telling

if TYPE_CHECKING:
    from backlog.kafka.rights import Right
    from backlog.ledger import Lease, Ledger

SURPLUS = "surplus"
# Sends nothing twice, or nothing but the newest state of rows that are restated anyway.
HARMLESS = ("exact", "covering")


class Rebuild(Kind[RebuildPlan, RebuildOptions]):
    """Lost messages, by P2 and P3."""

    name = NAME
    summary = "Rebuild what was lost from the source table, and put it back once."
    traits = Traits(repairs_gaps=True, injects=True)
    plan_model = RebuildPlan
    options_model = RebuildOptions

    def make_plan(
        self,
        workspace: Workspace,
        stream: Stream,
        options: RebuildOptions,
        *,
        origin: Origin | None = None,
        say: Say = say_nothing,
    ) -> Recovery:
        """Finds, compares, proves and stages; Kafka and the source are only read."""
        from replay.kinds.rebuild.planning import plan_rebuild

        return plan_rebuild(workspace, stream, options, origin=origin, say=say)

    def apply_terms(self, plan: RebuildPlan, stream: Stream) -> RebuildPlan:
        """The window, the limits and `deliver` are those of the configuration."""
        return (
            super()
            .apply_terms(plan, stream)
            .model_copy(
                update={
                    "deliver": stream.deliver,
                    "limits": stream.limits,
                    "off_peak": PlannedWindow.freeze(stream.off_peak),
                }
            )
        )

    def check(self, plan: RebuildPlan, recovery: Recovery) -> None:
        """Surplus that was not allowed by name, or readers who would get messages twice."""
        subject = f"recovery {recovery.id}"
        if plan.outcome.verdict == SURPLUS and ALLOW_SURPLUS not in plan.allowed:
            surplus = format_plural(plan.outcome.counts.surplus, "message")
            raise Refused(
                f"the plan would send {surplus} not known to be lost",
                subject=subject,
                hint=f"mend the configuration, or `backlogctl plan rebuild {plan.stream} "
                "--allow surplus`",
            )
        count = plan.outcome.counts.rebuilt
        if count > plan.limits.max_messages:
            raise Refused(
                f"{count} messages are more than `limits.max_messages` "
                f"({plan.limits.max_messages})",
                subject=subject,
                hint=f"raise the limit of stream {plan.stream}",
            )
        if plan.other_groups and plan.deliver != "topic":
            raise Refused(
                f"other groups read topic {plan.topic} and would get the messages again: "
                f"{', '.join(plan.other_groups)}",
                subject=subject,
                hint=f"say `deliver: topic` in stream {plan.stream} if that is right",
            )
        if plan.others_unknown and plan.deliver != "topic":
            raise Refused(
                f"whether other groups read topic {plan.topic}, and would get the messages again, "
                f"is unknown: the tool {plan.others_unknown}",
                subject=subject,
                hint=f"grant that (`backlogctl acl rebuild {plan.stream}` prints what is needed) "
                f"and plan again, or say `deliver: topic` in stream {plan.stream} if other readers "
                "may get them",
            )

    def is_automatic(self, plan: RebuildPlan) -> bool:
        """An exact or covering one that nobody else gets."""
        alone = not (plan.other_groups or plan.others_unknown) or plan.deliver == "topic"
        return plan.outcome.verdict in HARMLESS and alone

    def suggest(
        self, ledger: Ledger, stream: Stream, course: Verdict, lag: int, topic_id: str
    ) -> bool:
        """Where a gap is open that can be rebuilt; any other stays until a person waives it."""
        from replay.kinds.rebuild.planning import say_why_not

        lost = ledger.gaps.list(stream=stream.name, states=[GapState.OPEN])
        known = any(not say_why_not(gap, stream, topic_id) for gap in lost)
        return stream.source is not None and known

    def is_configured(self, stream: Stream) -> bool:
        """There is a table to rebuild from."""
        return stream.source is not None

    def list_rights(
        self, config: Config, stream: Stream, recovery_id: str, plan: RebuildPlan | None = None
    ) -> tuple[Right, ...]:
        """The topic and the Kafka ledger are written in transactions."""
        from replay.kinds.rebuild.rights import list_rebuilding

        return list_rebuilding(config, stream, plan)

    @property
    def context(self) -> type[RunContext[RebuildPlan]]:
        """Staged messages, Spark, the gaps."""
        from replay.kinds.rebuild.context import RebuildContext

        return RebuildContext

    @property
    def steps(self) -> Sequence[Step[Any]]:
        """Check, inject, verify."""
        from replay.kinds.rebuild.steps import STEPS

        return STEPS

    def close(
        self,
        workspace: Workspace,
        recovery: Recovery,
        lease: Lease,
        *,
        context: RunContext[RebuildPlan] | None,
        console: Console,
    ) -> None:
        """Fences every slot. What is committed stays, and later plans subtract it."""
        from replay.kinds.rebuild.injection import fence_recovery

        fence_recovery(workspace, recovery)

    def tell(self, plan: RebuildPlan, recovery: Recovery) -> Telling:
        """What will be put back, and why."""
        from replay.kinds.rebuild.telling import tell_rebuild

        return tell_rebuild(plan, recovery)

    def account(self, plan: RebuildPlan, record: RecoveryRecord) -> Account:
        """What was put back and read back."""
        from replay.kinds.rebuild.accounting import account_for_rebuild

        return account_for_rebuild(plan, record)

    def count_run(
        self, plan: RebuildPlan, recovery: Recovery, counts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """`injected` by this run, `skipped` as they were in the topic already; together all.

        Of a recovery that was verified before, all count as injected.
        """
        known = counts or {"injected": recovery.injected, "skipped": recovery.skipped}
        return {**known, "quarantined": plan.outcome.counts.quarantined}

    def say_run(self, plan: RebuildPlan, counts: Mapping[str, Any]) -> str:
        """`1,000 messages are in topic orders, each once`."""
        count = counts["injected"] + counts["skipped"]
        told = f"{format_plural(count, 'message')} {'is' if count == 1 else 'are'} in topic "
        told += f"{plan.topic}, each once"
        if left_out := counts["quarantined"]:
            told += f"; {format_plural(left_out, 'row')} in quarantine"
        return told

    def say_cancelled(self, recovery: Recovery, ways: Sequence[str] = ()) -> str:
        """Its gaps, and what was put back."""
        if not recovery.injected:
            return "its gaps are open again"
        were = "was" if recovery.injected == 1 else "were"
        return (
            f"its gaps are open again ({format_plural(recovery.injected, 'message')} {were} put "
            "back before; later plans subtract them)"
        )

    def describe_standing(
        self, workspace: Workspace, recovery: Recovery, *, ask: bool = True
    ) -> Standing:
        """What was put back, and what not; it stops nobody's consumers."""
        planned = self.read_plan(recovery).outcome.counts.rebuilt
        return make_standing(
            workspace,
            recovery,
            Readers(Reads.ORIGINALS),
            put_back=PutBack(recovery.injected, planned),
        )

    def find_gaps(
        self, plan: RebuildPlan, ledger: Ledger, recovery: Recovery, ended_at: datetime | None
    ) -> tuple[Gap, ...]:
        """The gaps that it took, as they were planned: one that was released may have grown."""
        ids = set(ledger.recoveries.gap_ids(recovery.id))
        planned = {gap.id: gap for gap in plan.gaps}
        found = [
            replace(gap, start=planned[gap.id].start, end=planned[gap.id].end)
            if gap.id in planned
            else gap
            for gap in ledger.gaps.list(recovery.stream)
            if gap.id in ids
        ]
        return tuple(sorted(found, key=lambda gap: (gap.partition, gap.start or 0)))


KIND = Rebuild()
