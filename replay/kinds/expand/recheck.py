"""Whether an approved expansion still fits, looked at again before anything is stopped (P4.1)."""

from __future__ import annotations

from backlog.errors import PlanStale, Refused
from backlog.numbers import format_duration, format_plural, format_rate
from replay.kinds.expand.backlog import observe
from replay.kinds.expand.context import ExpandContext
from replay.kinds.expand.options import ALLOW_DISK
from replay.kinds.expand.plan import ExpandPlan
from replay.kinds.expand.planning import compute_plan


def require_fitting(context: ExpandContext) -> None:
    """Between plan and run the backlog grows, disks fill, and retention comes nearer.

    Raises:
        Refused: nothing is behind any more, or the copy no longer fits on the disks.
        PlanStale: retention would win now, and the plan does not raise it.
    """
    recovery, plan = context.recovery, context.plan
    again = f"`backlogctl cancel {recovery.id}`, then `backlogctl plan expand {recovery.stream}`"
    planned = {"rate": plan.rate_per_consumer, "factor": plan.factor, "order": plan.order}
    options = plan.options.model_copy(update=planned)
    backlog = observe(context.workspace, context.stream, options.start, lambda _: None)
    now = compute_plan(context.workspace, context.stream, options, backlog, recovery.id)
    if now.disk.enough is False and ALLOW_DISK not in plan.allowed:
        raise Refused(
            f"the copy does not fit any more: {now.disk.told}",
            subject=f"topic {recovery.topic}",
            hint=f"make room on the brokers' disks; or {again} with `--allow disk`",
        )
    if now.hold.needed and not plan.hold.needed:
        raise PlanStale(
            explain_missing_hold(now),
            subject=f"topic {recovery.topic}",
            hint=again,
        )


def explain_missing_hold(now: ExpandPlan) -> str:
    """Why retention has to be raised by what is seen now; the approved plan does not raise it."""
    consumers = format_plural(now.consumers, "consumer")
    loss, drain = now.seconds_to_loss, now.seconds_to_drain_expanded
    if drain is None:
        handled = format_rate(now.consumers * now.rate_per_consumer)
        why = f"{format_rate(now.produced_per_second or 0.0)} are written by now, faster than "
        why += f"{consumers} of the plan handle ({handled}): when it is drained is not known"
    elif loss is None:
        why = "when retention reaches the backlog is not known any more"
    else:
        why = f"retention reaches the backlog in {format_duration(loss)} by now, and {consumers} "
        why += f"drain it in {format_duration(drain)}: that is too close"
    return f"{why}; the approved plan does not raise the retention, a new one does"
