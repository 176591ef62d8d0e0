"""Redrive: messages of the log, of an archive or of dead letters are put back once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backlogctl.config import Config, Stream
from backlogctl.formats import format_plural
from backlogctl.monitoring.verdict.commands import redrive_offsets
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.engine.archives import ARCHIVE
from backlogctl.replay.engine.kind import Say, Traits, Workspace, ignore_progress
from backlogctl.replay.engine.plan import RunOrigin
from backlogctl.replay.engine.values import Account, Fact, RecoveryRecord, Telling
from backlogctl.replay.injection.archived import list_archived, suggest_redrive
from backlogctl.replay.injection.kind import InjectionKind, has_readers_alone
from backlogctl.replay.injection.plan import To
from backlogctl.replay.injection.unprocessed import find_skipped, is_skipped_in_log
from backlogctl.replay.kinds.redrive.plan import NAME, RedriveOptions, RedrivePlan
from backlogctl.values import Gap, Recovery

if TYPE_CHECKING:
    from backlogctl.kafka.rights import Right
    from backlogctl.ledger import Ledger


class RedriveKind(InjectionKind[RedrivePlan, RedriveOptions]):
    """Messages that exist, by P9 and P3."""

    name = NAME
    summary = "Put messages back that exist: of the log, an archive, or dead letters."
    traits = Traits(repairs_gaps=True, injects=True, uses_spark=True)
    plan_model = RedrivePlan
    options_model = RedriveOptions

    def make_plan(
        self,
        workspace: Workspace,
        stream: Stream,
        options: RedriveOptions,
        *,
        origin: RunOrigin | None = None,
        say: Say = ignore_progress,
    ) -> Recovery:
        """Reads, chooses and stages; Kafka is only read."""
        from backlogctl.replay.kinds.redrive.planning import plan_redrive

        return plan_redrive(workspace, stream, options, origin=origin, say=say)

    def is_automatic(self, plan: RedrivePlan) -> bool:
        """Where all that waits in an archive goes to the group that lost it, and to nobody else.
        Into a topic that was made anew since, a person puts it."""
        counts = plan.outcome.counts
        same = plan.source.topic_id == plan.topic_id
        left_out = counts.replays or counts.quarantined or plan.outcome.uncertain or plan.damaged
        return plan.lost_only and same and not left_out and has_readers_alone(plan)

    def suggest(
        self, ledger: Ledger, stream: Stream, course: Verdict, lag: int, topic_id: str
    ) -> bool:
        """Where messages wait in an archive."""
        return bool(list_archived(ledger, stream, topic_id))

    @property
    def is_suggested(self) -> bool:
        """No: `auto` takes it as `suggest_options` says, and not with options of a form."""
        return False

    def suggest_options(self, ledger: Ledger, stream: Stream) -> dict[str, Any]:
        """What waits in the oldest archive."""
        found = list_archived(ledger, stream)
        return {"source": f"{ARCHIVE}:{found[0].record.recovery_id}"} if found else {}

    def suggest_plans(
        self, ledger: Ledger, stream: Stream, gaps: Collection[Gap]
    ) -> tuple[str, ...]:
        """From where their messages are; one plan for all that the group was set past."""
        skipped = [gap for gap in gaps if is_skipped_in_log(ledger, stream, gap)]
        others = [suggest_redrive(ledger, gap) for gap in gaps if gap not in skipped]
        places = filter(None, (find_skipped(ledger, stream, gap) for gap in skipped))
        from_log = [redrive_offsets(stream.name, places)] if skipped else []
        return tuple(sorted({*from_log, *filter(None, others)}))

    def is_configured(self, stream: Stream) -> bool:
        """A stream needs nothing for it."""
        return True

    def list_rights(
        self, config: Config, stream: Stream, recovery_id: str, plan: RedrivePlan | None = None
    ) -> tuple[Right, ...]:
        """The source is read; the target and the Kafka ledger are written in transactions."""
        from backlogctl.replay.injection.plan import list_sending

        if plan is None:
            return super().list_rights(config, stream, recovery_id)
        return list_sending(config, stream, recovery_id, plan, plan.sends_to, plan.source.letters)

    def tell(self, plan: RedrivePlan, recovery: Recovery) -> Telling:
        """Which messages go where."""
        from backlogctl.replay.kinds.redrive.describe import describe_redrive_plan

        return describe_redrive_plan(plan, recovery)

    def preview(
        self, workspace: Workspace, plan: RedrivePlan, recovery: Recovery
    ) -> tuple[Fact, ...]:
        """Errors, and a few messages, masked."""
        from backlogctl.replay.kinds.redrive.sources import preview_errors

        errors = preview_errors(workspace, plan, recovery.id)
        return (*errors, *super().preview(workspace, plan, recovery))

    def account(self, plan: RedrivePlan, record: RecoveryRecord) -> Account:
        """What was put back and read back."""
        from backlogctl.replay.kinds.redrive.describe import account_for_redrive

        return account_for_redrive(plan, record)

    def say_run(self, plan: RedrivePlan, counts: Mapping[str, Any]) -> str:
        """`1,000 messages are in topic orders, each once`."""
        told = super().say_run(plan, counts)
        if left_out := counts["quarantined"]:
            told += f"; {format_plural(left_out, 'message')} too large for it"
        return told

    def say_cancelled(self, recovery: Recovery, ways: Sequence[str] = ()) -> str:
        """What was put back stays, but for a rehearsal's."""
        target = self.read_plan(recovery).target
        if target is not None and target.to is To.REHEARSAL:
            return "its rehearsal is thrown away"
        gaps = "its gaps are as they were before; " if self._takes_gaps(recovery) else ""
        if not recovery.injected:
            return f"{gaps}nothing was put back"
        were = "was" if recovery.injected == 1 else "were"
        return (
            f"{gaps}{format_plural(recovery.injected, 'message')} {were} put back before; later "
            "plans leave them out"
        )

    def _takes_gaps(self, recovery: Recovery) -> bool:
        plan = self.read_plan(recovery)
        return bool(plan.gaps) and plan.delivers

    def find_gaps(
        self, plan: RedrivePlan, ledger: Ledger, recovery: Recovery, ended_at: datetime | None
    ) -> tuple[Gap, ...]:
        """Those that it took; none where its messages were chosen."""
        return tuple(ledger.gaps.get(gap_id) for gap_id in ledger.recoveries.gap_ids(recovery.id))


KIND = RedriveKind()
