"""What a recovery that sends messages must be allowed on the cluster."""

from __future__ import annotations

from backlog.config import Config, Stream
from backlog.kafka.rights import Right
from replay.around.rights import select_rights
from replay.injection.plan import InjectionPlan, PlannedTarget, To


def list_sending(
    config: Config,
    stream: Stream,
    recovery_id: str,
    plan: InjectionPlan | None,
    target: PlannedTarget | None = None,
    letters: str | None = None,
) -> tuple[Right, ...]:
    """See, read dead letters, and write to the target and to the Kafka ledger, both in transactions
    of our prefix.

    Args:
        plan: one that was made on a Kafka ledger needs no right to create that.
        target: where it sends to instead of the stream's topic.
        letters: the topic of dead letters that it sends.
    """
    ledger = config.kafka_ledger
    known = plan.ledger_topic if plan else None
    parts = ["see", "send"]
    if target is not None and target.to is To.REHEARSAL:
        parts += ["rehearse"]  # the topic is not there yet: its rights come with its prefix
    else:
        parts += ["put"] if target is None else ["put", "other"]
    if letters is not None:
        parts += ["letters"]
    if known is None:
        parts += ["create"]
    return select_rights(
        *(" ".join(parts), stream, recovery_id),
        prefix=(plan and plan.transactional_prefix) or ledger.transactional_prefix,
        ledger=known.topic if known else ledger.topic,
        target=stream.topic if target is None else target.topic,
        source=letters or "",
    )


def list_possible(config: Config, stream: Stream, recovery_id: str) -> tuple[Right, ...]:
    """What a recovery that is not planned yet may need: a rehearsal too."""
    ledger = config.kafka_ledger
    return select_rights(
        *("see put send create rehearse", stream, recovery_id, "rehearse"),
        prefix=ledger.transactional_prefix,
        ledger=ledger.topic,
        target=stream.topic,
    )
