"""What is left in both topics while a backlog is drained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backlog.clock import Deadline
from backlog.kafka.admin import committed_offsets, list_offsets
from backlog.kafka.clients import Admin


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
        ClusterUnreachable, KafkaFailure.
    """
    deadline = limit or Deadline(30.0)
    known = last_offsets or {}
    done = committed_offsets(admin, group, source, range(partitions), deadline)
    handled = committed_offsets(
        admin, recovery_group, temporary, range(temporary_partitions), deadline
    )
    ends = list_offsets(admin, source, range(partitions), "latest", "read_committed", deadline)
    written = list_offsets(
        admin, temporary, range(temporary_partitions), "latest", "read_committed", deadline
    )
    for number, last in known.items():
        written[number] = min(written[number], last + 1)
    return Lags(
        {number: max(0, end - (done[number] or 0)) for number, end in ends.items()},
        {number: max(0, end - (handled[number] or 0)) for number, end in written.items()},
    )
