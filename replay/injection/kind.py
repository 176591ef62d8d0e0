"""What kinds that send staged messages have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from backlog.config import Config, Stream
from backlog.numbers import format_plural
from backlog.step import Step
from backlog.values import Recovery
from replay.injection.checks import check_readers, check_size
from replay.injection.plan import InjectionPlan
from replay.recovery.context import RunContext
from replay.recovery.kind import Kind, OptionsT
from replay.recovery.plan import PlannedWindow
from replay.recovery.workspace import Workspace
from replay.telling.standing import make_standing
from replay.telling.standings import PutBack, Readers, Reads, Standing

if TYPE_CHECKING:
    from backlog.kafka.rights import Right
    from backlog.ledger import Lease

InjectionT = TypeVar("InjectionT", bound=InjectionPlan)


class InjectionKind(Kind[InjectionT, OptionsT]):
    """A kind whose plans stage messages, and whose runs send each once (protocol P3)."""

    def apply_terms(self, plan: InjectionT, stream: Stream) -> InjectionT:
        """The window, the limits and `deliver` are those of the configuration."""
        terms = {
            "deliver": stream.deliver,
            "limits": stream.limits,
            "off_peak": PlannedWindow.freeze(stream.off_peak),
        }
        return super().apply_terms(plan, stream).model_copy(update=terms)

    def check(self, plan: InjectionT, recovery: Recovery) -> None:
        """Too many messages, or readers who would get them too."""
        check_size(plan, recovery)
        check_readers(plan, recovery)

    def list_rights(
        self, config: Config, stream: Stream, recovery_id: str, plan: InjectionT | None = None
    ) -> tuple[Right, ...]:
        """The target and the Kafka ledger are written in transactions."""
        from replay.injection.rights import list_possible, list_sending

        if plan is None:
            return list_possible(config, stream, recovery_id)
        return list_sending(config, stream, recovery_id, plan, plan.target)

    @property
    def context(self) -> type[RunContext[Any]]:
        """Staged messages, Spark, the gaps."""
        from replay.injection.context import InjectionContext

        return InjectionContext

    @property
    def steps(self) -> Sequence[Step[Any]]:
        """Check, make the target, inject, verify."""
        from replay.injection.steps import STEPS

        return STEPS

    def close(
        self,
        workspace: Workspace,
        recovery: Recovery,
        lease: Lease,
        *,
        context: RunContext[InjectionT] | None,
        console: Console,
    ) -> None:
        """Fences every slot. What is committed stays; a rehearsal's topic is deleted."""
        from replay.injection.rehearsals import close_injection

        close_injection(workspace, recovery)

    def count_run(
        self, plan: InjectionT, recovery: Recovery, counts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """`injected` by this run, `skipped` as they were in the topic already; together all.

        Of a recovery that was verified before, all count as injected.
        """
        known = counts or {"injected": recovery.injected, "skipped": recovery.skipped}
        return {**known, "quarantined": plan.quarantined}

    def say_run(self, plan: InjectionT, counts: Mapping[str, Any]) -> str:
        """`1,000 messages are in topic orders, each once`."""
        from replay.injection.target import say_target

        count = counts["injected"] + counts["skipped"]
        are = "is" if count == 1 else "are"
        where = say_target(plan.target, plan.topic)
        return f"{format_plural(count, 'message')} {are} in {where}, each once"

    def describe_standing(
        self, workspace: Workspace, recovery: Recovery, *, ask: bool = True
    ) -> Standing:
        """What was put back, and what not; it stops nobody's consumers."""
        planned = self.read_plan(recovery).message_count
        return make_standing(
            workspace,
            recovery,
            Readers(Reads.ORIGINALS),
            put_back=PutBack(recovery.injected, planned),
        )
