"""Whether both topics, and the group's commits, are still what an expansion left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from backlog.clock import Deadline
from backlog.errors import PlanStale
from backlog.kafka.admin import read_topic_id
from backlog.kafka.clients import Admin
from backlog.kafka.errors import TopicMissing
from fanout.relay.commits import CommitWithMetadata
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
            hint="what was relayed into it and not handled is lost there; the recovery's record "
            f"has the source offsets. `backlogctl cancel {recovery_id}` restores the rest",
        )


def find_overwritten(
    commits: Mapping[int, CommitWithMetadata], begun: Mapping[str, int], recovery_id: str
) -> list[int]:
    """Partitions whose commit moved, and not by our relays: their counters are gone.

    Args:
        begun: where the group was when its consumers were stopped.
    """
    return [
        number
        for number, commit in sorted(commits.items())
        if commit.offset != begun.get(str(number)) and not _is_ours(commit.metadata, recovery_id)
    ]


def _is_ours(metadata: str | None, recovery_id: str) -> bool:
    try:
        return bool(json.loads(metadata or "")["r"] == recovery_id)
    except (ValueError, TypeError, KeyError):
        return False
