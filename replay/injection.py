"""Where the recovery meets the Kafka ledger: what is committed, and by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backlog.clock import Deadline
from backlog.config import Stream
from backlog.kafka.errors import TopicMissing
from backlog.kafka.ledger_topic import (
    LedgerSnapshot,
    check_ledger,
    ensure_ledger_topic,
    read_committed_chunks,
    snapshot_ledger,
)
from backlog.values import Recovery
from replay.identity import find_identity
from replay.workspace import Workspace

if TYPE_CHECKING:
    from replay.context import RunContext
    from spark_backfill.request import PriorChunk
    from spark_backfill.waves import InjectionJob

LEDGER_MADE = "ledger topic made"


def freeze_ledger(
    workspace: Workspace, stream: Stream
) -> tuple[dict[str, Any] | None, tuple[PriorChunk, ...]]:
    """The Kafka ledger for a plan, and the chunks of this topic that it says are committed.

    None where the ledger topic is not there yet: a plan makes nothing, the first run makes it.
    """
    from spark_backfill.request import PriorChunk

    properties = workspace.properties(stream)
    try:
        snapshot = snapshot_ledger(properties, workspace.config.kafka_ledger.topic, Deadline(30))
    except TopicMissing:
        return None, ()
    committed = read_committed_chunks(properties, snapshot, stream.topic)
    prior = {(chunk.recovery, chunk.slot, chunk.chunk) for chunk in committed}
    return snapshot.to_json(), tuple(PriorChunk(*item) for item in sorted(prior))


def open_ledger_topic(workspace: Workspace, stream: Stream, recovery: Recovery) -> LedgerSnapshot:
    """The Kafka ledger for a run: the plan's, or the one that the first run made.

    A ledger that was made after the plan is put on record before anything is sent, so that a
    later run of this recovery knows whether it still is the same.

    Raises:
        PlanStale, Refused: it is no longer the one that the plan was made on.
    """
    properties = workspace.properties(stream)
    planned = recovery.plan["ledger_topic"] or find_made_ledger(workspace, recovery.id)
    if planned is not None:
        snapshot = LedgerSnapshot.from_json(planned)
        check_ledger(properties, snapshot, Deadline(30))
        return snapshot
    section = workspace.config.kafka_ledger
    topic_id = ensure_ledger_topic(
        properties,
        section.topic,
        partitions=section.partitions,
        replication=section.replication,
        deadline=Deadline(60),
    )
    now = snapshot_ledger(properties, section.topic, Deadline(30))
    # It was not there when the plan was made, so whatever it holds came after.
    made = LedgerSnapshot(now.topic, topic_id, now.partitions, {})
    actor = str(find_identity())
    workspace.ledger.events.append(recovery.id, actor, LEDGER_MADE, made.to_json())
    return made


def find_made_ledger(workspace: Workspace, recovery_id: str) -> dict[str, Any] | None:
    """The ledger topic that an earlier run of this recovery made."""
    for event in workspace.ledger.events.list(recovery_id):
        if event.action == LEDGER_MADE:
            return dict(event.detail)
    return None


def fence_recovery(workspace: Workspace, recovery: Recovery) -> None:
    """Fences every producer that could still write for this recovery.

    Raises:
        KafkaFailure, ClusterUnreachable: not every slot is fenced.
    """
    from spark_backfill.transactional import fence_slots

    planned = recovery.plan["ledger_topic"] or find_made_ledger(workspace, recovery.id)
    slots = [item["partition"] for item in recovery.plan["outcome"]["partitions"]]
    fence_slots(
        workspace.config.clusters[recovery.cluster].client_properties(),
        workspace.config.kafka_ledger.transactional_prefix,
        recovery.topic,
        slots,
        recovery_id=recovery.id,
        ledger=None if planned is None else LedgerSnapshot.from_json(planned),
    )


def make_job(context: RunContext) -> InjectionJob:
    """What the stored plan says, as the injection takes it.

    `open_ledger_topic` must have been called before.
    """
    from spark_backfill.waves import InjectionJob

    recovery, plan = context.recovery, context.recovery.plan
    if context.ledger_topic is None:
        raise RuntimeError("the Kafka ledger was not opened")
    return InjectionJob(
        recovery_id=recovery.id,
        topic=recovery.topic,
        topic_id=plan["topic_id"],
        partitions=plan["partition_count"],
        plan_hash=recovery.plan_hash,
        manifest=context.manifest,
        directory=context.directory,
        properties=context.workspace.properties(context.stream),
        ledger=context.ledger_topic,
        start_offsets={int(p): at for p, at in plan["topic_end_offsets"].items()},
        group=recovery.group,
        messages_per_second=context.limits.messages_per_second,
        prefix=context.workspace.config.kafka_ledger.transactional_prefix,
    )
