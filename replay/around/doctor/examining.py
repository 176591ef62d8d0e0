"""Examines streams: reads what is there, judges it together, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeVar

from backlog.clock import Deadline, utc_now
from backlog.config import Stream
from backlog.kafka.calls import connect
from backlog.kafka.clients import Admin, Properties
from backlog.kafka.group_types import read_group_type
from backlog.kafka.groups import describe_group_state
from monitoring.doctor import membership, producers, replication, retention, writing
from monitoring.doctor.facts import Brokers, Newest, Topic, read_brokers, read_newest, read_topic
from monitoring.doctor.finding import Finding, Unread, choose_exit_code, read_part, sort_findings
from monitoring.forensics.newest import NewestLog, read_newest_log
from monitoring.looking import look_at_stream
from monitoring.status import GroupStatus
from replay.around.doctor.host import judge_host
from replay.around.doctor.permissions import judge_rights
from replay.around.doctor.sources import judge_sources
from replay.around.members import count_rebalancing
from replay.recovery.workspace import Workspace

Part = TypeVar("Part")
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found, worst first; `name` is a stream's, an outbox's, a file's, or empty."""

    about: Literal["tool", "stream", "client", "outbox", "look-back"]
    name: str
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "about": self.about,
            "name": self.name,
            "findings": [one.to_json() for one in self.findings],
        }


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
    found = sort_findings(_judge_stream(workspace, stream))
    if adopting is not None:
        found = tuple(_replace_ours(one, adopting) for one in found)
    return Examination("stream", stream.name, found)


def _replace_ours(finding: Finding, adopting: Sequence[str]) -> Finding:
    theirs = [one for one in finding.commands if not one.startswith("backlogctl ")]
    ours = adopting if len(theirs) < len(finding.commands) else ()
    return replace(finding, commands=(*theirs, *ours))


def _judge_stream(workspace: Workspace, stream: Stream) -> Iterator[Finding]:
    properties, horizon = workspace.properties(stream), workspace.config.watch.horizon
    admin = connect(properties)
    topic = read_part(
        f"settings and replicas of topic {stream.topic}",
        lambda: read_topic(admin, properties, stream.topic, Deadline(_SECONDS)),
    )
    if isinstance(topic, Unread) and topic.error.retryable:
        yield topic.to_finding()  # nobody answers: nothing else would be read either
        return
    brokers = read_part("the brokers' settings", lambda: read_brokers(admin, Deadline(_SECONDS)))
    newest: Newest | Unread | None = None
    log: NewestLog | Unread | None = None
    if not isinstance(topic, Unread):
        read = partial(read_newest, admin, properties, stream.topic, len(topic.partitions))
        newest = read_part("its newest messages", lambda: read(Deadline(_SECONDS)))
        log = read_part(
            "the headers of its newest batches",
            partial(_read_log, admin, properties, topic, _known(newest)),
        )
    status = read_part(
        f"lag and commits of group {stream.group}",
        lambda: (
            look_at_stream(
                *(workspace.ledger, stream, properties, workspace.config.watch), admin=admin
            ).status
        ),
    )
    for part in (topic, brokers, newest, log, status):
        if isinstance(part, Unread):
            yield part.to_finding()
    yield from _judge_topic(
        stream.name, _known(topic), _known(brokers), _known(newest), _known(status), horizon
    )
    if isinstance(topic, Topic) and isinstance(log, NewestLog):
        yield from producers.judge_producers(stream.name, topic, log)
    yield from _judge_group(workspace, stream, admin, _known(topic), _known(brokers))
    yield from judge_rights(workspace, stream)
    yield from judge_sources(workspace.config, stream)


def _read_log(
    admin: Admin, properties: Properties, topic: Topic, newest: Newest | None
) -> NewestLog:
    return read_newest_log(
        *(admin, properties, topic.name, tuple(topic.partitions)),
        None if newest is None else newest.mean,
        Deadline(_SECONDS),
        is_compacted="compact" in topic.settings.get("cleanup.policy", ""),
    )


def _known(part: Part | Unread | None) -> Part | None:
    return None if isinstance(part, Unread) else part


def _judge_topic(
    name: str,
    topic: Topic | None,
    brokers: Brokers | None,
    newest: Newest | None,
    status: GroupStatus | None,
    horizon: timedelta,
) -> Iterator[Finding]:
    if status is not None:
        yield from membership.judge_course(status)
    if brokers is not None:
        yield from replication.judge_internal_topics(brokers)
        yield from writing.judge_transactions(brokers)
    if topic is None:
        return
    yield from replication.judge_replication(topic)
    yield from replication.judge_partitions(topic)
    yield from retention.judge_retention(name, topic, newest, status, horizon)
    yield from retention.judge_segments(topic, newest, status)
    yield from retention.judge_compaction(topic)
    yield from writing.judge_flush(topic)
    if brokers is not None:
        yield from replication.judge_brokers(topic, brokers)
        yield from retention.judge_offsets_retention(topic, brokers, horizon)
    if newest is not None:
        yield from writing.judge_message_size(topic, newest)
        yield from retention.judge_timestamps(topic, newest, utc_now())


def _judge_group(
    workspace: Workspace,
    stream: Stream,
    admin: Admin,
    topic: Topic | None,
    brokers: Brokers | None,
) -> Iterator[Finding]:
    group, limit = stream.group, Deadline(_SECONDS)
    kind = read_part(
        f"the type of group {group}",
        lambda: read_group_type(workspace.properties(stream), group, limit),
    )
    if isinstance(kind, Unread):
        yield kind.to_finding()
        return
    if types := list(membership.judge_type(group, kind)):
        yield from types
        return
    state = read_part(
        f"the members of group {group}", lambda: describe_group_state(admin, group, limit)
    )
    if isinstance(state, Unread):
        yield state.to_finding()
        return
    if brokers is not None:
        yield from membership.judge_migration(group, state, brokers)
    if topic is not None:
        rebalancing, samples = count_rebalancing(workspace, stream)
        yield from membership.judge_members(group, state, topic, rebalancing, samples)
