"""Whether an approved expansion still fits, looked at again before anything is stopped (P4.1)."""

from __future__ import annotations

from backlog.errors import PlanStale, Refused
from replay.expand_context import ExpandContext
from replay.expand_ground import observe
from replay.expand_plans import ExpandOptions, compute_plan
from replay.kinds import ALLOW_DISK


def require_fitting(context: ExpandContext) -> None:
    """Between plan and run the backlog grows, disks fill, and retention comes nearer.

    Raises:
        Refused: nothing is behind any more, or the copy no longer fits on the disks.
        PlanStale: retention would win now, and the plan does not raise it.
    """
    recovery, plan = context.recovery, context.plan
    again = f"`backlogctl cancel {recovery.id}`, then `backlogctl plan expand {recovery.stream}`"
    options = ExpandOptions(
        rate=plan["rate_per_consumer"],
        factor=plan["factor"],
        order=plan["order"],
        start=plan["options"]["start"],
        allow=frozenset(plan["options"]["allow"]),
    )
    ground = observe(context.workspace, context.stream, options.start, lambda _: None)
    now = compute_plan(context.workspace, context.stream, options, ground, recovery.id)
    if now["disk"]["enough"] is False and ALLOW_DISK not in options.allow:
        raise Refused(
            f"the copy does not fit any more: {now['disk']['told']}",
            subject=f"topic {recovery.topic}",
            hint=f"make room on the brokers' disks; or {again} with `--allow disk`",
        )
    if now["hold"]["needed"] and not plan["hold"]["needed"]:
        raise PlanStale(
            "retention would reach the backlog before it is drained by now, and the plan does not "
            "raise it",
            subject=f"topic {recovery.topic}",
            hint=again,
        )
