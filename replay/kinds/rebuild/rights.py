"""What a rebuild must be allowed on the cluster."""

from __future__ import annotations

from backlog.config import Config, Stream
from backlog.kafka.rights import Operation, Resource, Right, list_transactional
from replay.around.rights import list_seeing
from replay.kinds.rebuild.plan import RebuildPlan

_LEDGER = (
    (Operation.DESCRIBE, "read what was put back before"),
    (Operation.DESCRIBE_CONFIGS, "check that the Kafka ledger is compacted"),
    (Operation.READ, "read what was put back before"),
    (Operation.CREATE, "make the Kafka ledger where it is missing"),
    (Operation.WRITE, "record what was put back"),
)


def list_rebuilding(config: Config, stream: Stream, plan: RebuildPlan | None) -> tuple[Right, ...]:
    """See, write to the topic and to the Kafka ledger, both in transactions of our prefix.

    Args:
        plan: one that was made on a Kafka ledger needs no right to create that.
    """
    kept = config.kafka_ledger
    prefix = (plan and plan.transactional_prefix) or kept.transactional_prefix
    known = plan.ledger_topic if plan else None
    ledger = known.topic if known else kept.topic
    return (
        *list_seeing(stream),
        Right(Resource.TOPIC, stream.topic, Operation.WRITE, "put messages back"),
        *(
            Right(Resource.TOPIC, ledger, operation, purpose)
            for operation, purpose in _LEDGER
            if not (known and operation is Operation.CREATE)
        ),
        *list_transactional(f"{prefix}.{stream.topic}.", "put each message back once"),
    )
