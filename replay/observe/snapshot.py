"""How every plan begins and ends: guards and rights, one look at the stream, then the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Stream
from backlogctl.kafka.admin import TopicInfo, describe_topic, list_topic_readers
from backlogctl.kafka.quotas import read_quota
from backlogctl.kafka.readers import TopicReaders
from backlogctl.replay.engine.approval import approve_automatically
from backlogctl.replay.engine.archives import clear_staging
from backlogctl.replay.engine.guards import (
    check_denied,
    refuse_active,
    refuse_changed,
    refuse_group_type,
)
from backlogctl.replay.engine.kind import Say, Workspace, ignore_progress
from backlogctl.replay.engine.plan import Options, RunOrigin, find_identity
from backlogctl.replay.observe.rights import require_rights
from backlogctl.replay.observe.stream import read_history, sample_stream
from backlogctl.values import Gap, Quota, Recovery, Sample

if TYPE_CHECKING:
    from backlogctl.kafka.rights import Right

_SECONDS = 60.0
_QUOTA_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan that is being made; nothing of it is stored yet.

    Attributes:
        origin: the run of a scheduler that asked for it.
        rights: warnings about rights that are missing, or could not be asked.
        quota: what brokers grant for writing; None where no share of it is asked for.
        say: hears what is being done, for people.
    """

    workspace: Workspace
    stream: Stream
    recovery_id: str
    origin: RunOrigin | None = None
    rights: tuple[str, ...] = ()
    say: Say = ignore_progress
    quota: Quota | None = None

    @property
    def properties(self) -> Mapping[str, str]:
        """Client properties of the stream's cluster, secrets revealed."""
        return self.workspace.properties(self.stream)

    @property
    def bytes_per_second(self) -> float | None:
        """What it may write of its quota; None: as much as it can."""
        return None if self.quota is None else self.quota.take(self.stream.limits.share)

    def fill(
        self,
        snapshot: StreamSnapshot,
        options: Options,
        configuration: Mapping[str, Any],
        warnings: Iterable[str],
    ) -> dict[str, Any]:
        """The fields that every plan has (`Plan`)."""
        stream, readers = self.stream, snapshot.readers
        return {
            "stream": stream.name,
            "cluster": stream.cluster,
            "topic": stream.topic,
            "topic_id": snapshot.topic.topic_id,
            "partition_count": snapshot.topic.partitions,
            "group": stream.group,
            "other_groups": readers.list_others(stream.group),
            "others_unknown": readers.say_unknown(stream.group),
            "approval": stream.approval,
            "configuration": configuration,
            "options": options,
            "warnings": tuple(dict.fromkeys((*self.rights, *warnings))),
            "origin": self.origin,
            "planned_by": find_identity(),
            "planned_at": utc_now(),
        }


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """A stream as it was when its plan was begun: taken once, and the same for every kind.

    Attributes:
        sample: the offsets: where each log begins and ends, and where the group is.
        status: the entry of `status`.
        readers: every group that reads the topic.
        gaps: of the stream, those that this look found too.
        history: the samples of the topic and group, oldest first; the last one is `sample`.
    """

    topic: TopicInfo
    sample: Sample
    status: Mapping[str, Any]
    readers: TopicReaders
    gaps: tuple[Gap, ...]
    history: tuple[Sample, ...]

    @property
    def lows(self) -> dict[int, int]:
        """Log starts, by partition."""
        return {part.partition: part.low for part in self.sample.partitions}

    @property
    def ends(self) -> dict[int, int]:
        """High watermarks, by partition."""
        return {part.partition: part.high for part in self.sample.partitions}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What `status` warns of."""
        return tuple(self.status["warnings"])


def begin_plan(
    workspace: Workspace,
    stream: Stream,
    list_rights: Callable[[str], Sequence[Right]],
    *,
    origin: RunOrigin | None = None,
    say: Say = ignore_progress,
    needs_offsets: bool = True,
    writes: bool = True,
) -> Draft:
    """What must hold before anything is looked at.

    Args:
        list_rights: what the recovery of this id must be allowed.
        needs_offsets: the recovery goes by the group's committed offsets.
        writes: it sends messages.

    Raises:
        Refused: a guard says no, a right is missing, or the quota of which a share is to be kept is
            not told.
        InvalidTransition: another recovery is in the way.
    """
    check_denied(workspace, stream)
    refuse_active(workspace, stream)
    if needs_offsets:
        refuse_group_type(workspace, stream)
    recovery_id = workspace.ledger.recoveries.next_id(utc_now())
    told = require_rights(workspace, stream, list_rights(recovery_id))
    quota = read_stream_quota(workspace, stream) if writes else None
    return Draft(workspace, stream, recovery_id, origin, tuple(told), say, quota)


def read_stream_quota(workspace: Workspace, stream: Stream) -> Quota | None:
    """What brokers grant for writing; None where no share of it is asked for.
    Raises Refused: they do not tell. ClusterUnreachable, KafkaFailure.
    """
    if stream.limits.share is None:
        return None
    return read_quota(workspace.properties(stream), Deadline(_QUOTA_SECONDS))


def take_share(
    workspace: Workspace, stream: Stream, whom: str, say: Callable[[str], None]
) -> float | None:
    """Bytes a second that may be written, by the quota as it is now, not as it was planned; None
    for no limit. Raises as `read_stream_quota`.

    Args:
        whom: begins what is said: `the relays write`.
    """
    quota, share = read_stream_quota(workspace, stream), stream.limits.share
    if quota is None or share is None:
        return None
    say(f"{whom} {quota.describe(share)}")
    return quota.take(share)


def take_snapshot(draft: Draft) -> StreamSnapshot:
    """Looks at the stream now; samples it in P1's order, and records gaps.

    Raises:
        PlanStale: the topic was made anew meanwhile.
        ClusterUnreachable, KafkaFailure, LedgerError.
    """
    workspace, stream, properties = draft.workspace, draft.stream, draft.properties
    limit = Deadline(_SECONDS)
    draft.say("looking at the topic")
    observed, status = sample_stream(workspace, stream, limit)
    topic = describe_topic(properties, stream.topic, limit)
    refuse_changed(topic, observed.sample)
    return StreamSnapshot(
        topic=topic,
        sample=observed.sample,
        status=status,
        readers=list_topic_readers(properties, stream.topic, limit),
        gaps=workspace.ledger.gaps.list(stream.name),
        history=read_history(workspace, stream),
    )


def finish_plan(workspace: Workspace, recovery: Recovery) -> Recovery:
    """What follows once a plan is stored: old staging is cleared, and `approval: auto` is asked."""
    clear_staging(workspace)
    return approve_automatically(workspace, recovery)
