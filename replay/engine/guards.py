"""What must hold before a plan of any kind is made, and how it is stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from backlogctl.config import Stream
from backlogctl.errors import InvalidTransition, PlanStale, Refused
from backlogctl.kafka.admin import TopicInfo
from backlogctl.kafka.group_types import SHARE, explain_unsupported_group, read_group_type
from backlogctl.monitoring.offsets.history import is_missing
from backlogctl.monitoring.verdict.commands import look_at_stream
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import (
    UNFINISHED,
    Plan,
    find_changes,
    find_identity,
    is_in_the_way,
)
from backlogctl.values import Gap, Recovery, RecoveryState, Sample


def check_denied(workspace: Workspace, stream: Stream) -> None:
    """Refuses topics of `guards.deny_topics`, and the Kafka ledger's own topic (fault 60)."""
    check_denied_topic(workspace, stream.topic)


def check_denied_topic(workspace: Workspace, topic: str) -> None:
    """The same for any topic that messages are sent to."""
    config = workspace.config
    for pattern in (*config.guards.deny_topics, config.kafka_ledger.topic):
        if fnmatchcase(topic, pattern):
            raise Refused(
                f"it is denied by the pattern `{pattern}`",
                subject=f"topic {topic}",
                hint="see `guards.deny_topics`",
            )


def refuse_active(workspace: Workspace, stream: Stream) -> None:
    """Refuses early, before minutes of planning; the ledger's constraint is what decides."""
    for other in workspace.ledger.recoveries.list(states=UNFINISHED):
        if is_in_the_way(stream, other):
            raise InvalidTransition(
                f"recovery {other.id} of the same topic or group is {other.state}",
                subject=f"stream {stream.name}",
                hint=f"`backlogctl show {other.id}` says what comes next for it",
            )


def refuse_group_type(workspace: Workspace, stream: Stream) -> None:
    """Refuses groups that have no offsets to go by, or more than offsets."""
    kind = read_group_type(workspace.properties(stream), stream.group)
    if why := explain_unsupported_group(kind):
        raise Refused(
            f"it cannot be recovered: {why}",
            subject=f"group {stream.group}",
            hint="`kafka-share-groups.sh --describe` tells its lag"
            if kind == SHARE
            else "use the tools of Kafka Streams (`kafka-streams-application-reset.sh`)",
        )


def refuse_changed(topic: TopicInfo, sample: Sample) -> None:
    """Refuses a topic that is another one than was sampled, or has other partitions.

    Raises:
        PlanStale: planning again may do.
    """
    if (topic.topic_id, topic.partitions) != (sample.topic_id, len(sample.partitions)):
        raise PlanStale(
            "it was changed while it was looked at",
            subject=f"topic {sample.topic}",
            hint="plan again",
            retryable=True,
        )


def warn_about_approval(workspace: Workspace, stream: Stream, kind: str) -> list[str]:
    """What a plan that a person approves means for other plans, and for `approval: auto`."""
    warnings = [
        f"the plan {other.id} ({other.kind}), which nobody approved, is rejected: this one takes "
        "its place"
        for other in workspace.ledger.recoveries.list(stream.name, [RecoveryState.PLANNED])
        if other.kind != kind
    ]
    if stream.approval == "auto":
        warnings.append("`approval: auto` is for exact rebuilds: this needs an approval by name")
    return warnings


def refuse_missing_group(stream: Stream, sample: Sample, gaps: Iterable[Gap]) -> None:
    """Refuses a group that is not there and never was: that is unknown, not nothing lost."""
    if is_missing(sample) and not any(gap.group == stream.group for gap in gaps):
        raise Refused(
            "does not exist on this cluster and is not known from before: what it read, or lost, "
            "is unknown",
            subject=f"group {stream.group}",
            hint=f"is its name right? see `streams.{stream.name}.group`",
        )


def refuse_beyond_end(sample: Sample) -> None:
    """Refuses a commit beyond the end of the log (fault 22)."""
    for part in sample.partitions:
        if part.committed is not None and part.committed > part.high:
            raise Refused(
                f"the committed offset {part.committed} lies beyond the end {part.high}",
                subject=f"group {sample.group} on topic {sample.topic}[{part.partition}]",
                hint=f"`{look_at_stream(sample.stream)}` tells why, and where it goes on without "
                "a loss",
            )


def fingerprint_stream(stream: Stream, names: Collection[str]) -> dict[str, Any]:
    """These settings of a stream: a plan keeps those that it was computed from."""
    return stream.model_dump(mode="json", include=set(names))


def check_configuration(plan: Plan, now: Mapping[str, Any], hint: str) -> None:
    """Whether the stream's configuration is still what the plan was computed from.

    Args:
        now: the same keys as `plan.configuration`, as they are now.

    Raises:
        PlanStale: names the keys that changed.
    """
    if changed := find_changes(plan.configuration, now):
        names = ", ".join(f"`{name}`" for name in changed)
        raise PlanStale(
            f"its configuration changed since the plan was made: {names}",
            subject=f"stream {plan.stream}",
            hint=hint,
        )


def store_plan(
    workspace: Workspace, recovery_id: str, plan: Plan, gap_ids: Iterable[str] = ()
) -> Recovery:
    """Puts a plan on record; a plan of the stream that nobody approved is superseded by it.

    Raises:
        InvalidTransition: a gap is not open any more.
    """
    traits = workspace.kinds.get(plan.kind).traits
    return workspace.ledger.recoveries.create(
        plan.kind,
        plan.stream,
        plan.cluster,
        plan.topic,
        plan.group,
        plan.dump(),
        plan.hash(),
        gap_ids,
        actor=str(find_identity()),
        id=recovery_id,
        stops_consumers=traits.stops_consumers,
        holds_when_failed=traits.holds_when_failed,
    )
