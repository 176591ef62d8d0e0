"""How an expansion stands: what the ledger has, and what the brokers say where they answer."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.errors import BacklogError, KafkaFailure, Refused
from backlog.kafka.admin import committed_offsets, list_offsets, read_topic_id
from backlog.kafka.clients import make_admin
from backlog.kafka.errors import TopicMissing
from backlog.ledger import StepRecord, TemporaryTopic
from backlog.ledger.steps import RESTORE_STEP, has_stopped_consumers
from backlog.numbers import format_plural
from backlog.values import Recovery
from fanout.relay.guard import find_others
from fanout.unread import find_unread
from replay.kinds.expand.plan import ExpandPlan
from replay.recovery.workspace import Workspace
from replay.telling.standing import make_standing
from replay.telling.standings import OnlyThere, Readers, Reading, Reads, Standing

# A person waits for the answer, and a broker may be away.
_SECONDS = 6.0
# An offset that is left may be a control record: so few are read.
_FEW = 20


def describe_expansion(
    workspace: Workspace, recovery: Recovery, plan: ExpandPlan, *, ask: bool
) -> Standing:
    """Who reads, who is stopped, and what exists only in the temporary topic."""
    ledger = workspace.ledger
    steps = {step.step: step for step in ledger.steps.list(recovery.id)}
    is_stopped = has_stopped_consumers(steps.values())
    temporary = _find_temporary(workspace, recovery)
    readers = Readers(Reads.UNKNOWN if is_stopped else Reads.ORIGINALS)
    messages: int | None = 0 if temporary is not None and "canary" not in steps else None
    problem = ""
    if is_stopped or temporary is not None:
        try:
            if not ask:
                raise Refused(
                    f"the brokers are not asked here; `backlogctl show {recovery.id}` does"
                )
            limit = Deadline(_SECONDS)
            if is_stopped:
                readers = _find_readers(workspace, recovery, plan, limit)
            if temporary is not None and messages is None:
                messages = _count_left(workspace, recovery, plan, temporary, limit)
        except BacklogError as error:
            problem = str(error)
    return make_standing(
        workspace,
        recovery,
        readers,
        stopped=_say_stopped(plan, steps, readers) if is_stopped else "",
        only_there=_make_only_there(workspace, recovery, temporary, messages),
        problem=problem,
    )


def _find_temporary(workspace: Workspace, recovery: Recovery) -> TemporaryTopic | None:
    known = workspace.ledger.temporary_topics.get(recovery.id)
    return known if known is not None and known.deleted_at is None else None


def _find_readers(
    workspace: Workspace, recovery: Recovery, plan: ExpandPlan, limit: Deadline
) -> Readers:
    """Members of either group. One that assigns its partitions itself is a member of none."""
    properties = workspace.config.clusters[recovery.cluster].client_properties()
    originals = len(find_others(properties, recovery.group, limit))
    ours = len(find_others(properties, plan.recovery_group, limit))
    reads = {
        (False, False): Reads.NOBODY,
        (True, False): Reads.ORIGINALS,
        (False, True): Reads.RECOVERY,
        (True, True): Reads.BOTH,
    }[bool(originals), bool(ours)]
    return Readers(reads, originals, ours)


def _count_left(
    workspace: Workspace,
    recovery: Recovery,
    plan: ExpandPlan,
    temporary: TemporaryTopic,
    limit: Deadline,
) -> int:
    """Messages that were relayed and not handled, at most.

    Raises:
        KafkaFailure: that is not known, or the topic is gone.
    """
    properties = workspace.config.clusters[recovery.cluster].client_properties()
    admin, topic, numbers = make_admin(properties), temporary.name, range(temporary.partitions)
    try:
        found, _ = read_topic_id(admin, topic, limit)
    except TopicMissing:
        found = None
    if found != temporary.topic_id:
        raise KafkaFailure(
            "it is gone; what was not handled in it is lost there", subject=f"topic {topic}"
        )
    handled = committed_offsets(admin, plan.recovery_group, topic, numbers, limit)
    ends = list_offsets(admin, topic, numbers, "latest", "read_committed", limit)
    last = workspace.ledger.burndown.latest(recovery.id)
    if last is not None and sum(ends.values()) < last.relayed:
        raise KafkaFailure(
            f"it ends before the {last.relayed:,} messages that were relayed into it: the reading "
            "is not to be trusted",
            subject=f"topic {topic}",
        )
    left = sum(max(0, end - (handled[number] or 0)) for number, end in ends.items())
    if left <= _FEW * temporary.partitions and not find_unread(
        admin, properties, topic, plan.recovery_group, temporary.partitions, limit
    ):
        return 0
    return left


def _make_only_there(
    workspace: Workspace,
    recovery: Recovery,
    temporary: TemporaryTopic | None,
    messages: int | None,
) -> OnlyThere | None:
    if temporary is None:
        return None
    last = workspace.ledger.burndown.latest(recovery.id)
    known = None if last is None else Reading(last.temporary_lag, last.at)
    return OnlyThere(temporary.name, messages, known)


def _say_stopped(plan: ExpandPlan, steps: dict[str, StepRecord], readers: Readers) -> str:
    if RESTORE_STEP in steps and readers.originals:
        return ""  # the layout is being restored, and they are back already
    return f"the {format_plural(plan.replicas, 'consumer')} of group {plan.group}"
