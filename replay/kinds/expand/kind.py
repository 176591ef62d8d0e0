"""Expand: a backlog is drained through a temporary topic with more partitions and consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Console

from backlogctl.config import Config, Stream
from backlogctl.errors import Refused
from backlogctl.formats import format_plural, format_rate
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.engine.kind import Kind, RunContext, Say, Traits, Workspace, ignore_progress
from backlogctl.replay.engine.plan import LEAVE_CONSUMERS, REWIND, RunOrigin
from backlogctl.replay.engine.values import Account, RecoveryRecord, RecoveryStatus, Telling
from backlogctl.replay.kinds.expand.plan import ALLOW_DISK, NAME, ExpandOptions, ExpandPlan
from backlogctl.values import FINAL, Gap, GapState, Recovery, Step

if TYPE_CHECKING:
    from backlogctl.kafka.rights import Right
    from backlogctl.ledger import Lease, Ledger
# More consumers are what helps: the group reads, and too slowly.
_TOO_SLOW = (Verdict.LOSING, Verdict.WARN, Verdict.LAGGING)
# A loss that was seen longer before the plan has nothing to do with this backlog.
_LOOK_BACK = timedelta(hours=24)
# What is lost at the very end is seen by the next look.
_SEEN_LATE = timedelta(minutes=5)


class ExpandKind(Kind[ExpandPlan, ExpandOptions]):
    """Emergency expansion, by P4."""

    name = NAME
    summary = "Drain a backlog through a temporary topic with many partitions and consumers."
    traits = Traits(stops_consumers=True, holds_when_failed=True)
    plan_model = ExpandPlan
    options_model = ExpandOptions
    cancel_ways = (REWIND, LEAVE_CONSUMERS)

    def make_plan(
        self,
        workspace: Workspace,
        stream: Stream,
        options: ExpandOptions,
        *,
        origin: RunOrigin | None = None,
        say: Say = ignore_progress,
    ) -> Recovery:
        """How long, how many, and what is done to whom; Kafka is only read."""
        from backlogctl.replay.kinds.expand.planning import plan_expand

        return plan_expand(workspace, stream, options, origin=origin, say=say)

    def check(self, plan: ExpandPlan, recovery: Recovery) -> None:
        """A copy that does not fit, and was not allowed by name."""
        if plan.disk.enough is False and ALLOW_DISK not in plan.allowed:
            raise Refused(
                "the brokers' disks have no room for the temporary topic",
                subject=f"recovery {recovery.id}",
                hint=f"make room, then `backlogctl plan expand {plan.stream}`; `--allow disk` "
                "goes on in spite of it",
            )

    def suggest(
        self, ledger: Ledger, stream: Stream, course: Verdict, lag: int, topic_id: str
    ) -> bool:
        """Where the group reads, and too slowly."""
        return stream.consumers is not None and bool(lag) and course in _TOO_SLOW

    def is_configured(self, stream: Stream) -> bool:
        """Somebody must be able to start consumers."""
        return stream.consumers is not None

    def list_rights(
        self, config: Config, stream: Stream, recovery_id: str, plan: ExpandPlan | None = None
    ) -> tuple[Right, ...]:
        """A temporary topic is made and deleted, offsets of two groups are committed; and who else
        commits for them is looked up where that is allowed."""
        from backlogctl.replay.observe.rights import select_rights

        holds = plan is None or bool(plan.hold.changes)
        parts = "see watch raise expand keep" if holds else "see watch expand keep"
        prefix = (plan or config.kafka_ledger).transactional_prefix
        return select_rights(parts, stream, recovery_id, optional="keep", prefix=prefix)

    @property
    def context(self) -> type[RunContext[ExpandPlan]]:
        """Both topics, the relays, the consumers, the view."""
        from backlogctl.replay.kinds.expand.context import ExpandContext

        return ExpandContext

    @property
    def steps(self) -> Sequence[Step[Any]]:
        """From the check of the source to the removal of the temporary topic."""
        from backlogctl.replay.kinds.expand.steps import STEPS

        return STEPS

    def close(
        self,
        workspace: Workspace,
        recovery: Recovery,
        lease: Lease,
        *,
        context: RunContext[ExpandPlan] | None,
        console: Console,
    ) -> None:
        """Cuts over now, and restores the layout: nothing is left only in the temporary topic."""
        from backlogctl.replay.engine.cancelling import open_closing
        from backlogctl.replay.kinds.expand.context import ExpandContext
        from backlogctl.replay.kinds.expand.steps import close_expansion

        with open_closing(
            ExpandContext, workspace, recovery, lease, context=context, console=console
        ) as opened:
            close_expansion(opened)

    def asks_how_to_close(self, workspace: Workspace, recovery: Recovery) -> bool:
        """Where the temporary topic may be gone, with messages that the group can read again."""
        found = {step.step: step for step in workspace.ledger.steps.list(recovery.id)}
        restored = "restore" in found and found["restore"].is_complete
        return "canary" in found and not restored

    def pass_message(
        self,
        workspace: Workspace,
        recovery: Recovery,
        partition: int,
        offset: int,
        console: Console,
    ) -> bool:
        """Keeps a message that its consumers cannot handle, and moves its group past it.

        Returns:
            False where that was done before.

        Raises:
            LeaseHeld: a runner works on it.
            Refused: it is over, or this is not the next unread message.
        """
        from backlogctl.replay.engine.cancelling import open_closing
        from backlogctl.replay.kinds.expand.context import ExpandContext
        from backlogctl.replay.kinds.expand.steps import pass_over

        with workspace.ledger.leases.hold(recovery.id) as lease:
            current = workspace.ledger.recoveries.get(recovery.id)
            if current.state in FINAL:
                raise Refused(
                    f"it is {current.state}, so there is nothing to pass",
                    subject=f"recovery {recovery.id}",
                )
            with open_closing(
                ExpandContext, workspace, current, lease, context=None, console=console
            ) as opened:
                return pass_over(opened, partition, offset)

    def tell(self, plan: ExpandPlan, recovery: Recovery) -> Telling:
        """What is behind, how long it takes, and what is done to whom."""
        from backlogctl.replay.kinds.expand.describe import describe_expand_plan

        return describe_expand_plan(plan, recovery)

    def account(self, plan: ExpandPlan, record: RecoveryRecord) -> Account:
        """What was relayed, written and handled."""
        from backlogctl.replay.kinds.expand.describe import account_for_expansion

        return account_for_expansion(plan, record)

    def count_run(
        self, plan: ExpandPlan, recovery: Recovery, counts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What was relayed and handled in all, and how fast the drain was."""
        return {"relayed": 0, "handled": 0, "drained_per_second": None, **counts}

    def say_run(self, plan: ExpandPlan, counts: Mapping[str, Any]) -> str:
        """`300,000 messages drained in all at 29,991/s, the layout is as it was`."""
        told = f"{format_plural(counts['relayed'], 'message')} drained in all"
        if rate := counts["drained_per_second"]:
            told += f" at {format_rate(rate)}"
        if passed := counts.get("passed"):
            told += f"; {format_plural(passed, 'message')} passed on purpose, and kept"
        return f"{told}, the layout is as it was"

    def say_cancelled(self, recovery: Recovery, ways: Sequence[str] = ()) -> str:
        """What was relayed is handled, and the consumers are back, or a person's to start."""
        if LEAVE_CONSUMERS in ways:
            return f"its topics are as they were; start the consumers of {recovery.group} yourself"
        return "the layout is as it was"

    def describe_standing(
        self, workspace: Workspace, recovery: Recovery, *, ask: bool = True
    ) -> RecoveryStatus:
        """Who reads, who is stopped, and what exists only in the temporary topic."""
        from backlogctl.replay.kinds.expand.describe import describe_expansion

        return describe_expansion(workspace, recovery, self.read_plan(recovery), ask=ask)

    def find_gaps(
        self, plan: ExpandPlan, ledger: Ledger, recovery: Recovery, ended_at: datetime | None
    ) -> tuple[Gap, ...]:
        """What its topic and group lost of this backlog."""
        return tuple(
            gap
            for gap in ledger.gaps.list(recovery.stream)
            if _is_of_backlog(gap, plan, recovery, ended_at)
        )


def _is_of_backlog(
    gap: Gap, plan: ExpandPlan, recovery: Recovery, ended_at: datetime | None
) -> bool:
    """Whether it was lost while the recovery was there, or is a part of what was unread then."""
    if (gap.topic, gap.group) != (recovery.topic, recovery.group):
        return False
    if ended_at is not None and gap.detected_at > ended_at + _SEEN_LATE:
        return False
    if gap.detected_at >= recovery.created_at:
        return True
    if gap.state is GapState.WAIVED:
        return False
    if gap.detected_at >= recovery.created_at - _LOOK_BACK:
        return True
    # Seen long ago, and it grew until the plan was made.
    return any(
        row.partition == gap.partition and row.lost and gap.end is not None and gap.end >= row.start
        for row in plan.partitions
    )


KIND = ExpandKind()
