"""What the tool's principal must be allowed, by job; asked before anything is touched.

One list for `backlogctl acl`, for the guard of every plan and run, and for docs/permissions.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from backlog.clock import Deadline
from backlog.config import Config, Stream
from backlog.errors import Refused
from backlog.kafka.clients import find_addresses
from backlog.kafka.rights import (
    CLUSTER_NAME,
    Operation,
    Resource,
    Right,
    make_acl_lines,
    read_rights,
)
from backlog.numbers import format_plural
from replay.recovery.kind import Registry
from replay.recovery.workspace import Workspace

SEE, HOLD, DOCTOR, AIRFLOW = "see", "hold", "doctor", "airflow"
# Stands for the id of a recovery that is not planned yet.
SOME_ID = "r-20260101-0001"
_SECONDS = 30.0


def list_seeing(stream: Stream) -> tuple[Right, ...]:
    """To watch a stream: lag, losses, and how long there is."""
    topic, group = stream.topic, stream.group
    return (
        Right(
            *(Resource.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE),
            "list all groups and read the disks",
            needed=False,
        ),
        Right(Resource.TOPIC, topic, Operation.DESCRIBE, "read its offsets"),
        Right(Resource.TOPIC, topic, Operation.DESCRIBE_CONFIGS, "read its retention"),
        Right(Resource.TOPIC, topic, Operation.READ, "read how old the oldest unread message is"),
        Right(Resource.GROUP, group, Operation.DESCRIBE, "read its members and committed offsets"),
    )


def list_raising(stream: Stream) -> tuple[Right, ...]:
    """To raise a topic's retention and give it back, and nothing else."""
    topic = stream.topic
    return (
        Right(Resource.TOPIC, topic, Operation.DESCRIBE, "read its offsets"),
        Right(Resource.TOPIC, topic, Operation.DESCRIBE_CONFIGS, "read its retention"),
        Right(Resource.TOPIC, topic, Operation.ALTER_CONFIGS, "raise its retention"),
    )


def list_holding(stream: Stream) -> tuple[Right, ...]:
    """To hold a stream, knowing how long, and whether the disks bear it."""
    return tuple(dict.fromkeys((*list_seeing(stream), *list_raising(stream))))


def list_examining(stream: Stream) -> tuple[Right, ...]:
    """To judge the brokers' settings with those of the topic."""
    brokers = Right(
        *(Resource.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE_CONFIGS),
        "read the brokers' settings",
        needed=False,
    )
    return (*list_seeing(stream), brokers)


def list_jobs(kinds: Registry) -> tuple[str, ...]:
    """The jobs of `backlogctl acl`."""
    return (SEE, HOLD, *kinds.names(), DOCTOR, AIRFLOW)


def list_rights(kinds: Registry, job: str, config: Config, stream: Stream) -> tuple[Right, ...]:
    """What a job on a stream needs; Airflow's tasks do all of them."""
    if job == SEE:
        return list_seeing(stream)
    if job == HOLD:
        return list_holding(stream)
    if job == DOCTOR:
        return list_examining(stream)
    if job != AIRFLOW:
        return kinds.get(job).list_rights(config, stream, SOME_ID)
    every = [*list_holding(stream)]
    for kind in kinds:
        every += kind.list_rights(config, stream, SOME_ID)
    found: dict[tuple[object, ...], Right] = {}
    for right in every:  # two kinds may need the same one, each for its own purpose
        found.setdefault((right.resource, right.name, right.prefixed, right.operation), right)
    return tuple(found.values())


def require_rights(workspace: Workspace, stream: Stream, rights: Sequence[Right]) -> list[str]:
    """Refuses work that would stop in the middle for want of a right.

    Returns:
        Warnings: rights that could not be asked.

    Raises:
        Refused: names what is missing, and the lines that grant it.
        ClusterUnreachable, KafkaFailure.
    """
    properties = workspace.properties(stream)
    found = read_rights(properties, rights, Deadline(_SECONDS))
    if needed := [right for right in found.missing if right.needed]:
        principal = find_principal(properties)
        lines = make_acl_lines(found.missing, principal, find_addresses(properties))
        raise Refused(
            f"the tool misses {format_plural(len(needed), 'right')}: {describe_rights(needed)}",
            subject=f"stream {stream.name}",
            # A run may have begun earlier: what it changed then stands in `standing`.
            hint="who administers the cluster grants them with\n  " + "\n  ".join(lines),
        )
    warnings = [
        f"the tool may not {right} (to {right.purpose}): what needs that stays unknown"
        for right in found.missing
    ]
    if found.unknown:
        warnings += [
            f"whether the tool may do all that is needed is unknown: {found.reason}; a right that "
            "is missing shows only when it is used"
        ]
    return warnings


def describe_rights(rights: Iterable[Right]) -> str:
    """Each with what it is for."""
    return ", ".join(f"{right} (to {right.purpose})" for right in rights)


def find_principal(properties: Any) -> str:
    """The principal as Kafka names it by default; a placeholder where only the cluster knows."""
    user = properties.get("sasl.username")
    return f"User:{user}" if user else "User:NAME"
