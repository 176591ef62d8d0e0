"""Whether the temporary topic is still that of an expansion."""

from __future__ import annotations

from contextlib import suppress

from backlog.clock import Deadline
from backlog.errors import PlanStale
from backlog.kafka.admin import read_topic_id
from backlog.kafka.clients import Admin
from backlog.kafka.errors import TopicMissing
from replay.kinds.expand.plan import ExpandPlan


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
