"""The examination of a stream: its parts are read, judged together, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

import backlogctl.monitoring.doctor.group
import backlogctl.monitoring.doctor.producers
import backlogctl.monitoring.doctor.timestamps
import backlogctl.monitoring.doctor.topic  # noqa: F401
from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Config, Stream
from backlogctl.errors import BacklogError
from backlogctl.kafka.clients import Admin, connect
from backlogctl.kafka.group_types import explain_unsupported_group, read_group_type
from backlogctl.kafka.groups import describe_group_state
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
from backlogctl.monitoring.watch.look import look_at_stream
from backlogctl.replay.consumers.members import count_rebalancing
from backlogctl.replay.doctor.tool import judge_host, judge_rights
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.observe.rights import DOCTOR
from backlogctl.replay.observe.stream import read_history
from backlogctl.values import to_document


@CheckScope.TOOL.check(
    "sources",
    "Source tables",
    "A rebuild reads them: it has to reach them, and an index on the time column decides "
    "between seconds and hours of load on the database.",
)
def judge_sources(config: Config, stream: Stream) -> Iterator[CheckFinding]:
    """Whether they can be read, and have an index on the time column."""
    if (source := stream.source) is None or not config.is_meant_for("rebuild"):
        return
    if find_spec("pyspark") is None:
        return  # the check of this host says that nothing is rebuilt without Spark
    from backlogctl.spark_backfill.sources.reflection import open_engine, reflect_table

    places: list[tuple[str, str, str | None]] = [
        (source.database, source.table, source.time_column)
    ]
    if (consumed := source.consumed) is not None:
        places.append((consumed.database, consumed.table, None))
    for database, name, column in places:
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
        names = {one.name for one in table.columns}
        if column is not None and column not in names:
            yield CheckFinding(
                *("sources", CheckLevel.STOPS, subject, f"it has no column {column}"),
                f"`streams.{stream.name}.source.time_column` must be one of "
                + ", ".join(sorted(names)),
            )
        elif column is not None and column not in table.indexed:
            yield CheckFinding(
                *("sources", CheckLevel.WARNS, subject),
                f"no index begins with its time column {column}: a rebuild reads all of it",
                "",
                (create_index(table.dialect, table.label, column),),
            )


# Rules are added where their modules are imported: those of the group, the log and the topic above.

Part = TypeVar("Part")
_SECONDS = 30.0
_STREAM_ROOMS = (CheckScope.TOPIC, CheckScope.RETENTION, CheckScope.GROUP, CheckScope.LOG)


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found, worst first; `name` is a stream's, an outbox's, a file's, or empty."""

    about: Literal["tool", "stream", "client", "outbox", "look-back"]
    name: str
    findings: tuple[CheckFinding, ...]

    def to_json(self) -> dict[str, Any]:
        return {**to_document(self), "findings": [one.to_json() for one in self.findings]}


def describe_examinations(examinations: Sequence[Examination]) -> dict[str, Any]:
    """The document of `doctor`; `result` is its exit code, see `choose_exit_code`."""
    findings = [one for each in examinations for one in each.findings]
    return {
        "result": choose_exit_code(findings),
        "examinations": [one.to_json() for one in examinations],
    }


def examine_tool(workspace: Workspace, streams: Sequence[Stream]) -> Examination:
    """Ledger, clocks, disk, versions, Java and Spark; each once, whatever the streams."""
    return Examination("tool", "", sort_findings(judge_host(workspace, streams)))


def examine_stream(
    workspace: Workspace, stream: Stream, adopting: Sequence[str] | None = None
) -> Examination:
    """Topic, brokers, group, rights and sources of a stream.

    What cannot be read is a finding of level `unknown`, and the rest is judged all the same.

    Args:
        adopting: what to type instead of our own commands, where they would not know the stream.
    """
    judged = _judge_stream(workspace, stream)
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

    def __init__(self, **known: object) -> None:
        self.known = known
        self.unread: list[UnreadablePart] = []

    def read(self, name: str, part: str, read: Callable[[Deadline], Part]) -> Part | None:
        """Adds a part; None where it could not be read."""
        result = read_part(part, lambda: read(Deadline(_SECONDS)))
        if isinstance(result, UnreadablePart):
            self.unread.append(result)
            return None
        self.known[name] = result
        return result


def _judge_stream(workspace: Workspace, stream: Stream) -> Iterator[CheckFinding]:
    parts = _Parts(
        stream=stream.name,
        group=stream.group,
        horizon=workspace.config.watch.horizon,
        now=utc_now(),
    )
    admin = connect(workspace.properties(stream))
    _read_topic(parts, workspace, stream, admin)
    if any(one.error.retryable for one in parts.unread):
        yield parts.unread[0].to_finding()  # nobody answers: nothing else would be read either
        return
    parts.read(
        "status",
        f"lag and commits of group {stream.group}",
        lambda _: (
            look_at_stream(
                *(workspace.ledger, stream, workspace.properties(stream), workspace.config.watch),
                admin=admin,
            ).status
        ),
    )
    parts.read("history", "its samples", lambda _: read_history(workspace, stream))
    _read_group(parts, workspace, stream, admin)
    yield from (one.to_finding() for one in parts.unread)
    subject = f"stream {stream.name}"
    yield from apply_rules(_STREAM_ROOMS, parts.known, subject)
    yield from endure(subject, "looking at its rights", judge_rights(workspace, stream))
    yield from endure(subject, "looking at its tables", judge_sources(workspace.config, stream))


def _read_topic(parts: _Parts, workspace: Workspace, stream: Stream, admin: Admin) -> None:
    name, properties = stream.topic, workspace.properties(stream)
    topic = parts.read(
        "topic",
        f"settings and replicas of topic {name}",
        lambda limit: read_topic(admin, properties, name, limit),
    )
    if any(one.error.retryable for one in parts.unread):
        return
    if workspace.config.is_meant_for(DOCTOR):
        parts.read("brokers", "the brokers' settings", lambda limit: read_brokers(admin, limit))
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


def _read_group(parts: _Parts, workspace: Workspace, stream: Stream, admin: Admin) -> None:
    group, known = stream.group, len(parts.unread)
    kind = parts.read(
        "kind",
        f"the type of group {group}",
        lambda limit: read_group_type(workspace.properties(stream), group, limit),
    )
    if len(parts.unread) > known or explain_unsupported_group(kind):
        return
    state = parts.read(
        "state",
        f"the members of group {group}",
        lambda limit: describe_group_state(admin, group, limit),
    )
    if state is not None:
        parts.known["rebalancing"], parts.known["samples"] = count_rebalancing(workspace, stream)
