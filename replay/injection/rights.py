"""What a recovery that sends messages must be allowed on the cluster."""

from __future__ import annotations

from backlog.config import Config
from backlog.kafka.rights import Operation, Resource, Right, list_transactional
from fanout.temporary import name_temporary_topic
from replay.injection.plan import InjectionPlan, To

_LEDGER = (
    (Operation.DESCRIBE, "read what was put back before"),
    (Operation.DESCRIBE_CONFIGS, "check that the Kafka ledger is compacted"),
    (Operation.READ, "read what was put back before"),
    (Operation.CREATE, "make the Kafka ledger where it is missing"),
    (Operation.WRITE, "record what was put back"),
)
_REHEARSAL = (
    (Operation.CREATE, "make a rehearsal's topic"),
    (Operation.DESCRIBE, "find a rehearsal's topic"),
    (Operation.DESCRIBE_CONFIGS, "check a rehearsal's topic"),
    (Operation.WRITE, "send a rehearsal's messages"),
    (Operation.READ, "read a rehearsal back"),
    (Operation.DELETE, "delete a rehearsal's topic"),
)


def list_sending(config: Config, topic: str, plan: InjectionPlan | None) -> tuple[Right, ...]:
    """To write to a topic and to the Kafka ledger, both in transactions of our prefix.

    Args:
        plan: one that was made on a Kafka ledger needs no right to create that.
    """
    kept = config.kafka_ledger
    prefix = (plan and plan.transactional_prefix) or kept.transactional_prefix
    known = plan.ledger_topic if plan else None
    ledger = known.topic if known else kept.topic
    return (
        Right(Resource.TOPIC, topic, Operation.WRITE, "put messages back"),
        *(
            Right(Resource.TOPIC, ledger, operation, purpose)
            for operation, purpose in _LEDGER
            if not (known and operation is Operation.CREATE)
        ),
        *list_transactional(f"{prefix}.{topic}.", "put each message back once"),
    )


def list_rehearsing(topic: str, recovery_id: str, *, needed: bool = True) -> tuple[Right, ...]:
    """To make a side topic of a topic, send to it, read it, and delete it."""
    prefix, asked = (
        f"{topic}.{To.REHEARSAL}.",
        name_temporary_topic(topic, recovery_id, "rehearsal"),
    )
    return tuple(
        Right(Resource.TOPIC, prefix, operation, purpose, True, asked, needed)
        for operation, purpose in _REHEARSAL
    )
