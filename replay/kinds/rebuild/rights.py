"""What a rebuild must be allowed on the cluster."""

from __future__ import annotations

from backlog.config import Config, Stream
from backlog.kafka.rights import Operation, Resource, Right
from replay.around.rights import list_seeing
from replay.injection.plan import PlannedTarget, To
from replay.injection.rights import list_rehearsing, list_sending
from replay.kinds.rebuild.plan import RebuildPlan


def list_rebuilding(
    config: Config,
    stream: Stream,
    recovery_id: str,
    plan: RebuildPlan | None = None,
    *,
    target: PlannedTarget | None = None,
) -> tuple[Right, ...]:
    """See, write to the topic and to the Kafka ledger, both in transactions of our prefix.

    Args:
        plan: one that was made on a Kafka ledger needs no right to create that.
        target: where a plan that is not made yet will send to.
    """
    target = target if plan is None else plan.target
    if target is None:
        return (*list_seeing(stream), *list_sending(config, stream.topic, plan))
    sending = list_sending(config, target.topic, plan)
    if target.to is To.REHEARSAL:
        # The topic is not there yet: its rights come with its prefix.
        sending = tuple(right for right in sending if right.name != target.topic)
        sending += list_rehearsing(stream.topic, recovery_id)
    else:
        sending += (
            Right(Resource.TOPIC, target.topic, Operation.DESCRIBE, "read its offsets"),
            Right(Resource.TOPIC, target.topic, Operation.READ, "read back what was sent"),
        )
    return tuple(dict.fromkeys((*list_seeing(stream), *sending)))
