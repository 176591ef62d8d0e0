"""Step 6: what is archived, verified and behind the group is deleted (protocol P5.6)."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.errors import Refused
from backlog.kafka.admin import delete_records, list_topic_readers
from backlog.numbers import format_plural
from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from replay.kinds.offload.context import ASK_SECONDS, BYTES_BEFORE, OffloadContext
from replay.kinds.offload.cutting import find_cut_groups, refuse_cutting
from replay.kinds.offload.options import ALLOW_UNKNOWN


class DeleteRecords(Step[OffloadContext]):
    """Never above the fence, and never for a group that was not named."""

    name = "delete_records"

    def start(self, context: OffloadContext) -> None:
        """Looks at everything once more, right before.

        Raises:
            Refused: the group is before the fence again, another group would lose messages, or a
                log was cut back.
            PlanStale: the topic is another one.
            StagingError: the archive is not there as it was recorded.
            KafkaFailure: a partition was refused.
        """
        context.closing = True
        context.check_topic()
        lows, fence = context.read_lows(), context.fence
        wanted = {number: at for number, at in fence.items() if lows[number] < at}
        if wanted:
            context.require_archive()
            context.require_log()
            _require_behind(context)
            _require_uncut(context, lows)
            _note_bytes(context)
            context.lease.confirm()
            reach("p5.6.before")
            delete_records(context.admin, context.recovery.topic, wanted, Deadline(ASK_SECONDS))
        reach("p5.6.deleted")

    def complete(self, context: OffloadContext) -> None:
        """Where the logs begin now."""
        lows = context.read_lows()
        context.details[self.name] = {"log_start": {str(n): at for n, at in lows.items()}}


def _require_behind(context: OffloadContext) -> None:
    """The group's committed offsets are at the fence or behind it, read now."""
    fence = context.fence
    short = {n: c.offset for n, c in context.read_commits().items() if c.offset < fence[n]}
    if short:
        told = ", ".join(f"partition {n} at {at:,}" for n, at in sorted(short.items()))
        raise Refused(
            f"somebody set its committed offsets back before what is to be deleted: {told}; "
            "nothing was deleted",
            subject=f"group {context.recovery.group} on topic {context.recovery.topic}",
            hint=f"find out who; `backlogctl cancel {context.recovery.id}` starts the consumers "
            "again and deletes nothing",
        )


def _require_uncut(context: OffloadContext, lows: dict[int, int]) -> None:
    """No group but those that the plan names loses anything."""
    plan = context.plan
    readers = list_topic_readers(context.admin, plan.topic, Deadline(ASK_SECONDS))
    cut = find_cut_groups(readers, plan.group, lows, context.fence)
    unknown = readers.say_unknown(plan.group)
    lost = {item.group: format_plural(item.messages, "message") for item in cut}
    refuse_cutting(
        cut,
        plan.allowed_groups,
        "" if ALLOW_UNKNOWN in plan.allowed else unknown,
        topic=plan.topic,
        hint=f"then `backlogctl run {context.recovery.id}` goes on. `backlogctl cancel "
        f"{context.recovery.id}` starts the consumers again and deletes nothing; a new plan with "
        "{words} cuts them",
    )
    if lost:
        context.record("other groups are cut", groups=lost)


def _note_bytes(context: OffloadContext) -> None:
    """What the topic took, the first time."""
    events = context.workspace.ledger.events.list(context.recovery.id)
    if not any(event.action == BYTES_BEFORE for event in events):
        found, log_dirs = context.read_topic_bytes()
        context.record(BYTES_BEFORE, bytes=found, why=log_dirs.reason)
