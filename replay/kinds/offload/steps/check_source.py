"""Step 1: topic, configuration, place and other groups are as the plan has them (protocol P5.1)."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.kafka.admin import describe_topic, list_offsets, list_topic_readers
from backlog.step import Step
from replay.around.rights import require_rights, select_rights
from replay.kinds.offload.context import OffloadContext
from replay.kinds.offload.cutting import find_cut_groups
from replay.kinds.offload.looking import read_disks, refuse_undeletable
from replay.kinds.offload.place import look_at_place
from replay.kinds.offload.planning import fingerprint_for, refuse_losing, refuse_unfit
from replay.recovery.approval import check_runnable
from replay.recovery.archives import name_owner
from replay.recovery.guards import check_configuration, check_denied

_SECONDS = 60.0


class CheckSource(Step[OffloadContext]):
    """Looks at everything the plan was made on."""

    name = "check_source"

    def validate(self, context: OffloadContext) -> None:
        """Faults 15, 16, 60; the configuration; before anybody is stopped also the archive's place
        and the other groups.

        Raises:
            PlanStale: something is no longer what the plan was made on.
            Refused: a guard says no.
        """
        workspace, plan = context.workspace, context.plan
        check_runnable(workspace, context.recovery)
        check_denied(workspace, context.stream)
        check_configuration(
            plan,
            fingerprint_for(plan.configuration, workspace.config, context.stream),
            f"put it back, or `backlogctl cancel {context.recovery.id}` and plan again",
        )
        context.check_topic()
        limit = Deadline(_SECONDS)
        refuse_undeletable(describe_topic(context.admin, plan.topic, limit))
        require_rights(workspace, context.stream, select_rights("see offload", context.stream))
        if not context.goes_forward:
            refuse_losing(context.stream, discard=plan.place is None, allowed=plan.allowed)
        if not context.was_started("stop_consumers"):
            _require_fitting(context, limit)

    def start(self, context: OffloadContext) -> None:
        """Spark starts, and reaches the archive's place, before anybody is stopped for it.

        Raises:
            SparkFailure: it does not start.
            ForeignArchive: another recovery's archive lies there.
            StagingError: the place cannot be reached.
        """
        if context.plan.place is None or context.was_started("stop_consumers"):
            return
        from spark_backfill.archive.filesystem import ArchivePlace
        from spark_backfill.archive.owning import refuse_foreign

        context.say("starting Spark")
        place = ArchivePlace(context.spark, context.location)
        refuse_foreign(place, place.list_files(), name_owner(context.recovery))


def _require_fitting(context: OffloadContext, limit: Deadline) -> None:
    """Between plan and run disks fill, and other groups come."""
    plan, topic = context.plan, context.plan.topic
    numbers = range(plan.partition_count)
    ends = list_offsets(context.admin, topic, numbers, "latest", "read_committed", limit)
    readers = list_topic_readers(context.admin, topic, limit)
    cut = find_cut_groups(readers, plan.group, context.read_lows(), ends)
    place = plan.place
    if place is not None:
        log_dirs = read_disks(context.workspace, context.stream)
        place = look_at_place(place.location, plan.bytes, log_dirs)
    now = plan.model_copy(
        update={
            "cut_groups": cut,
            "others_unknown": readers.say_unknown(plan.group),
            "place": place,
        }
    )
    refuse_unfit(now)
