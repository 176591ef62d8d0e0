"""The examination of a stream: its parts are read, judged together, and nothing is changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

import backlogctl.monitoring.doctor.group
import backlogctl.monitoring.doctor.producers
import backlogctl.monitoring.doctor.timestamps
import backlogctl.monitoring.doctor.topic  # noqa: F401
from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Config, Stream
from backlogctl.errors import BacklogError, ConfigurationError, LedgerError
from backlogctl.kafka.clients import Admin, connect, join_reasons
from backlogctl.kafka.coordinator import describe_group_state, describe_group_states
from backlogctl.kafka.group_types import (
    GroupListing,
    explain_unsupported_group,
    read_group_listings,
)
from backlogctl.kafka.groups import GroupState
from backlogctl.kafka.raw_client import keep_clients
from backlogctl.monitoring.doctor.checks import (
    CheckFinding,
    CheckLevel,
    CheckScope,
    UnreadablePart,
    apply_rules,
    choose_exit_code,
    endure,
    read_part,
    sort_findings,
)
from backlogctl.monitoring.doctor.facts import read_brokers, read_newest, read_topic
from backlogctl.monitoring.producers.reader import read_newest_log
from backlogctl.monitoring.verdict.commands import create_index
from backlogctl.monitoring.verdict.status import GroupStatus
from backlogctl.monitoring.watch.look import StreamLook, look_at_stream
from backlogctl.replay.consumers.members import count_rebalancing
from backlogctl.replay.doctor.tool import (
    describe_takings,
    judge_host,
    judge_rights,
    read_cluster_takings,
)
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import list_stream_commands
from backlogctl.replay.engine.plan import ACTIVE
from backlogctl.replay.observe.rights import DOCTOR
from backlogctl.replay.observe.stream import AWAY_SECONDS, read_at_once, read_history
from backlogctl.values import Sample, to_document


@CheckScope.TOOL.check(
    "sources",
    "Source tables",
    "A rebuild reads them: it has to reach them, and an index on the time column decides "
    "between seconds and hours of load on the database.",
    "SQL in the rules is checked by a plan.",
)
def judge_sources(config: Config, stream: Stream) -> Iterator[CheckFinding]:
    """Whether they can be read, and have the columns that are named, and an index on the time."""
    if (source := stream.source) is None or not config.is_meant_for("rebuild"):
        return
    if find_spec("pyspark") is None:
        return  # the check of this host says that nothing is rebuilt without Spark
    from backlogctl.spark_backfill.sources.reflection import (
        check_columns,
        list_named_columns,
        open_engine,
        reflect_table,
    )

    at = f"streams.{stream.name}.source"
    places: list[tuple[str, str, str | None, Sequence[tuple[str, Sequence[str]]]]] = [
        (source.database, source.table, source.time_column, [*list_named_columns(source, at)])
    ]
    if (consumed := source.consumed) is not None:
        named = [(f"{at}.consumed.column", [consumed.column])]
        places.append((consumed.database, consumed.table, None, named))
    for database, name, column, wanted in places:
        subject = f"table {database}.{name}"
        try:
            engine = open_engine(config.sources[database], database)
            try:
                table = reflect_table(engine, database, name)
            finally:
                engine.dispose()
        except BacklogError as error:
            yield CheckFinding(
                *("sources", CheckLevel.STOPS, subject, f"it could not be read: {error.message}"),
                error.hint or f"check `sources.{database}.url`",
            )
            continue
        for place, columns in wanted:
            try:
                check_columns(table, columns, place)
            except ConfigurationError as error:
                told = f"`{place}`: {error.message}"
                yield CheckFinding("sources", CheckLevel.STOPS, subject, told, error.hint)
        names = {one.name for one in table.columns}
        if column in names and column not in table.indexed:
            yield CheckFinding(
                *("sources", CheckLevel.WARNS, subject),
                f"no index begins with its time column {column}: a rebuild reads all of it",
                "",
                (create_index(table.dialect, table.label, column),),
            )


# Rules are added where their modules are imported: those of the group, the log and the topic above.

Part = TypeVar("Part")
_SECONDS = 30.0
_TYPES_SECONDS = 10.0  # where another look has waited for the same brokers
_AT_A_TIME = 4
_STREAM_ROOMS = (CheckScope.TOPIC, CheckScope.RETENTION, CheckScope.GROUP, CheckScope.LOG)


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found, worst first; `name` is a stream's, an outbox's, a file's, or empty;
    `requests` by cluster and request, of those that were asked for them."""

    about: Literal["tool", "stream", "client", "outbox", "look-back"]
    name: str
    findings: tuple[CheckFinding, ...]
    requests: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**to_document(self), "findings": [one.to_json() for one in self.findings]}


def describe_examinations(examinations: Sequence[Examination]) -> dict[str, Any]:
    """The document of `doctor`; `result` is its exit code, see `choose_exit_code`."""
    findings = [one for each in examinations for one in each.findings]
    return {
        "result": choose_exit_code(findings),
        "examinations": [one.to_json() for one in examinations],
    }


Clusters = Mapping[str, Mapping[str, str] | BacklogError]
"""By name which brokers cannot be reached and why, or why none answers: of `reach_clusters`."""


def examine_tool(
    workspace: Workspace, streams: Sequence[Stream], clusters: Clusters | None = None
) -> Examination:
    """Ledger, clocks, disk, versions, Java, Spark, and brokers that are away: each once, whatever
    the streams are."""
    reached = clusters or {}
    there = [one for one in streams if not isinstance(reached.get(one.cluster), BacklogError)]
    takings = read_cluster_takings(workspace, there)
    found = [*judge_clusters(reached), *judge_host(workspace, streams, there, takings)]
    return Examination("tool", "", sort_findings(found), describe_takings(takings))


@CheckScope.TOOL.check(
    "reach",
    "Brokers that cannot be reached",
    "What a broker leads is not read, and what is away as a whole cannot be judged.",
    "Every address is tried within ten seconds, and named with what came of it.",
)
def judge_clusters(clusters: Clusters) -> Iterator[CheckFinding]:
    """Of each cluster who is away."""
    for name, found in clusters.items():
        if isinstance(found, BacklogError):
            yield CheckFinding(
                *("reach", CheckLevel.UNKNOWN, f"cluster {name}", found.message), found.hint or ""
            )
        elif found:
            yield CheckFinding(
                *("reach", CheckLevel.UNKNOWN, f"cluster {name}"),
                f"brokers cannot be reached from here: {join_reasons(found)}",
                "start them, or let this host reach their `advertised.listeners`",
            )


def examine_streams(
    workspace: Workspace,
    streams: Sequence[Stream],
    adopting: Sequence[str] | None = None,
    clusters: Clusters | None = None,
) -> Iterator[Examination]:
    """`examine_stream` of each, several at a time; what is the cluster's is read once."""
    shared = _Shared(workspace, streams)

    def examine(stream: Stream) -> Examination:
        return examine_stream(workspace, stream, adopting, clusters, shared)

    with ThreadPoolExecutor(min(_AT_A_TIME, len(streams)) or 1) as pool, keep_clients():
        yield from pool.map(examine, streams)
    workspace.ledger.samples.add_all(shared.unstored)


class _Shared:
    """What many examinations share: what is read of a cluster once, and a client a thread.

    Args:
        streams: all of them.
    """

    def __init__(self, workspace: Workspace, streams: Sequence[Stream]) -> None:
        self._workspace = workspace
        self._streams = streams
        self._local = threading.local()
        self._known: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        self.unstored: list[tuple[Sample, bool]] = []

    def connect(self, stream: Stream) -> Admin:
        admins: dict[str, Admin] = self._local.__dict__.setdefault("admins", {})
        if stream.cluster not in admins:
            admins[stream.cluster] = connect(self._workspace.properties(stream))
        return admins[stream.cluster]

    def read_once(self, what: str, cluster: str, read: Callable[[], Part]) -> Part:
        """Of a cluster, by the first who needs it; what fails fails for all."""
        with self._lock:
            key = (what, cluster)
            if key not in self._known:
                try:
                    self._known[key] = read()
                except BacklogError as error:
                    self._known[key] = error
            found = self._known[key]
        if isinstance(found, BacklogError):
            raise found
        result: Part = found
        return result

    def look(self, stream: Stream, admin: Admin, limit: Deadline) -> StreamLook:
        workspace, cluster = self._workspace, stream.cluster
        ours = [one for one in self._streams if one.cluster == cluster]
        _, bulk = self.read_once("offsets", cluster, lambda: read_at_once(workspace, cluster, ours))
        look = look_at_stream(
            *(workspace.ledger, stream, workspace.properties(stream), workspace.config.watch),
            limit,
            admin=admin,
            bulk=bulk,
        )
        self.unstored.extend(look.observation.unstored)
        return look

    def read_kind(self, stream: Stream, limit: Deadline) -> str | None:
        properties = self._workspace.properties(stream)
        within = limit.part(_TYPES_SECONDS)
        listings, unknown = self.read_once(
            "types", stream.cluster, lambda: read_group_listings(properties, within)
        )
        return None if unknown else listings.get(stream.group, GroupListing()).type

    def read_state(self, stream: Stream, admin: Admin, limit: Deadline) -> GroupState:
        groups = sorted({one.group for one in self._streams if one.cluster == stream.cluster})
        found = self.read_once(
            "members", stream.cluster, lambda: describe_group_states(admin, groups, limit)
        )
        known = found.get(stream.group)
        # One that may not be described says so itself.
        return known or describe_group_state(admin, stream.group, limit)


def examine_stream(
    workspace: Workspace,
    stream: Stream,
    adopting: Sequence[str] | None = None,
    clusters: Clusters | None = None,
    shared: _Shared | None = None,
) -> Examination:
    """Topic, brokers, group, rights and sources of a stream.

    What cannot be read is a finding of level `unknown`, and the rest is judged all the same.

    Args:
        adopting: what to type instead of our own commands, where they would not know the stream.
        clusters: those that are away are not asked.
        shared: with other examinations.
    """
    shared = shared or _Shared(workspace, [stream])
    away = (clusters or {}).get(stream.cluster)
    judged = (
        _judge_unreached(workspace, stream, away)
        if isinstance(away, BacklogError)
        else _judge_stream(workspace, stream, shared, AWAY_SECONDS if away else _SECONDS)
    )
    found = sort_findings(endure(f"stream {stream.name}", "its examination", judged))
    if adopting is not None:
        found = tuple(_replace_ours(one, adopting) for one in found)
    return Examination("stream", stream.name, found)


def _replace_ours(finding: CheckFinding, adopting: Sequence[str]) -> CheckFinding:
    theirs = [one for one in finding.commands if not one.startswith("backlogctl ")]
    ours = adopting if len(theirs) < len(finding.commands) else ()
    return replace(finding, commands=(*theirs, *ours))


class _Parts:
    """What was read of a stream by the names of the rules' parameters, and what could not be."""

    def __init__(self, seconds: float, **known: object) -> None:
        self.known, self._seconds = known, seconds
        self.unread: list[UnreadablePart] = []

    def read(self, name: str, part: str, read: Callable[[Deadline], Part]) -> Part | None:
        """Adds a part; None where it could not be read."""
        result = read_part(part, lambda: read(Deadline(self._seconds)))
        if isinstance(result, UnreadablePart):
            self.unread.append(result)
            return None
        self.known[name] = result
        return result


def _judge_unreached(
    workspace: Workspace, stream: Stream, away: BacklogError
) -> Iterator[CheckFinding]:
    yield CheckFinding(
        *("reach", CheckLevel.UNKNOWN, f"stream {stream.name}"),
        f"nothing of it could be read: cluster {stream.cluster}: {away.message}",
        away.hint or "see above",
    )
    subject = f"stream {stream.name}"
    yield from endure(subject, "looking at its tables", judge_sources(workspace.config, stream))


def _judge_stream(
    workspace: Workspace, stream: Stream, shared: _Shared, seconds: float
) -> Iterator[CheckFinding]:
    parts = _Parts(
        seconds,
        stream=stream.name,
        group=stream.group,
        horizon=workspace.config.watch.horizon,
        now=utc_now(),
        read_history=partial(read_history, workspace, stream),
    )
    admin = shared.connect(stream)
    _read_topic(parts, workspace, stream, admin, shared)
    if any(one.error.retryable for one in parts.unread):
        yield parts.unread[0].to_finding()  # nobody answers: nothing else would be read either
        return
    look = parts.read(
        "look",
        f"lag and commits of group {stream.group}",
        lambda limit: shared.look(stream, admin, limit),
    )
    if look is not None:
        parts.known["status"] = _choose_commands(workspace, stream, shared, look.status)
    _read_group(parts, workspace, stream, admin, shared, () if look is None else look.samples)
    yield from (one.to_finding() for one in parts.unread)
    subject = f"stream {stream.name}"
    yield from apply_rules(_STREAM_ROOMS, parts.known, subject)
    yield from endure(subject, "looking at its rights", judge_rights(workspace, stream))
    yield from endure(subject, "looking at its tables", judge_sources(workspace.config, stream))


def _choose_commands(
    workspace: Workspace, stream: Stream, shared: _Shared, status: GroupStatus
) -> GroupStatus:
    """As `status` prints them: an open recovery comes before another plan."""
    try:
        active = shared.read_once(
            "active", "", lambda: workspace.ledger.recoveries.list(states=ACTIVE)
        )
        chosen = list_stream_commands(workspace, stream, status.next_commands, active)
    except LedgerError:
        return status  # a finding of its own
    return replace(status, next_commands=chosen)


def _read_topic(
    parts: _Parts, workspace: Workspace, stream: Stream, admin: Admin, shared: _Shared
) -> None:
    name, properties = stream.topic, workspace.properties(stream)
    topic = parts.read(
        "topic",
        f"settings and replicas of topic {name}",
        lambda limit: read_topic(admin, properties, name, limit),
    )
    if any(one.error.retryable for one in parts.unread):
        return
    if workspace.config.is_meant_for(DOCTOR):
        parts.read(
            "brokers",
            "the brokers' settings",
            lambda limit: shared.read_once(
                "brokers", stream.cluster, lambda: read_brokers(admin, limit)
            ),
        )
    if topic is None:
        return
    newest = parts.read(
        "newest",
        "its newest messages",
        lambda limit: read_newest(admin, properties, name, len(topic.partitions), limit),
    )
    parts.read(
        "log",
        "the headers of its newest batches",
        lambda limit: read_newest_log(
            *(admin, properties, name, tuple(topic.partitions)),
            None if newest is None else newest.mean,
            limit,
            is_compacted="compact" in topic.settings.get("cleanup.policy", ""),
        ),
    )


def _read_group(
    parts: _Parts,
    workspace: Workspace,
    stream: Stream,
    admin: Admin,
    shared: _Shared,
    samples: Sequence[Sample],
) -> None:
    group, known = stream.group, len(parts.unread)
    kind = parts.read(
        "kind",
        f"the type of group {group}",
        lambda limit: shared.read_kind(stream, limit),
    )
    if len(parts.unread) > known or explain_unsupported_group(kind):
        return
    state = parts.read(
        "state",
        f"the members of group {group}",
        lambda limit: shared.read_state(stream, admin, limit),
    )
    if state is not None:
        parts.known["rebalancing"], parts.known["samples"] = count_rebalancing(
            samples, workspace.config.watch.window
        )
