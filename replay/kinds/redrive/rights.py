"""What a redrive must be allowed on the cluster."""

from __future__ import annotations

from backlog.config import Config, Stream
from backlog.kafka.rights import Operation, Resource, Right
from replay.around.rights import list_seeing
from replay.injection.plan import PlannedTarget, To
from replay.injection.rights import list_rehearsing, list_sending
from replay.kinds.redrive.plan import PlannedSource, RedrivePlan
from spark_backfill.redrive.request import Origin


def list_redriving(
    config: Config, stream: Stream, recovery_id: str, plan: RedrivePlan | None
) -> tuple[Right, ...]:
    """See, send to the topic in transactions, and make a rehearsal's topic.

    Args:
        plan: only what it does is asked for; else what a redrive of the log may do.
    """
    if plan is not None:
        return list_chosen(config, stream, recovery_id, plan.source, plan.target, plan)
    return (
        *list_seeing(stream),
        *list_sending(config, stream.topic, None),
        *list_rehearsing(stream.topic, recovery_id, needed=False),
    )


def list_chosen(
    config: Config,
    stream: Stream,
    recovery_id: str,
    source: PlannedSource,
    target: PlannedTarget | None,
    plan: RedrivePlan | None = None,
) -> tuple[Right, ...]:
    """Of one source and one target."""
    topic = stream.topic if target is None else target.topic
    rights = [*list_seeing(stream)]
    if source.origin is Origin.DEAD_LETTERS:
        rights += [
            Right(Resource.TOPIC, source.topic, Operation.DESCRIBE, "read its offsets"),
            Right(Resource.TOPIC, source.topic, Operation.READ, "read the dead letters"),
        ]
    if target is not None and target.to is To.OTHER:
        rights += [
            Right(Resource.TOPIC, topic, Operation.DESCRIBE, "read its offsets"),
            Right(Resource.TOPIC, topic, Operation.READ, "read back what was sent"),
        ]
    rights += list_sending(config, topic, plan)
    if target is not None and target.to is To.REHEARSAL:
        # The topic is not there yet: its rights come with its prefix.
        rights = [right for right in rights if right.name != topic]
        rights += list_rehearsing(stream.topic, recovery_id)
    return tuple(dict.fromkeys(rights))
