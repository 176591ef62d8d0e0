"""Whether every job that is configured for a stream has its rights."""

from __future__ import annotations

from collections.abc import Iterator

from backlog.clock import Deadline
from backlog.config import Stream
from backlog.kafka.clients import find_addresses
from backlog.kafka.rights import Right, make_acl_lines, read_rights
from monitoring.doctor.finding import Finding, Level, Room, Unread, read_part
from replay.around.rights import DOCTOR, HOLD, SEE, describe_rights, find_principal, list_rights
from replay.recovery.workspace import Workspace

_RIGHTS_SECONDS = 30.0


def list_wanted(workspace: Workspace, stream: Stream) -> dict[str, tuple[Right, ...]]:
    """By job its rights; jobs that the stream is not configured for are left out."""
    config = workspace.config
    kinds = [kind.name for kind in workspace.kinds if kind.is_configured(stream)]
    jobs = (SEE, HOLD, *kinds, DOCTOR)
    return {job: list_rights(workspace.kinds, job, config, stream) for job in jobs}


@Room.RIGHTS.check(
    "rights",
    "What the tool may do",
    "What a recovery needs is asked for before anything is touched: a missing right stops it.",
    "By job, in docs/permissions.md.",
)
def judge_rights(workspace: Workspace, stream: Stream) -> Iterator[Finding]:
    """One finding for each job that misses rights."""
    properties, subject = workspace.properties(stream), f"stream {stream.name}"
    wanted = list_wanted(workspace, stream)
    every = tuple(dict.fromkeys(right for rights in wanted.values() for right in rights))
    found = read_part(
        "what the tool is allowed",
        lambda: read_rights(properties, every, Deadline(_RIGHTS_SECONDS)),
    )
    if isinstance(found, Unread):
        yield found.to_finding()
        return
    if found.unknown:
        yield Finding(
            *("rights", Level.UNKNOWN, subject),
            f"whether the tool may do what is needed: {found.reason}",
            "compare its rules with docs/permissions.md",
        )
    told: set[Right] = set()
    for job, rights in wanted.items():
        missing = [right for right in rights if right in found.missing and right not in told]
        told.update(missing)
        if not missing:
            continue
        needed = any(right.needed for right in missing)
        lines = make_acl_lines(missing, find_principal(properties), find_addresses(properties))
        yield Finding(
            "rights",
            Level.STOPS if needed else Level.UNKNOWN,
            subject,
            f"{job}: the tool may not {describe_rights(missing)}",
            "who administers the cluster grants it with",
            tuple(lines),
        )
