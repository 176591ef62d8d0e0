"""Whether the topic still holds what is to be archived, and shows all of it."""

from __future__ import annotations

from collections.abc import Sequence

from backlog.clock import Deadline
from backlog.errors import Refused
from backlog.kafka.admin import list_offsets
from backlog.kafka.calls import Connection
from backlog.values import OffsetRange
from spark_backfill.archive.job import ArchiveJob
from spark_backfill.injection.targets import check_target

_SECONDS = 60.0


def require_readable(connection: Connection, job: ArchiveJob) -> None:
    """The topic is the plan's, and each range ends where readers get to now.

    Raises:
        PlanStale: the topic was deleted, recreated, or has more partitions.
        Refused: a range ends above the last stable offset.
    """
    limit = Deadline(_SECONDS)
    check_target(connection, job.topic, job.topic_id, job.partitions, limit)
    ends: dict[int, int] = {}
    for item in job.ranges:
        ends[item.partition] = max(item.end, ends.get(item.partition, 0))
    stable = list_offsets(connection, job.topic, ends, "latest", "read_committed", deadline=limit)
    if hidden := {p: end for p, end in sorted(ends.items()) if stable[p] < end}:
        places = ", ".join(f"[{p}] to {end}, readable to {stable[p]}" for p, end in hidden.items())
        raise Refused(
            f"open transactions hide messages that are to be archived ({places})",
            subject=f"topic {job.topic}",
            hint="archive no further than the last stable offsets",
        )


def find_moved(
    connection: Connection, job: ArchiveJob, rest: Sequence[OffsetRange]
) -> dict[int, tuple[int, int]]:
    """Partitions whose log starts above what is next to be read: (needed from, starts at).

    Raises:
        PlanStale: the topic was deleted or recreated.
    """
    limit = Deadline(_SECONDS)
    check_target(connection, job.topic, job.topic_id, job.partitions, limit)
    needed: dict[int, int] = {}
    for item in rest:
        needed[item.partition] = min(item.start, needed.get(item.partition, item.start))
    lows = list_offsets(connection, job.topic, needed, "earliest", deadline=limit)
    return {p: (at, lows[p]) for p, at in needed.items() if lows[p] > at}
