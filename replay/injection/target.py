"""The topic that gets the messages, where it is not the stream's own: found, made, thrown away."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from backlogctl.clock import Deadline
from backlogctl.config import Stream, mask_secrets
from backlogctl.errors import BacklogError, Refused, UsageError
from backlogctl.fanout.temporary_topic import (
    create_temporary_topic,
    delete_temporary_topic,
    name_temporary_topic,
)
from backlogctl.formats import format_duration
from backlogctl.kafka.admin import (
    TopicInfo,
    describe_topic,
    list_offsets,
    list_topic_readers,
)
from backlogctl.kafka.errors import TopicMissing
from backlogctl.ledger import TemporaryTopic
from backlogctl.replay.engine.archives import find_ended_at
from backlogctl.replay.engine.guards import check_denied_topic
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.injection.ledger import fence_recovery
from backlogctl.replay.injection.plan import InjectionPlan, PlannedTarget, To
from backlogctl.replay.observe.snapshot import Draft, StreamSnapshot
from backlogctl.values import FINAL, Recovery, RecoveryState

GONE = "the rehearsal's topic is deleted"
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """The topic that gets the messages, as it is when they are planned.

    Attributes:
        planned: None for the stream's own topic.
        topic: of a rehearsal, which is not made yet, the stream's.
        ends: high watermarks.
        others: groups that get the messages besides; `others_unknown` says why there may be more.
    """

    planned: PlannedTarget | None
    topic: TopicInfo
    lows: Mapping[int, int]
    ends: Mapping[int, int]
    others: tuple[str, ...] = ()
    others_unknown: str = ""

    @property
    def name(self) -> str:
        return self.topic.name if self.planned is None else self.planned.topic

    @property
    def topic_id(self) -> str:
        """Empty where the topic is not made yet."""
        return self.topic.topic_id if self.planned is None else self.planned.topic_id or ""


def name_target(stream: Stream, said: str | None, recovery_id: str) -> tuple[To, str]:
    """What `--to` means, and the topic's name.

    Args:
        said: `topic`, `rehearsal`, or the name of a topic that is there; None is `topic`.
    """
    if said in (None, str(To.TOPIC), stream.topic):
        return To.TOPIC, stream.topic
    if said == To.REHEARSAL:
        return To.REHEARSAL, name_temporary_topic(stream.topic, recovery_id, To.REHEARSAL)
    return To.OTHER, said


def find_target(draft: Draft, snapshot: StreamSnapshot, said: str | None) -> Target:
    """The topic that `--to` names; a rehearsal has as many partitions as the stream's.

    Raises:
        UsageError: there is no topic of that name.
        Refused: a guard says no.
    """
    stream, topic = draft.stream, snapshot.topic
    to, name = name_target(stream, said, draft.recovery_id)
    if to is To.TOPIC:
        mine, readers = stream.group, snapshot.readers
        others, unknown = readers.list_others(mine), readers.say_unknown(mine)
        return Target(None, topic, snapshot.lows, snapshot.ends, others, unknown)
    if to is To.REHEARSAL:
        keep = round(stream.redrive.rehearsal_keep / timedelta(milliseconds=1))
        planned = PlannedTarget(
            to=to, topic=name, topic_id=None, partitions=topic.partitions, keep_ms=keep
        )
        empty = dict.fromkeys(range(topic.partitions), 0)
        return Target(planned, topic, empty, empty)
    return _find_other(draft, name)


def _find_other(draft: Draft, name: str) -> Target:
    check_denied_topic(draft.workspace, name)
    properties, limit = draft.properties, Deadline(_SECONDS)
    try:
        topic = describe_topic(properties, name, limit)
    except TopicMissing as missing:
        raise UsageError(
            "there is no such topic on the stream's cluster",
            subject=f"topic {name}",
            hint="`--to topic`, `--to rehearsal`, or a topic that is there; none is made but a "
            "rehearsal's",
        ) from missing
    if "compact" in topic.config.get("cleanup.policy", ""):
        raise Refused(
            "it is compacted: of messages with one key only the last would stay",
            subject=f"topic {name}",
            hint="name another topic, or `--to rehearsal`",
        )
    numbers = range(topic.partitions)
    lows, ends = (
        list_offsets(properties, name, numbers, where, deadline=limit)
        for where in ("earliest", "latest")
    )
    readers = list_topic_readers(properties, name, limit)
    planned = PlannedTarget(
        to=To.OTHER, topic=name, topic_id=topic.topic_id, partitions=topic.partitions
    )
    # Of another topic all readers count.
    return Target(planned, topic, lows, ends, readers.list_others(""), readers.say_unknown(""))


def make_rehearsal(
    workspace: Workspace, stream: Stream, recovery_id: str, target: PlannedTarget
) -> TemporaryTopic:
    """Makes a rehearsal's topic, or finds the one that an earlier run of it made."""
    properties = workspace.properties(stream)
    return create_temporary_topic(
        workspace.ledger,
        properties,
        recovery_id=recovery_id,
        cluster=stream.cluster,
        source=describe_topic(properties, stream.topic, Deadline(_SECONDS)),
        partitions=target.partitions,
        word=To.REHEARSAL,
        keep_ms=target.keep_ms,
    )


def format_target(target: PlannedTarget | None, topic: str) -> str:
    """Where messages go, for a sentence: `topic orders`."""
    if target is None:
        return f"topic {topic}"
    if target.to is not To.REHEARSAL:
        return f"topic {target.topic}"
    kept = format_duration((target.keep_ms or 0) / 1000)
    return f"the rehearsal topic {target.topic} (read by nobody, gone after {kept})"


def remove_rehearsal(workspace: Workspace, recovery: Recovery, plan: InjectionPlan) -> bool:
    """Deletes a rehearsal's topic, by the name and id that the ledger has; False where it stays.

    What is in it are copies: nothing is lost with it.

    Raises:
        Refused: the topic of its name is another one.
        KafkaFailure, ClusterUnreachable.
    """
    ledger, cluster = workspace.ledger, workspace.config.clusters.get(recovery.cluster)
    known = ledger.temporary_topics.get(recovery.id)
    if plan.target is None or plan.target.to is not To.REHEARSAL or cluster is None:
        return False
    if known is None or known.deleted_at is not None:
        return False
    delete_temporary_topic(
        ledger,
        cluster.client_properties(),
        recovery_id=recovery.id,
        cluster=recovery.cluster,
        source=TopicInfo(recovery.topic, plan.topic_id, plan.partition_count, {}),
        deny_topics=workspace.config.guards.deny_topics,
        is_drained=lambda: True,
        word=To.REHEARSAL,
        keep_ms=plan.target.keep_ms,
    )
    ledger.events.append(recovery.id, str(find_identity()), GONE, {"topic": known.name})
    return True


# Rehearsals that are over: their topics are deleted once they were kept long enough.

LOG = logging.getLogger("backlogctl.replay")


def clear_rehearsals(workspace: Workspace, stream: str) -> tuple[str, ...]:
    """Deletes the topics of the stream's rehearsals that ended longer ago than they are kept.

    What cannot be deleted is logged and tried again the next time: this never fails the work that
    it goes with.

    Returns:
        The recoveries whose topics were deleted.
    """
    cleared: list[str] = []
    try:
        found = workspace.ledger.recoveries.list(stream=stream, states=list(FINAL))
    except BacklogError as error:
        _warn(error)
        return ()
    for recovery in found:
        try:
            if _is_over(workspace, recovery) and close_rehearsal(workspace, recovery):
                cleared.append(recovery.id)
        except BacklogError as error:
            _warn(error)
    return tuple(cleared)


def name_superseded(workspace: Workspace, stream: str) -> list[str]:
    """A warning about each plan that waits for its approval and would be superseded by a
    rehearsal; one rehearsal may take another's place without a word."""
    waiting = workspace.ledger.recoveries.list(stream=stream, states=[RecoveryState.PLANNED])
    return [
        f"{one.kind} {one.id} waits for its approval, and this plan takes its place: "
        f"`backlogctl show {one.id}` says what it would do, to plan that again"
        for one in waiting
        if one.plan.get("target") is None
    ]


def close_rehearsal(workspace: Workspace, recovery: Recovery) -> bool:
    """Deletes a rehearsal's topic, if it has one; False where there is none.

    Raises:
        Refused, KafkaFailure, ClusterUnreachable.
    """
    plan = workspace.plan_of(recovery)
    return isinstance(plan, InjectionPlan) and remove_rehearsal(workspace, recovery, plan)


def close_injection(workspace: Workspace, recovery: Recovery) -> None:
    """Fences every slot, and throws away what was only a rehearsal; what `cancel` drives.

    What is committed elsewhere stays, and later plans subtract it.
    """
    fence_recovery(workspace, recovery)
    close_rehearsal(workspace, recovery)


def _is_over(workspace: Workspace, recovery: Recovery) -> bool:
    known = workspace.ledger.temporary_topics.get(recovery.id)
    if (
        known is None
        or known.deleted_at is not None
        or recovery.kind not in workspace.kinds.names()
    ):
        return False
    plan = workspace.plan_of(recovery)
    target = plan.target if isinstance(plan, InjectionPlan) else None
    if target is None or target.to is not To.REHEARSAL:
        return False
    ended = find_ended_at(recovery, workspace.ledger.events.list(recovery.id))
    kept = timedelta(milliseconds=target.keep_ms or 0)
    return ended is not None and workspace.ledger.now() - ended > kept


def _warn(error: BacklogError) -> None:
    LOG.warning("the topic of an old rehearsal is not deleted: %s", mask_secrets(str(error)))
