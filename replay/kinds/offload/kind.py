"""Offload: what is unread moves off the brokers into an archive, and their disks are freed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console

from backlogctl.config import Config, Stream
from backlogctl.formats import format_bytes, format_plural
from backlogctl.replay.engine.kind import Kind, RunContext, Say, Traits, Workspace, ignore_progress
from backlogctl.replay.engine.plan import LEAVE_CONSUMERS, RunOrigin
from backlogctl.replay.engine.values import Account, RecoveryRecord, RecoveryStatus, Telling
from backlogctl.replay.kinds.offload.plan import EXPIRED, NAME, OffloadOptions, OffloadPlan
from backlogctl.values import Cause, Gap, Recovery, Step

if TYPE_CHECKING:
    from backlogctl.kafka.rights import Right
    from backlogctl.ledger import Lease


class Offload(Kind[OffloadPlan, OffloadOptions]):
    """Nearly full: offload into an archive, by P5. `auto` never chooses it by itself."""

    name = NAME
    summary = "Move what is unread off the brokers into an archive, and free their disks."
    traits = Traits(stops_consumers=True, holds_when_failed=True, opens_gaps=True, uses_spark=True)
    plan_model = OffloadPlan
    options_model = OffloadOptions
    cancel_ways = (LEAVE_CONSUMERS,)

    def make_plan(
        self,
        workspace: Workspace,
        stream: Stream,
        options: OffloadOptions,
        *,
        origin: RunOrigin | None = None,
        say: Say = ignore_progress,
    ) -> Recovery:
        """What is unread, where it goes and what that frees; Kafka is only read."""
        from backlogctl.replay.kinds.offload.planning import plan_offload

        return plan_offload(workspace, stream, options, origin=origin, say=say)

    def check(self, plan: OffloadPlan, recovery: Recovery) -> None:
        """A place without room, or other groups, that were not allowed by name."""
        from backlogctl.replay.kinds.offload.planning import refuse_unfit

        refuse_unfit(plan)

    def is_configured(self, stream: Stream) -> bool:
        """Somebody must be able to start consumers."""
        return stream.consumers is not None

    def list_rights(
        self, config: Config, stream: Stream, recovery_id: str, plan: OffloadPlan | None = None
    ) -> tuple[Right, ...]:
        """Records are deleted, segments ended, and offsets of the group are committed."""
        from backlogctl.replay.kinds.offload.planning import list_offload_rights

        return list_offload_rights(config, stream)

    @property
    def context(self) -> type[RunContext[OffloadPlan]]:
        """The fence, the archive, Spark, the group."""
        from backlogctl.replay.kinds.offload.context import OffloadContext

        return OffloadContext

    @property
    def steps(self) -> Sequence[Step[Any]]:
        """From the check of the source to what was freed."""
        from backlogctl.replay.kinds.offload.steps import STEPS

        return STEPS

    def close(
        self,
        workspace: Workspace,
        recovery: Recovery,
        lease: Lease,
        *,
        context: RunContext[OffloadPlan] | None,
        console: Console,
    ) -> None:
        """Back, before the group was moved; from there on forward."""
        from backlogctl.replay.engine.cancelling import open_closing
        from backlogctl.replay.kinds.offload.closing import close_offload
        from backlogctl.replay.kinds.offload.context import OffloadContext

        with open_closing(
            OffloadContext, workspace, recovery, lease, context=context, console=console
        ) as opened:
            close_offload(opened)

    def tell(self, plan: OffloadPlan, recovery: Recovery) -> Telling:
        """What is unread, where it goes, and what is done to whom."""
        from backlogctl.replay.kinds.offload.describe import describe_offload_plan

        return describe_offload_plan(plan, recovery)

    def account(self, plan: OffloadPlan, record: RecoveryRecord) -> Account:
        """What was archived, deleted and freed."""
        from backlogctl.replay.kinds.offload.describe import account_for_offload

        return account_for_offload(plan, record)

    def count_run(
        self, plan: OffloadPlan, recovery: Recovery, counts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What is in the archive, and bytes freed so far; None is unknown."""
        known = counts or recovery.detail.get("counts") or {}
        return {"archived": 0, "archive_bytes": 0, "offsets": 0, "freed_bytes": None, **known}

    def say_run(self, plan: OffloadPlan, counts: Mapping[str, Any]) -> str:
        """`2,000 messages are in the archive, 1.2 MB freed so far; the consumers are back`."""
        if plan.place is None:
            told = f"at most {format_plural(counts['offsets'], 'message')} are deleted for good"
        else:
            told = f"{format_plural(counts['archived'], 'message')} are in the archive"
        freed = counts["freed_bytes"]
        told += f", {'an unknown number of bytes' if freed is None else format_bytes(freed)} freed"
        if counts.get("moves") is False:
            return f"{told} so far; the consumers were started, but the group does not move"
        return f"{told} so far; the consumers are back"

    def say_cancelled(self, recovery: Recovery, ways: Sequence[str] = ()) -> str:
        """Who reads now; the record says whether it went back or forward."""
        if LEAVE_CONSUMERS in ways:
            return f"start the consumers of {recovery.group} yourself"
        return "the consumers are back"

    def describe_standing(
        self, workspace: Workspace, recovery: Recovery, *, ask: bool = True
    ) -> RecoveryStatus:
        """Who reads, who is stopped, and what is only in the archive."""
        from backlogctl.replay.kinds.offload.describe import describe_offload

        return describe_offload(workspace, recovery, self.read_plan(recovery), ask=ask)

    def find_gaps(
        self, plan: OffloadPlan, ledger: Any, recovery: Recovery, ended_at: datetime | None
    ) -> tuple[Gap, ...]:
        """What it took off the brokers, and what was lost meanwhile, whoever saw it first."""
        gone = [e.detail for e in ledger.events.list(recovery.id) if e.action == EXPIRED]

        def is_gone(gap: Gap) -> bool:
            return gap.cause is Cause.EXPIRED and any(
                gap.partition == lost["partition"]
                and (gap.start is None or gap.start < lost["end"])
                and (gap.end is None or gap.end > lost["start"])
                for lost in gone
            )

        return tuple(
            gap
            for gap in ledger.gaps.list(recovery.stream)
            if gap.archive == recovery.id or recovery.id in gap.reason or is_gone(gap)
        )


KIND = Offload()
