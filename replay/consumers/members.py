"""Who is in a group, what each member has, and when it last committed: for a group that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from backlogctl.clock import Deadline, format_time
from backlogctl.config import Stream
from backlogctl.errors import BacklogError, KafkaFailure, Refused
from backlogctl.fanout.launchers import Fleet, Launcher, ProcessLauncher, Role
from backlogctl.fanout.relay.guard import find_others, is_guard
from backlogctl.formats import Say, format_moment, format_plural
from backlogctl.kafka.admin import GroupState, Member, describe_group_state
from backlogctl.kafka.group_types import explain_unsupported_group, read_group_type
from backlogctl.kafka.leaders import read_epoch_ends
from backlogctl.ledger.steps import RESTORE_STEP
from backlogctl.monitoring.offsets.beyond_end import (
    Resumption,
    find_cut_epochs,
    find_resumptions,
)
from backlogctl.monitoring.verdict.commands import look_at_stream, name_access, reset_offset
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.consumers.fleet import fleet_of, launcher_of
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import UNFINISHED
from backlogctl.replay.engine.values import Readers, Reads
from backlogctl.replay.observe.stream import read_history
from backlogctl.replay.present.status import list_open_standings
from backlogctl.values import Recovery, Sample

_SECONDS = 15.0
_REBALANCING = frozenset({"preparing_rebalancing", "completing_rebalancing", "assigning"})


def describe_members(workspace: Workspace, stream: Stream) -> dict[str, Any]:
    """The group's members as `status STREAM --json` prints them.

    `last_commit` is when a sample first saw the newest commit of a member's partitions: null where
    no sample of the window saw it change. Brokers do not tell of rebalances that are over, so
    `rebalancing_samples` counts the samples that saw one going on.
    """
    samples = _read_window(workspace, stream)
    commits = find_last_commits(samples)
    document: dict[str, Any] = {
        "state": None,
        "type": None,
        "members": [],
        "unassigned": [],
        "samples": len(samples),
        "rebalancing_samples": _count_rebalancing(samples),
        "error": None,
    }
    try:
        properties, limit = workspace.properties(stream), Deadline(_SECONDS)
        kind = read_group_type(properties, stream.group, limit)
        document["type"] = kind or None
        if why := explain_unsupported_group(kind):
            raise Refused(why, subject=f"group {stream.group}")
        group = describe_group_state(properties, stream.group, limit)
    except BacklogError as error:
        return {**document, "error": error.to_json()}
    assigned: set[int] = set()
    for member in group.members:
        numbers = sorted(member.partitions.get(stream.topic, ()))
        assigned.update(numbers)
        known = [at for number in numbers if (at := commits.get(number)) is not None]
        document["members"].append(
            {
                "client_id": member.client_id,
                "host": member.host,
                "member_id": member.member_id,
                "instance": member.instance or None,
                "partitions": numbers,
                "other_topics": sorted(set(member.partitions) - {stream.topic}),
                "last_commit": format_time(max(known)) if known else None,
            }
        )
    if samples and group.members:
        every = {part.partition for part in samples[-1].partitions}
        document["unassigned"] = sorted(every - assigned)
    return {**document, "state": group.state, "type": kind or group.type or None}


def count_rebalancing(samples: Sequence[Sample], window: timedelta) -> tuple[int, int]:
    """In how many of the last samples the group was rebalancing, and how many these are.

    Args:
        samples: of the group, oldest first.
    """
    recent = [one for one in samples if samples[-1].taken_at - one.taken_at <= window]
    return _count_rebalancing(recent), len(recent)


def describe_trouble(
    workspace: Workspace, stream: Stream, entry: Mapping[str, Any]
) -> dict[str, Any]:
    """The members, where a stream has some or needs some, and what to look at.

    Args:
        entry: of `status`. The command that it would end in is `status` itself: it is left out.
    """
    members = describe_members(workspace, stream)
    again = look_at_stream(stream.name)
    commands = [one for one in entry["next_commands"] if one != again]
    ways = suggest_ways(stream, str(entry["course"]), members)
    is_beyond = any(row["course"] == Verdict.BEYOND_END for row in entry["partitions"])
    if is_beyond and (places := _find_resumptions(workspace, stream)):
        ways += [f"partition {one.partition}: {one.why}" for one in places]
        ways.append(f"stop the consumers of group {stream.group}, then set it back")
        access = name_access(workspace.properties(stream))
        where = (access, stream.group, stream.topic)
        commands += [reset_offset(*where, one.partition, one.at) for one in places]
    return {"members": members, "ways": ways, "next_commands": commands}


def _find_resumptions(workspace: Workspace, stream: Stream) -> tuple[Resumption, ...]:
    """Where partitions go on whose commit is beyond the end."""
    samples = read_history(workspace, stream)
    epochs = find_cut_epochs(samples)
    try:
        limit = Deadline(_SECONDS)
        ends = (
            read_epoch_ends(workspace.properties(stream), stream.topic, epochs, limit)
            if epochs
            else {}
        )
    except BacklogError:
        ends = {}  # then they go on at the log start, and it is said why
    return find_resumptions(samples, ends)


def find_last_commits(samples: Sequence[Sample]) -> dict[int, datetime]:
    """By partition, when its newest commit was first seen; left out where it never changed."""
    found: dict[int, datetime] = {}
    before: dict[int, int | None] = {}
    for sample in samples:
        for part in sample.partitions:
            if part.partition in before and part.committed != before[part.partition]:
                found[part.partition] = sample.taken_at
            before[part.partition] = part.committed
    return found


def suggest_ways(stream: Stream, verdict: str, members: dict[str, Any]) -> list[str]:
    """What a person looks at, where no command of ours helps; sentences."""
    if members["error"] is not None:
        return []
    match verdict:
        case Verdict.STOP:
            return [
                f"nobody is in group {stream.group}: start its consumers, or find out who stopped "
                "them"
            ]
        case Verdict.STALL:
            return [
                f"look at the log of {one['client_id']} at {one['host']}: it has "
                f"{_name_partitions(one['partitions'])}, {_say_commit(one['last_commit'])}"
                for one in members["members"]
                if one["partitions"]
            ] or [f"no member of group {stream.group} has a partition of {stream.topic}"]
        case Verdict.REWIND:
            return [
                "somebody reset the group, or a consumer seeks back: what it commits again it "
                "handles again"
            ]
    return []


def _name_partitions(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
    return f"partition{'' if len(numbers) == 1 else 's'} {shown}"


def _say_commit(at: str | None) -> str:
    if at is None:
        return "and no sample saw it commit"
    return f"last commit {format_moment(datetime.fromisoformat(at))}"


def _count_rebalancing(samples: Sequence[Sample]) -> int:
    return sum(one.group_state in _REBALANCING for one in samples)


def _read_window(workspace: Workspace, stream: Stream) -> list[Sample]:
    samples = workspace.ledger.samples
    if (latest := samples.latest(stream.name)) is None:
        return []
    place = (stream.cluster, stream.topic, stream.group)
    young = samples.history(stream.name, latest.taken_at - workspace.config.watch.window)
    return [one for one in young if (one.cluster, one.topic, one.group) == place]


# The original consumers of a stream: started, stopped and looked at by hand.

# Members that were killed stay for their session, so the group is given a moment only.
_EMPTY_WITHIN = 10.0
_ASK_EVERY = 0.2


def start_consumers(workspace: Workspace, stream: Stream, say: Say) -> dict[str, Any]:
    """Makes the stream's `replicas` run; the document of `consumers` afterwards.

    Raises:
        Refused: a recovery has stopped them on purpose.
        BacklogError: they could not be started.
    """
    launcher = launcher_of(workspace, stream, say)
    _refuse_during_recovery(workspace, stream)
    assert stream.consumers is not None
    launcher.scale(_fleet(workspace, stream), stream.consumers.replicas, _go_on)
    return describe_consumers(workspace, stream, say)


def stop_consumers(workspace: Workspace, stream: Stream, say: Say) -> dict[str, Any]:
    """Ends the stream's consumers; `members` are those that the launcher did not start.

    Raises:
        BacklogError: they could not be stopped.
    """
    launcher = launcher_of(workspace, stream, say)
    launcher.stop(_fleet(workspace, stream), _go_on)
    limit, properties = Deadline(_EMPTY_WITHIN), workspace.properties(stream)
    while not limit.expired and find_others(properties, stream.group, Deadline(_EMPTY_WITHIN)):
        time.sleep(limit.remaining(_ASK_EVERY))
    return describe_consumers(workspace, stream, say)


def describe_consumers(workspace: Workspace, stream: Stream, say: Say) -> dict[str, Any]:
    """The document of `consumers`: what the launcher says, and what the group shows.

    `members` are without `guards`, those of our own recoveries. `standings` are of recoveries that
    stop the consumers. Where the cluster does not answer, `group_state` is None and the launcher's
    part is there.
    """
    launcher, fleet = launcher_of(workspace, stream, say), _fleet(workspace, stream)
    assert stream.consumers is not None
    group: GroupState | None = None
    problem = ""
    try:
        group = describe_group_state(workspace.properties(stream), stream.group)
        running = launcher.count_running(fleet)
    except KafkaFailure as error:
        problem = str(error)
        running = None if launcher.name == "manual" else launcher.count_running(fleet)
    members = group.members if group else ()
    return {
        "stream": stream.name,
        "topic": fleet.topic,
        "group": fleet.group,
        "launcher": launcher.name,
        "replicas": stream.consumers.replicas,
        "running": running,
        "group_state": group.state if group else None,
        "members": [_describe_member(member) for member in members if not is_guard(member)],
        "guards": [_describe_member(member) for member in members if is_guard(member)],
        "standings": list_open_standings(workspace, stream.name),
        "consumers": _list_processes(launcher, fleet),
        "problem": problem,
    }


def _describe_member(member: Member) -> dict[str, str]:
    return {"client_id": member.client_id, "host": member.host, "member_id": member.member_id}


def _list_processes(launcher: Launcher, fleet: Fleet) -> list[dict[str, Any]]:
    if not isinstance(launcher, ProcessLauncher):
        return []
    return [
        {
            "index": consumer.index,
            "pid": consumer.pid,
            "restarts": consumer.restarts,
            "exit_code": consumer.exit_code,
            "log": str(consumer.log),
        }
        for consumer in launcher.list_consumers(fleet)
    ]


def _refuse_during_recovery(workspace: Workspace, stream: Stream) -> None:
    for recovery in workspace.ledger.recoveries.list(stream=stream.name, states=UNFINISHED):
        if recovery.stops_consumers:
            raise Refused(
                f"{recovery.kind} {recovery.id} is {recovery.state.value}, and the consumers are "
                "stopped for it",
                subject=f"stream {stream.name}",
                hint=f"they are started at its end: `backlogctl show {recovery.id}` says what "
                "comes next",
            )


def _fleet(workspace: Workspace, stream: Stream) -> Fleet:
    return fleet_of(workspace, stream, Role.ORIGINAL)


def _go_on() -> None:
    """Ctrl-C raises by itself."""


# Who reads while a recovery keeps the group's own consumers stopped.

# A person waits for the answer, and a broker may be away.
STANDING_SECONDS = 6.0
Answer = TypeVar("Answer")


def ask_brokers(
    recovery: Recovery, question: Callable[[Deadline], Answer], unknown: Answer, *, ask: bool
) -> tuple[Answer, str]:
    """What the brokers answer within some seconds, else `unknown` and why.

    Args:
        ask: False where nobody waits for them.
    """
    if not ask:
        return unknown, f"the brokers are not asked here; `backlogctl show {recovery.id}` does"
    try:
        return question(Deadline(STANDING_SECONDS)), ""
    except BacklogError as error:
        return unknown, str(error)


def find_readers(
    properties: Mapping[str, str], group: str, limit: Deadline, recovery_group: str = ""
) -> Readers:
    """Members of the group, and of a recovery's; one that assigns its partitions itself is a member
    of none."""
    originals = len(find_others(properties, group, limit))
    ours = len(find_others(properties, recovery_group, limit)) if recovery_group else 0
    reads = {
        (False, False): Reads.NOBODY,
        (True, False): Reads.ORIGINALS,
        (False, True): Reads.RECOVERY,
        (True, True): Reads.BOTH,
    }[bool(originals), bool(ours)]
    return Readers(reads, originals, ours)


def name_stopped(group: str, replicas: int, steps: Collection[str], readers: Readers) -> str:
    """Whose consumers are stopped; "" where they are back already."""
    if RESTORE_STEP in steps and readers.originals:
        return ""
    return f"the {format_plural(replicas, 'consumer')} of group {group}"
