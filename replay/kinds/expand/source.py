"""Whether both topics are still those of an expansion."""

from __future__ import annotations

from contextlib import suppress

from backlog.clock import Deadline
from backlog.errors import PlanStale
from backlog.kafka.admin import read_topic_id
from backlog.kafka.clients import Admin
from backlog.kafka.errors import TopicMissing
from replay.kinds.expand.plan import ExpandPlan


def refuse_other_source(admin: Admin, plan: ExpandPlan, recovery_id: str) -> None:
    """The source topic is the one of the plan.

    Raises:
        PlanStale: it was deleted, perhaps created again, or has more partitions.
    """
    topic, planned = plan.topic, plan.partition_count
    try:
        topic_id, partitions = read_topic_id(admin, topic, Deadline(30.0))
    except TopicMissing:
        why = "it was deleted since the plan was made"
    else:
        if topic_id != plan.topic_id:
            why = "it was deleted and created again since the plan was made"
        elif partitions != planned:
            why = f"it has {partitions} partitions, and had {planned} when the plan was made: keys "
            why += "belong elsewhere now"
        else:
            return
    raise PlanStale(
        why,
        subject=f"topic {topic}",
        hint=f"`backlogctl cancel {recovery_id}` drains what is copied and restores the layout; "
        "then plan again",
    )


def is_source(admin: Admin, plan: ExpandPlan) -> bool:
    """Whether the topic of this name is still the planned one, perhaps with more partitions."""
    try:
        return read_topic_id(admin, plan.topic)[0] == plan.topic_id
    except TopicMissing:
        return False


def refuse_other_copy(admin: Admin, plan: ExpandPlan, recovery_id: str, topic_id: str) -> None:
    """The temporary topic is the one that was made.

    Raises:
        PlanStale: it is gone, or was replaced.
    """
    name, found = plan.temporary.topic, None
    with suppress(TopicMissing):
        found, _ = read_topic_id(admin, name, Deadline(30.0))
    if found != topic_id:
        what = "is gone" if found is None else f"was replaced: its id is {found}, not {topic_id}"
        raise PlanStale(
            f"this recovery's temporary topic {what}",
            subject=f"topic {name}",
            hint=f"`backlogctl cancel {recovery_id} --rewind` lets the group read all that was "
            f"relayed once more; `backlogctl cancel {recovery_id}` records it as a gap instead",
        )
