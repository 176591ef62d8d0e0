"""Whether a recovery's topic is still the one that was planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import quote

from backlogctl.clock import Deadline
from backlogctl.config import Config, Stream
from backlogctl.errors import BacklogError, LedgerError, PlanStale, UsageError
from backlogctl.formats import format_count, format_plural
from backlogctl.kafka.admin import read_metadata, read_topic_id
from backlogctl.kafka.clients import Admin, Properties, connect, reach_cluster
from backlogctl.kafka.coordinator import read_all_commits
from backlogctl.kafka.errors import TopicMissing
from backlogctl.kafka.group_types import SHARE, SharePartition, read_group_type, read_share_offsets
from backlogctl.kafka.raw_client import (
    Coordinators,
    RawClient,
    keep_clients,
    lend_client,
    translate_properties,
)
from backlogctl.monitoring.offsets.bulk_look import LEAST_STREAMS, BulkLook, BulkLooker
from backlogctl.monitoring.offsets.gaps import OffsetFinding, Suspicion
from backlogctl.monitoring.offsets.history import MEMBERLESS
from backlogctl.monitoring.offsets.observation import Observation, observe_stream
from backlogctl.monitoring.offsets.timeline import read_timeline
from backlogctl.monitoring.verdict.status import GroupStatus
from backlogctl.monitoring.watch import look as looking
from backlogctl.monitoring.watch.notes import without_ledger
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import Plan
from backlogctl.values import Gap, Sample
from backlogctl_delivery.kafka import AccessDenied


def refuse_other_source(admin: Admin, plan: Plan, hint: str) -> None:
    """The topic is the one of the plan.

    Raises:
        PlanStale: it was deleted, perhaps created again, or has more partitions.
    """
    topic, planned = plan.topic, plan.partition_count
    try:
        topic_id, partitions = read_topic_id(admin, topic, Deadline(30.0))
    except TopicMissing:
        why = "it was deleted since the plan was made"
    else:
        if topic_id != plan.topic_id:
            why = "it was deleted and created again since the plan was made"
        elif partitions != planned:
            why = f"it has {partitions} partitions, and had {planned} when the plan was made: keys "
            why += "belong elsewhere now"
        else:
            return
    raise PlanStale(why, subject=f"topic {topic}", hint=hint)


def is_source(admin: Admin, plan: Plan) -> bool:
    """Whether the topic of this name is still the planned one, perhaps with more partitions."""
    try:
        return read_topic_id(admin, plan.topic)[0] == plan.topic_id
    except TopicMissing:
        return False


# How far a share group is, for `status`: by its own figures, since it has no committed offsets.

_SECONDS = 15.0


def describe_share_group(
    properties: Mapping[str, Any], name: str, topic: str, group: str
) -> dict[str, Any]:
    """What takes the place of committed offsets in the entry of `status`.

    `share` has the start offset of each partition and how many messages are not acknowledged yet,
    at most; null where the brokers do not tell. Where they cannot be asked, `warnings` says why.
    """
    try:
        found = read_share_offsets(properties, group, Deadline(_SECONDS))
    except BacklogError as error:
        return {"warnings": [f"how far the share group is is unknown: {error}"]}
    parts = [one for one in found if one.topic == topic]
    lag = _add(parts)
    return {
        "share": {
            "partitions": [
                {"partition": one.partition, "start": one.start, "lag": one.lag} for one in parts
            ],
            "lag": lag,
        },
        "sentence": _say(name, parts, lag),
        "warnings": [],
    }


def _add(parts: Sequence[SharePartition]) -> int | None:
    lags = [one.lag for one in parts]
    return sum(lag for lag in lags if lag is not None) if lags and None not in lags else None


def _say(name: str, parts: Sequence[SharePartition], lag: int | None) -> str:
    if not parts:
        return f"{name}: a share group that has begun to read no partition of it yet"
    if lag is None:
        return (
            f"{name}: a share group; how many messages are not acknowledged yet is unknown: its "
            "brokers do not tell"
        )
    if not lag:
        return f"{name}: a share group; every message is acknowledged"
    many = f"at most {format_count(lag)} messages are" if lag > 1 else "at most 1 message is"
    return f"{name}: a share group; {many} not acknowledged yet"


# Looks at streams as they are now, for `status`, `gaps` and `plan`.

LOOK_SECONDS = 30.0
# Where a broker is away that the stream needs.
AWAY_SECONDS = 4.0
_NOBODY = -1  # in the place of a leader
_SHOWN_AS_GAPS = (Suspicion.POSSIBLE_EXPIRED, Suspicion.REREAD_EXPIRED)


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


def reach_clusters(
    config: Config, streams: Iterable[Stream]
) -> dict[str, dict[str, str] | BacklogError]:
    """By cluster of the streams, which of its brokers cannot be connected to and why, or why none
    answers; all clusters at once, for some seconds."""
    names = list(dict.fromkeys(stream.cluster for stream in streams))

    def reach(name: str) -> dict[str, str] | BacklogError:
        try:
            return reach_cluster(config.clusters[name].client_properties(), f"cluster {name}")
        except BacklogError as error:
            return error

    with ThreadPoolExecutor(max(1, len(names))) as pool:
        return dict(zip(names, pool.map(reach, names), strict=True))


def warn_of_brokers(away: Mapping[str, str]) -> list[str]:
    """Brokers that cannot be reached, a sentence each."""
    return [f"broker {place} cannot be reached: {why}" for place, why in away.items()]


def sample_streams(
    workspace: Workspace, streams: Sequence[Stream], *, ledger_error: BacklogError | None = None
) -> Iterator[tuple[Stream, tuple[Observation, dict[str, Any]] | BacklogError]]:
    """`sample_stream` of each, or what failed: what can be is read for all of a cluster at once.

    Raises:
        LedgerError.
    """
    with keep_clients():
        yield from _sample_streams(workspace, streams, ledger_error)


def _sample_streams(
    workspace: Workspace, streams: Sequence[Stream], ledger_error: BacklogError | None
) -> Iterator[tuple[Stream, tuple[Observation, dict[str, Any]] | BacklogError]]:
    clusters = reach_clusters(workspace.config, streams)
    at_once = {
        name: read_at_once(workspace, name, [one for one in streams if one.cluster == name])
        for name, away in clusters.items()
        if not isinstance(away, BacklogError)
    }
    unstored: list[tuple[Sample, bool]] = []
    for stream in streams:
        away = clusters[stream.cluster]
        if isinstance(away, BacklogError):
            yield stream, away
            continue
        admin, bulk = at_once[stream.cluster]
        waits = bool(away) and _waits_for(workspace.properties(stream), stream, away)
        limit = Deadline(AWAY_SECONDS if waits else LOOK_SECONDS)
        try:
            seen, entry = sample_stream(
                *(workspace, stream, limit), ledger_error=ledger_error, admin=admin, bulk=bulk
            )
        except LedgerError:
            raise
        except BacklogError as error:
            if away:
                error.message += f"; {'; '.join(warn_of_brokers(away))}"
            yield stream, error
            continue
        unstored.extend(seen.unstored)
        entry["warnings"] += warn_of_brokers(away)
        yield stream, (seen, entry)
    workspace.ledger.samples.add_all(unstored)


def _waits_for(properties: Properties, stream: Stream, away: Iterable[str]) -> bool:
    """Whether a broker that is away has one of the stream's partitions or its group, or nobody
    tells who has them: what it has to tell will not come."""
    settings, _ = translate_properties(properties)
    if settings is None:
        return True
    limit = Deadline(AWAY_SECONDS)

    async def find(client: RawClient) -> int:
        from kafka.errors import BrokerResponseError

        try:
            return await Coordinators(client).find(stream.group)
        except BrokerResponseError:
            return _NOBODY

    try:
        known = read_metadata(properties, stream.topic, limit).topics[stream.topic].partitions
        with lend_client(settings, limit, properties) as client:
            needed = {client.run(lambda: find(client), limit)}
    except Exception:  # noqa: BLE001 - the look itself says what fails
        return True
    needed |= {part.leader for part in known.values()}
    return not needed.isdisjoint({_NOBODY, *(int(place.partition(" ")[0]) for place in away)})


def read_at_once(
    workspace: Workspace, cluster: str, streams: Sequence[Stream]
) -> tuple[Admin | None, BulkLook | None]:
    """A client for looks at streams of a cluster, and what was read of them at once; None where
    they are few, or each has to be asked alone.

    Raises:
        LedgerError.
    """
    properties = workspace.config.clusters[cluster].client_properties()
    if len(streams) < LEAST_STREAMS:
        return None, None
    admin = connect(properties)
    with closing(BulkLooker(workspace.ledger, properties)) as looker:
        try:
            return admin, looker.look(streams, Deadline(LOOK_SECONDS))
        except LedgerError:
            raise
        except BacklogError:
            return admin, None  # each is asked alone, and tells what fails


def sample_stream(
    workspace: Workspace,
    stream: Stream,
    deadline: Deadline | None = None,
    *,
    ledger_error: BacklogError | None = None,
    admin: Admin | None = None,
    bulk: BulkLook | None = None,
) -> tuple[Observation, dict[str, Any]]:
    """Samples a stream, records its gaps, and gives its entry of `status`.

    Args:
        ledger_error: why the workspace has a passing ledger in place of its own.
        admin: of its cluster.
        bulk: read for many streams at once; the caller stores the samples of all.
    """
    ledger = workspace.ledger
    look = looking.look_at_stream(
        ledger,
        stream,
        workspace.properties(stream),
        workspace.config.watch,
        deadline or Deadline(LOOK_SECONDS),
        admin=admin,
        bulk=bulk,
    )
    status = look.status
    if ledger_error is not None:
        status = without_ledger(status, ledger_error)
    entry = status.to_json()
    if page := find_page(workspace.config, stream.name):
        entry["page"] = page
    facts = look.observation.facts
    # Read again: the look has noted which are in force.
    held = any(hold.stream == stream.name for hold in facts.holds)
    holds = ledger.holds.list(stream=stream.name) if held else ()
    entry["warnings"] = [
        *map(str, status.unseen),
        *(
            f"hold {hold.id} is not in force: the broker keeps less than it was raised to"
            for hold in holds
            if hold.in_force is False
        ),
        *describe_findings(look.observation, facts.gaps.get(stream.name, ())),
        *warn_of_beginning(status),
    ]
    if status.group_state == SHARE:
        told = describe_share_group(
            workspace.properties(stream), stream.name, stream.topic, stream.group
        )
        entry |= {**told, "warnings": [*entry["warnings"], *told["warnings"]]}
    return look.observation, entry


def warn_of_beginning(status: GroupStatus) -> list[str]:
    """Where a group that was left begins again is not where it stood: what it has in front of it
    it skips with `latest`, also what was put back."""
    below = [
        part
        for part in status.partitions
        if part.committed is not None and part.committed < part.log_start and part.lag
    ]
    if status.group_state not in MEMBERLESS or not below:
        return []
    unread = format_plural(sum(part.lag or 0 for part in below), "unread message")
    places = ", ".join(str(part.partition) for part in below[:5]) + (", ..." if below[5:] else "")
    return [
        f"partition{'s' if below[1:] else ''} {places}: the group's commit is below the log start, "
        "so its clients' `auto.offset.reset` says where they begin again: with `latest` at the "
        f"end, and {unread} would be skipped"
    ]


def find_page(config: Config, stream: str) -> str:
    """The address of a stream's page; "" where nobody said how the page is reached."""
    url = config.watch.url
    return f"{url.rstrip('/')}/streams/{quote(stream)}" if url else ""


def read_history(workspace: Workspace, stream: Stream) -> tuple[Sample, ...]:
    """The samples of the stream's present topic and group, oldest first."""
    return read_timeline(workspace.ledger, stream)


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


def _covers(gap: Gap, finding: OffsetFinding) -> bool:
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
    commits = read_all_commits(admin, [group], limit).get(group, {})
    if isinstance(commits, AccessDenied):
        raise commits
    found = {topic for (topic, _), commit in commits.items() if commit.offset >= 0}
    if not found and read_group_type(properties, group, limit) == SHARE:
        found = {one.topic for one in read_share_offsets(properties, group, limit)}
    return sorted(found)


def list_other_topics(
    properties: Mapping[str, str], stream: Stream, deadline: Deadline
) -> tuple[str, ...]:
    """The topics that a stream's group reads besides the stream's."""
    found = list_group_topics(properties, stream.group, deadline)
    return tuple(name for name in found if name != stream.topic)
