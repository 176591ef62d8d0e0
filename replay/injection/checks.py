"""Why a plan that sends messages may not run, whoever approves it."""

from __future__ import annotations

from collections.abc import Sequence

from backlog.errors import Refused
from backlog.values import Recovery
from replay.injection.plan import InjectionPlan

NOT_WITHOUT_DELIVER = "; it will not run unless the stream says `deliver: topic`"


def check_size(plan: InjectionPlan, recovery: Recovery) -> None:
    """More messages than `limits.max_messages`.

    Raises:
        Refused
    """
    if plan.message_count > plan.limits.max_messages:
        raise Refused(
            f"{plan.message_count} messages are more than `limits.max_messages` "
            f"({plan.limits.max_messages})",
            subject=f"recovery {recovery.id}",
            hint=f"raise the limit of stream {plan.stream}",
        )


def check_readers(plan: InjectionPlan, recovery: Recovery) -> None:
    """Other groups that read the stream's topic would get the messages too.

    Raises:
        Refused: the stream does not say `deliver: topic`.
    """
    if not plan.delivers or plan.deliver == "topic":
        return
    subject = f"recovery {recovery.id}"
    if plan.other_groups:
        raise Refused(
            f"other groups read topic {plan.topic} and would get the messages again: "
            f"{', '.join(plan.other_groups)}",
            subject=subject,
            hint=f"say `deliver: topic` in stream {plan.stream} if that is right",
        )
    if plan.others_unknown:
        raise Refused(
            f"whether other groups read topic {plan.topic}, and would get the messages again, "
            f"is unknown: the tool {plan.others_unknown}",
            subject=subject,
            hint=f"grant that (`backlogctl acl {plan.kind} {plan.stream}` prints what is needed) "
            f"and plan again, or say `deliver: topic` in stream {plan.stream} if other readers "
            "may get them",
        )


def warn_about_readers(others: Sequence[str], unknown: str, deliver: str | None) -> list[str]:
    """Who else reads the stream's topic, and whether the plan may run in spite of that.

    Args:
        unknown: why there may be more of them; "" where there are none.
    """
    end = "" if deliver == "topic" else NOT_WITHOUT_DELIVER
    told = []
    if unknown:
        told.append(f"whether other groups read this topic is unknown: the tool {unknown}{end}")
    if others and end:
        told.append(
            "other groups read this topic and would get the messages again: "
            f"{', '.join(others)}{end}"
        )
    elif others:
        told.append(f"other groups will get the messages again: {', '.join(others)}")
    return told


def has_readers_alone(plan: InjectionPlan) -> bool:
    """Whether nobody gets the messages who was not meant to."""
    if not plan.delivers or plan.deliver == "topic":
        return True
    return not (plan.other_groups or plan.others_unknown)
