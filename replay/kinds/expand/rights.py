"""What an expansion must be allowed on the cluster."""

from __future__ import annotations

from backlog.config import Config, Stream
from backlog.kafka.rights import Operation, Resource, Right, list_transactional
from fanout.temporary import name_temporary_topic
from replay.around.rights import list_seeing
from replay.kinds.expand.plan import ExpandPlan

_TEMPORARY = (
    (Operation.CREATE, "make the temporary topic"),
    (Operation.DESCRIBE, "find the temporary topic"),
    (Operation.DESCRIBE_CONFIGS, "check the temporary topic's settings"),
    (Operation.WRITE, "relay into the temporary topic"),
    (Operation.READ, "commit the recovery group's offsets on it"),
    (Operation.DELETE, "delete the temporary topic"),
)
_RECOVERY_GROUP = (
    (Operation.DESCRIBE, "see how far the recovery's consumers are"),
    (Operation.READ, "commit where the recovery's consumers begin, and the relay's position"),
    (Operation.DELETE, "delete the recovery's group"),
)


def list_expanding(
    config: Config, stream: Stream, recovery_id: str, plan: ExpandPlan | None
) -> tuple[Right, ...]:
    """See, raise retention, make and delete the temporary topic, relay in transactions, and commit
    for the group and the recovery's group.

    Args:
        plan: one that holds no retention needs no right to.
    """
    prefix = plan.transactional_prefix if plan else config.kafka_ledger.transactional_prefix
    topic, asked = f"{stream.topic}.recovery.", name_temporary_topic(stream.topic, recovery_id)
    group, asked_group = f"{stream.group}.recovery.", f"{stream.group}.recovery.{recovery_id}"
    holds = plan is None or bool(plan.hold.changes)
    return (
        *list_seeing(stream),
        *(
            (Right(Resource.TOPIC, stream.topic, Operation.ALTER_CONFIGS, "raise its retention"),)
            if holds
            else ()
        ),
        Right(Resource.GROUP, stream.group, Operation.READ, "commit what was relayed"),
        *(Right(Resource.TOPIC, topic, word, purpose, True, asked) for word, purpose in _TEMPORARY),
        *(
            Right(Resource.GROUP, group, word, purpose, True, asked_group)
            for word, purpose in _RECOVERY_GROUP
        ),
        *list_transactional(f"{prefix}:relay:{stream.topic}.", "relay each message once"),
    )
