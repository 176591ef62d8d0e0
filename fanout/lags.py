"""What is left in both topics while a backlog is drained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backlog.clock import Deadline
from backlog.kafka.clients import Admin
from backlog.kafka.standing import GroupStanding, read_standing


@dataclass(frozen=True, slots=True)
class Lags:
    """Offsets left, so upper bounds on messages; by partition.

    Attributes:
        source: not relayed yet.
        temporary: relayed, and not handled yet.
    """

    source: Mapping[int, int]
    temporary: Mapping[int, int]

    @property
    def source_total(self) -> int:
        return sum(self.source.values())

    @property
    def temporary_total(self) -> int:
        return sum(self.temporary.values())


def read_lags(
    admin: Admin,
    *,
    source: str,
    group: str,
    partitions: int,
    temporary: str,
    recovery_group: str,
    temporary_partitions: int,
    last_offsets: Mapping[int, int] | None = None,
    limit: Deadline | None = None,
) -> Lags:
    """Reads both lags; commits first, then the ends, so that no lag is negative.

    Args:
        last_offsets: the last data record of temporary partitions, where it is known: what lies
            behind it are control records, which no consumer commits past.

    Raises:
        EndsBehind, LogTruncated: an end lies below a commit, or below `last_offsets`.
        ClusterUnreachable, KafkaFailure.
    """
    deadline = limit or Deadline(30.0)
    known = last_offsets or {}
    left = read_standing(admin, group, source, range(partitions), deadline)
    copied = read_standing(
        admin,
        recovery_group,
        temporary,
        range(temporary_partitions),
        deadline,
        written={number: last + 1 for number, last in known.items()},
    )
    data = {p: min(end, known[p] + 1) if p in known else end for p, end in copied.ends.items()}
    return Lags(left.lag, GroupStanding(copied.commits, data).lag)
