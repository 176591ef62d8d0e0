"""What every plan that sends messages says in the same words."""

from __future__ import annotations

from backlog.numbers import format_bytes, format_duration, format_plural
from replay.injection.plan import InjectionPlan


def say_staged(chunks: int, size: int) -> str:
    """`3 chunks, 1.2 MB`."""
    return f"{format_plural(chunks, 'chunk')}, {format_bytes(size)}"


def say_when(plan: InjectionPlan) -> str:
    """The window and the brakes, and about how long the work takes."""
    brakes = []
    if plan.off_peak is not None:
        brakes.append(f"{plan.off_peak}, as many nights as needed")
    if rate := plan.limits.messages_per_second:
        took = format_duration(max(1.0, plan.message_count / rate))
        brakes.append(f"at most {rate:,} messages/s: about {took} of work")
    if plan.delivers and (lag := plan.limits.max_live_lag):
        brakes.append(f"waits while the live group is more than {lag:,} behind")
    return ", ".join(brakes) or "at any time, as fast as it goes"
