"""Step 5: the group goes on at the fence; from here on it goes forward (protocol P5.5)."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.kafka.admin import set_group_offsets
from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from replay.kinds.offload.context import ASK_SECONDS, FORWARD, OffloadContext
from replay.kinds.offload.discarding import record_discarded, stage_discarded


class MoveGroup(Step[OffloadContext]):
    """Only what is archived and verified, or discarded by name, is passed over."""

    name = "move_group"

    def start(self, context: OffloadContext) -> None:
        """Gaps first, then the offsets, then the gaps wait in the archive.

        Raises:
            GroupActive, Refused: somebody is in the group, or moved it; a log was cut back.
            PlanStale: the topic is another one.
            KafkaFailure: a partition was refused.
            StagingError: the archive is not there as it was recorded.
        """
        context.check_topic()
        context.require_archive()
        context.require_log()
        begun, targets = context.begun, context.targets
        ours = {number: frozenset((at, targets[number])) for number, at in begun.items()}
        context.require_still(ours)
        context.lease.confirm()
        reach("p5.5.confirmed")
        if not context.goes_forward:
            context.decide(FORWARD)
        context.closing = True  # a request to pause or cancel changes nothing now
        reach("p5.5.forward")
        record_discarded(context)
        reach("p5.5.gaps")
        context.require_still(ours)
        context.lease.confirm()
        wanted = {number: at for number, at in targets.items() if at > begun[number]}
        group, topic = context.recovery.group, context.recovery.topic
        if wanted:
            set_group_offsets(context.admin, group, topic, wanted, Deadline(ASK_SECONDS))
        reach("p5.5.moved")
        stage_discarded(context)
        context.note_sample()  # before the logs begin there, too
        reach("p5.5.staged")

    def complete(self, context: OffloadContext) -> None:
        """Where it stands now."""
        context.details[self.name] = {
            "committed": {str(number): at for number, at in context.targets.items()}
        }
