"""Looks at streams as they are now, for `status`, `gaps` and `plan`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from confluent_kafka import ConsumerGroupTopicPartitions

from backlog.clock import Deadline
from backlog.config import Config, Stream
from backlog.errors import UsageError
from backlog.kafka.calls import ask, connect, wait_for
from backlog.kafka.errors import GroupMissing
from backlog.kafka.group_types import SHARE, read_group_type
from backlog.kafka.share_groups import read_share_offsets
from backlog.values import Gap, Sample
from monitoring import looking
from monitoring.gaps import Finding, Suspicion
from monitoring.observing import Observation, observe_stream
from monitoring.passed_over import list_possibly_expired
from replay.around.sharing import describe_share_group
from replay.recovery.workspace import Workspace

LOOK_SECONDS = 30.0
_SHOWN_AS_GAPS = (Suspicion.POSSIBLE_EXPIRED, Suspicion.REREAD_EXPIRED, Suspicion.POSSIBLE_SKIP)


def choose_streams(config: Config, names: Sequence[str]) -> list[Stream]:
    """The streams named, or all of them.

    Raises:
        UsageError: a name is not in the configuration, or it has no streams.
    """
    if names:
        return [config.stream(name) for name in dict.fromkeys(names)]
    if not config.streams:
        raise UsageError(
            "the configuration has no streams", subject="streams", hint="add one under `streams`"
        )
    return list(config.streams.values())


def look_at_stream(
    workspace: Workspace, stream: Stream, deadline: Deadline | None = None
) -> tuple[Observation, dict[str, Any]]:
    """Samples a stream, records its gaps, and gives its entry of `status`."""
    ledger = workspace.ledger
    look = looking.look_at_stream(
        ledger,
        stream,
        workspace.properties(stream),
        workspace.config.watch,
        deadline or Deadline(LOOK_SECONDS),
    )
    entry = look.status.to_json()
    if page := find_page(workspace.config, stream.name):
        entry["page"] = page
    gaps = ledger.gaps.list(stream=stream.name)
    entry["warnings"] = [
        *map(str, look.status.unseen),
        *(
            f"hold {hold.id} is not in force: the broker keeps less than it was raised to"
            for hold in ledger.holds.list(stream=stream.name)
            if hold.in_force is False
        ),
        *describe_findings(look.observation, gaps),
        *map(str, list_possibly_expired(read_history(workspace, stream), gaps)),
    ]
    if look.status.group_state == SHARE:
        told = describe_share_group(
            workspace.properties(stream), stream.name, stream.topic, stream.group
        )
        entry |= {**told, "warnings": [*entry["warnings"], *told["warnings"]]}
    return look.observation, entry


def find_page(config: Config, stream: str) -> str:
    """The address of a stream's page; "" where nobody said how the page is reached."""
    url = config.watch.url
    return f"{url.rstrip('/')}/streams/{quote(stream)}" if url else ""


def read_history(workspace: Workspace, stream: Stream) -> tuple[Sample, ...]:
    """The samples of the stream's present topic and group, oldest first."""
    return looking.read_timeline(workspace.ledger, stream)


def note_stream(workspace: Workspace, stream: Stream) -> None:
    """Samples a stream and records its gaps."""
    observe_stream(workspace.ledger, stream, workspace.properties(stream), Deadline(LOOK_SECONDS))


def describe_findings(seen: Observation, known: Iterable[Gap]) -> list[str]:
    """What an observation found that is not recorded as a gap, one sentence each."""
    place = (seen.sample.group, seen.sample.topic_id)
    gaps = [gap for gap in known if (gap.group, gap.topic_id) == place]
    told = (
        f"partition {item.partition}: {item.message}"
        for item in seen.findings
        if not any(_covers(gap, item) for gap in gaps)
    )
    return list(dict.fromkeys(told))


def _covers(gap: Gap, finding: Finding) -> bool:
    return (
        finding.kind in _SHOWN_AS_GAPS
        and None not in (gap.start, gap.end, finding.start, finding.end)
        and gap.partition == finding.partition
        and (gap.start or 0) <= (finding.start or 0)
        and (finding.end or 0) <= (gap.end or 0)
    )


def list_group_topics(
    properties: Mapping[str, str], group: str, deadline: Deadline | None = None
) -> list[str]:
    """The topics that a group has committed on, or reads as a share group, in alphabetical order.

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    admin, limit = connect(properties), deadline or Deadline(LOOK_SECONDS)
    subject, doing = f"group {group}", "read committed offsets"
    request = [ConsumerGroupTopicPartitions(group)]
    futures = ask(admin, admin.list_consumer_group_offsets, subject, doing, limit, request)
    try:
        answer = wait_for(admin, futures[group], subject, doing, limit)
    except GroupMissing:
        found = set()
    else:
        found = {item.topic for item in answer.topic_partitions or () if item.offset >= 0}
    if not found and read_group_type(properties, group, limit) == SHARE:
        found = {one.topic for one in read_share_offsets(properties, group, limit)}
    return sorted(found)
