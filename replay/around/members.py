"""Who is in a group, what each member has, and when it last committed: for a group that hangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from backlog.clock import Deadline, format_time
from backlog.config import Stream
from backlog.errors import BacklogError, Refused
from backlog.kafka.admin import describe_group_state
from backlog.kafka.group_types import read_group_type, say_why_not
from backlog.numbers import format_moment
from backlog.values import Sample
from backlogctl_delivery.visible import quote_word
from monitoring.verdicts import Verdict
from replay.around.observation import read_history
from replay.recovery.workspace import Workspace

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
        if why := say_why_not(kind):
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


def count_rebalancing(workspace: Workspace, stream: Stream) -> tuple[int, int]:
    """In how many samples of the window the group was rebalancing, and how many there are."""
    samples = _read_window(workspace, stream)
    return _count_rebalancing(samples), len(samples)


def describe_trouble(
    workspace: Workspace, stream: Stream, entry: Mapping[str, Any]
) -> dict[str, Any]:
    """The members, where a stream has some or needs some, and what to look at.

    Args:
        entry: of `status`. The command that it would end in is `status` itself: it is left out.
    """
    members = describe_members(workspace, stream)
    again = f"backlogctl status {stream.name}"
    return {
        "members": members,
        "ways": suggest_ways(stream, str(entry["course"]), members),
        "next_commands": [one for one in entry["next_commands"] if one != again],
    }


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
        case Verdict.BEYOND_END:
            return [
                "the group's offset is beyond the log: the topic was cut back or made anew, or the "
                "offset was set wrong; once its consumers are stopped, set it with "
                "`kafka-consumer-groups.sh --bootstrap-server HOST:PORT "
                f"--group {quote_word(stream.group)} --topic {stream.topic} "
                "--reset-offsets --to-latest --execute`"
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
    samples = read_history(workspace, stream)
    if not samples:
        return []
    since = samples[-1].taken_at - workspace.config.watch.window
    return [sample for sample in samples if sample.taken_at >= since]
