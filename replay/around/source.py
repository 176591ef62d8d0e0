"""Whether a recovery's topic is still the one that was planned."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.errors import PlanStale
from backlog.kafka.admin import read_topic_id
from backlog.kafka.clients import Admin
from backlog.kafka.errors import TopicMissing
from replay.recovery.plan import Plan


def refuse_other_source(admin: Admin, plan: Plan, hint: str) -> None:
    """The topic is the one of the plan.

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
    raise PlanStale(why, subject=f"topic {topic}", hint=hint)


def is_source(admin: Admin, plan: Plan) -> bool:
    """Whether the topic of this name is still the planned one, perhaps with more partitions."""
    try:
        return read_topic_id(admin, plan.topic)[0] == plan.topic_id
    except TopicMissing:
        return False
