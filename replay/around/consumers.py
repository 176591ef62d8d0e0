"""The original consumers of a stream: started, stopped and looked at by hand."""

from __future__ import annotations

import time
from typing import Any

from backlog.clock import Deadline
from backlog.config import Stream
from backlog.errors import KafkaFailure, Refused
from backlog.kafka.admin import GroupState, Member, describe_group_state
from backlog.progress import Say
from fanout.launchers import Fleet, Launcher, ProcessLauncher, Role
from fanout.relay.guard import find_others, is_guard
from replay.around.fleets import fleet_of, launcher_of
from replay.recovery.states import UNFINISHED
from replay.recovery.workspace import Workspace
from replay.telling.standing import list_open_standings

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
                hint=f"`backlogctl run {recovery.id}` starts them at its end, and "
                f"`backlogctl cancel {recovery.id}` ends it",
            )


def _fleet(workspace: Workspace, stream: Stream) -> Fleet:
    return fleet_of(workspace, stream, Role.ORIGINAL)


def _go_on() -> None:
    """Ctrl-C raises by itself."""
